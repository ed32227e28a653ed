"""Addresses that change, IPv6 without IPv4, and names without a name server."""

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.paths import DEFAULT_PORT

from node_agent import words
from node_agent.features import words as features
from rdzv_server.words import auth, operations
from rdzvctl.client import CONNECT_S
from tests.hosts.cluster import SERVER, Hosts, host_of, on_host
from tests.hosts.conftest import Note
from tests.hosts.network import DEVICE
from tests.support.message_search import message_fields, pattern
from tests.support.outages import LOST
from tests.support.process_info import is_running
from tests.support.programs import TORCH_WORKER, WORKER, Program
from tests.support.proxies import HAPROXY, haproxy_configuration, needs_proxies
from tests.support.rdzvctl import RDZVCTL, environment

pytestmark = pytest.mark.hosts

LEASE_S = 1.5
KEEP_ALIVE_S = 9.0
BY_KEEP_ALIVE = f"its agent knows by TCP keep-alive, {KEEP_ALIVE_S:g} s"
NEW_ADDRESS = "10.77.0.77"
NAME, CONTAINER = "rdzv.example", "172.17.0.2"
LOOKUP_S = 10.0
"""Seconds that a lookup waits for a silent name server: two tries of 5 s."""
SOONER_S = 0.8 * LOOKUP_S


async def test_a_master_whose_address_changes_returns_with_the_new_one(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("abc", "--nnodes", "3", "--lease", str(LEASE_S))
    await first[0].tell("steps 15")
    moved = host_of(first[0])
    began = time.monotonic()
    hosts.network[moved].change_address(NEW_ADDRESS)
    second = await hosts.hub.group(3)
    took_s = time.monotonic() - began
    assert host_of(second[0]) == moved and second[0].env["MASTER_ADDR"] == NEW_ADDRESS
    steps = await hosts.ends(second, node_lost=1)
    note("the address of rank 0's host changes, with a short lease", took_s, KEEP_ALIVE_S, BY_KEEP_ALIVE, steps)


async def test_an_agent_whose_address_changes_within_its_lease_connects_from_the_new_one(
    hosts: Hosts, note: Note
) -> None:
    first = await hosts.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--lease", "30")
    await first[0].tell("steps 15")
    moved = host_of(first[0])
    began = time.monotonic()
    hosts.network[moved].change_address(NEW_ADDRESS)
    await hosts.agents[moved].line(LOST)
    while await hosts.silence_s(moved) > LEASE_S:  # noqa: ASYNC110 - each look is a round trip
        await asyncio.sleep(0)
    took_s = time.monotonic() - began
    assert all(is_running(worker.pid) for worker in first)
    os.kill(first[1].pid, signal.SIGKILL)
    second = await hosts.hub.group(2)
    assert on_host(second, moved).env["MASTER_ADDR"] == NEW_ADDRESS
    await hosts.ends(second, worker_failure=1)
    fault = "the same with a lease of 30 s: its agent connects again, and nothing restarts"
    note(fault, took_s, KEEP_ALIVE_S, BY_KEEP_ALIVE)


async def test_on_the_servers_own_host_its_address_is_refused_with_a_hint_to_use_localhost(
    hosts: Hosts,
) -> None:
    host = hosts.network[SERVER]

    async def cordon(endpoint: str) -> Program:
        program = await host.start(Program, *RDZVCTL, "--endpoint", endpoint, "cordon", "n7", env=environment())
        await program.exit_code()
        return program

    refused = await cordon(host.authority(DEFAULT_PORT))
    assert await refused.exit_code() == ExitCode.REFUSED
    port = message_fields(refused.err[-1], auth.not_this_machine)["port"]
    done = await cordon(f"localhost:{port}")
    assert done.out[0] == operations.cordoned("n7", None, ""), done.err


@pytest.mark.torch
async def test_torch_trains_on_a_network_with_only_ipv6(ipv6_hosts: Hosts) -> None:
    ipv6_hosts.script = TORCH_WORKER
    workers = await ipv6_hosts.nodes("ab", "--nnodes", "2")
    assert workers[0].env["MASTER_ADDR"] == ipv6_hosts.network[host_of(workers[0])].address
    await ipv6_hosts.ends(workers)


async def test_on_an_ipv6_only_network_a_round_forms_again_after_a_lost_worker(ipv6_hosts: Hosts, note: Note) -> None:
    first = await ipv6_hosts.nodes("ab", "--nnodes", "2", "--max-restarts", "1")
    await first[0].tell("steps 15")
    began = time.monotonic()
    os.kill(first[1].pid, signal.SIGKILL)
    second = await ipv6_hosts.hub.group(2)
    took_s = time.monotonic() - began
    assert second[0].env["MASTER_ADDR"].startswith("fd77::")
    steps = await ipv6_hosts.ends(second, worker_failure=1)
    note("IPv6 only: a worker dies", took_s, 0.0, "nothing to wait for", steps)


async def test_a_node_whose_ipv6_is_broken_meets_the_others_by_ipv4(hosts: Hosts) -> None:
    """The server's name has addresses of both families, IPv6 first."""
    both = f"127.0.0.1 localhost\nfd77::1 {NAME}\n{hosts.network[SERVER].address} {NAME}\n"
    for number, host in enumerate(hosts.network.hosts.values(), start=1):
        host.namespace.configure(f"addr add fd77::{number}/64 nodad dev {DEVICE}")
        host.namespace.replace_file("hosts", both)
    hosts.switch.lose_ipv6("b")
    for name in "ab":
        await hosts.agent(name, "--nnodes", "2", "--endpoint", f"{NAME}:{DEFAULT_PORT}")
    workers = await hosts.hub.group(2)
    command = (*RDZVCTL, "--endpoint", f"{NAME}:{DEFAULT_PORT}", "runs")
    began = time.monotonic()
    runs = await hosts.network["b"].start(Program, *command, env=environment())
    assert await runs.exit_code() == 0, runs.err
    assert time.monotonic() - began < CONNECT_S, "rdzvctl does not wait for IPv6 first"
    await hosts.ends(workers)


async def test_two_containers_with_one_address_get_a_warning_that_they_cannot_connect(hosts: Hosts) -> None:
    """Each is behind its own machine's NAT."""
    hosts.script = WORKER
    for name in "ab":
        hosts.network[name].namespace.configure(f"addr add {CONTAINER}/16 dev lo")
        await hosts.node(name, "--nnodes", "2", "--local-addr", CONTAINER)
    workers = await hosts.hub.group(2)
    first, other = (hosts.agents[host_of(worker)] for worker in sorted(workers, key=lambda worker: worker.rank))
    apart = re.escape(features.master_is_here(CONTAINER))
    await other.line(apart)
    await hosts.finish(workers)
    assert not any(re.search(apart, line) for line in first.err)


@pytest.fixture
def nameless(hosts: Hosts) -> Hosts:
    """The name server neither answers nor refuses, so each lookup waits for `LOOKUP_S`."""
    for host in hosts.network.hosts.values():
        host.lose_names()
    return hosts


async def test_without_dns_our_programs_do_not_wait(nameless: Hosts, note: Note) -> None:
    await nameless.server.end()
    nameless.servers.clear()
    began = time.monotonic()
    async with asyncio.timeout(SOONER_S):
        await nameless.serve()
        workers = await nameless.nodes("abc", "--nnodes", "3")
    took_s = time.monotonic() - began
    async with asyncio.timeout(SOONER_S):
        await nameless.finish(workers)
    note("the name server is silent: server, agents and first round", took_s, 0.0, "no program asks it")


@pytest.mark.parametrize("backend", ["static", "c10d"])
async def test_a_head_node_that_calls_itself_localhost_is_reached_by_the_others(hosts: Hosts, backend: str) -> None:
    head, other = (hosts.network[name] for name in "ab")
    for rank, host in enumerate(("localhost", head.address)):
        flags = ("--rdzv-backend", backend, "--rdzv-endpoint", f"{host}:{DEFAULT_PORT}", "--node-rank", str(rank))
        await hosts.agent("ab"[rank], "--nnodes", "2", *flags)
    await hosts.agents["a"].line(pattern(words.hosting.hosting, is_for_this_machine=False))
    workers = await hosts.hub.group(2)
    assert {worker.env["MASTER_ADDR"] for worker in workers} <= {head.address, other.address}
    await hosts.finish(workers)


@pytest.mark.parametrize("backend", ["static", "c10d"])
async def test_without_dns_torchruns_command_lines_do_not_wait(nameless: Hosts, backend: str) -> None:
    master = nameless.network["a"]
    where = {
        "static": ("--master-addr", master.address, "--master-port", str(DEFAULT_PORT)),
        "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", master.authority(DEFAULT_PORT)),
    }[backend]
    for rank, name in enumerate("ab"):
        ranks = ("--node-rank", str(rank)) if backend == "static" else ()
        await nameless.agent(name, "--nnodes", "2", *where, *ranks)
    async with asyncio.timeout(SOONER_S):
        workers = await nameless.hub.group(2)
    await nameless.finish(workers)


BALANCER_PORT = 29_500
DOWN_S = 3.0


@needs_proxies
async def test_nodes_keep_their_seats_if_a_balancer_restarts_while_the_name_server_is_silent(
    hosts: Hosts, tmp_path: Path
) -> None:
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(haproxy_configuration(f":{BALANCER_PORT}", f"127.0.0.1:{DEFAULT_PORT}"))

    async def balance() -> Program:
        return await hosts.network[SERVER].start(Program, str(HAPROXY), "-f", str(configuration), "-db")

    for host in hosts.network.hosts.values():
        host.namespace.replace_file("hosts", f"127.0.0.1 localhost\n{hosts.network[SERVER].address} {NAME}\n")
    balancer = await balance()
    flags = ("--nnodes", "2", "--lease", "6", "--disconnect-grace", "6", "--endpoint", f"{NAME}:{BALANCER_PORT}")
    for name in "ab":
        await hosts.agent(name, *flags)
    workers = await hosts.hub.group(2)
    for host in hosts.network.hosts.values():
        host.lose_names()
    await balancer.kill()
    await asyncio.sleep(DOWN_S)
    balancer = await balance()
    for name in "ab":
        await hosts.agents[name].line(pattern(words.connection.server_reached, server=f"{NAME}:{BALANCER_PORT}"))
    assert all(is_running(worker.pid) for worker in workers)
    for worker in workers:
        worker.order_exit(0)
    for name in "ab":
        assert await hosts.agents[name].exit_code() == 0
    await balancer.kill()
    assert await hosts.restarts() == {}
