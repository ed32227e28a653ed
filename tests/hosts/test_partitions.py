"""Networks that split and heal: in both directions, in one, around a host, around the server."""

import asyncio
import re
import time
from collections.abc import Callable

import pytest

from rdzv_server.words import losses, silent_runs
from tests.hosts.cluster import SERVER, Hosts, host_of, on_host
from tests.hosts.conftest import Note
from tests.hosts.switch import Switch
from tests.support.cluster import ALL_COME
from tests.support.message_search import any_numbers, pattern
from tests.support.outages import LOST, REACHED
from tests.support.process_info import is_running
from tests.support.worker_hub import Worker

pytestmark = pytest.mark.hosts

LEASE_S = 1.5
SHORT_S, ROOMY_LEASE_S = 1.0, 3.0
LONG_S = 4.0
"""Seconds of a partition that outlasts the lease."""
RECONNECT_S = 3.0
"""Most seconds for a reconnection: 2 s between two SYNs of a connection attempt, and 1 s between two attempts."""


async def passes(seconds: float, since: float) -> None:
    """Return when the fault has lasted this long."""
    await asyncio.sleep(since + seconds - time.monotonic())


async def step_on(workers: list[Worker]) -> None:
    await asyncio.gather(*(worker.tell("steps 5") for worker in workers))


# Shorter than the lease: nothing restarts.


async def test_a_host_that_is_cut_off_for_less_than_its_lease_continues(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", *ALL_COME, "--lease", str(ROOMY_LEASE_S))
    await step_on(first)
    began = time.monotonic()
    hosts.switch.isolate("b")
    await passes(SHORT_S, began)
    hosts.switch.heal()
    await step_on(first)
    took_s = time.monotonic() - began
    because = "TCP sends again after pauses that double: the cut, and as long again"
    steps = await hosts.ends(first)
    note(f"a host is cut off for {SHORT_S:g} s: nothing restarts", took_s, 2 * SHORT_S, because, steps)


async def test_a_server_cut_off_for_less_than_the_lease_keeps_its_shards(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", *ALL_COME, "--lease", str(ROOMY_LEASE_S))
    began = time.monotonic()
    hosts.switch.isolate(SERVER)
    await step_on(first)
    took_s = time.monotonic() - began
    await passes(SHORT_S, began)
    hosts.switch.heal()
    await step_on(first)
    steps = await hosts.ends(first)
    assert not any("lost rdzv-server" in line for agent in hosts.agents.values() for line in agent.err)
    because = "workers do not need it: five steps, as ever"
    note(f"the server is cut off for {SHORT_S:g} s: nothing restarts", took_s, 0.0, because, steps)


# Longer than the lease.


CUTS: dict[str, Callable[[Switch], None]] = {
    "both ways": lambda switch: switch.isolate("b"),
    "it no longer hears the server": lambda switch: switch.cut(SERVER, "b"),
    "the server no longer hears it": lambda switch: switch.cut("b", SERVER),
}


@pytest.mark.parametrize("cut", CUTS)
async def test_a_host_that_is_cut_off_for_longer_returns_as_a_newcomer(hosts: Hosts, note: Note, cut: str) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", *ALL_COME, "--lease", str(LEASE_S))
    await first[0].tell("steps 15")
    lost = on_host(first, "b")
    began = time.monotonic()
    CUTS[cut](hosts.switch)
    second = await hosts.hub.group(2)
    others_s = time.monotonic() - began
    assert {host_of(worker) for worker in second} == {"a", "c"}
    if cut == "both ways":
        assert is_running(lost.pid), "its agent cannot know, and a worker outlives the silence of a server"
    await second[0].tell("steps 15")
    await passes(LONG_S, began)
    hosts.switch.heal()
    healed = time.monotonic()
    third = await hosts.hub.group(3)
    back_s = time.monotonic() - healed
    assert not is_running(lost.pid), "stopped before its successor began"
    await hosts.agents["b"].line(pattern(losses.gone, node_id="b", run_id="none", left=False) + ".*; joining again")
    await hosts.ends(third, node_lost=1, node_arrived=1)
    went, came = (max(0, again) for again in hosts.training.repeated())
    fault = f"a host is cut off for {LONG_S:g} s, {cut}"
    note(f"{fault}: the other nodes continue", others_s, LEASE_S, f"lease of {LEASE_S:g} s", went)
    because = "TCP sends again after pauses that double: as long as the cut lasted"
    note(f"{fault}: it is back after the repair", back_s, LONG_S, because, came)


async def test_workers_continue_while_the_server_is_cut_off_and_do_not_restart_when_it_returns(
    hosts: Hosts, note: Note
) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", *ALL_COME, "--lease", str(LEASE_S))
    await step_on(first)
    hosts.switch.isolate(SERVER)
    for agent in hosts.agents.values():
        await agent.line(LOST)
    await hosts.server.line(any_numbers(pattern(silent_runs.awaited(2))))
    await step_on(first)
    hosts.switch.heal()
    healed = time.monotonic()
    for agent in hosts.agents.values():
        await agent.line(REACHED)
    took_s = time.monotonic() - healed
    await step_on(first)
    assert not await hosts.restarts()
    steps = await hosts.ends(first)
    for agent in hosts.agents.values():
        assert sum(re.search(LOST, line) is not None for line in agent.err) == 1, agent.err
    fault = "the server is cut off for longer than the lease: agents are back after the repair, and nothing restarts"
    note(fault, took_s, RECONNECT_S, "agents try to connect at least every 3 s", steps)
