"""Failover: the leading server is killed, stopped or cut off, and so is etcd. The runs continue, and no worker notices.

In all cases at most one server acts: the end of each test checks every answer of every server.
"""

import asyncio
import re
import signal
import time
import urllib.error
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from rdzv_protocol.errors import NotLeader

from node_agent import words as agent_words
from node_agent.kernel.core.backoff import HANDOVER_S
from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.words import cluster as cluster_words
from rdzv_server.words import etcd as etcd_words
from rdzv_server.words import storage as words
from tests.integration.replicas import TAKEOVER_S, Probe, Replicas
from tests.support.cluster import ALL_COME
from tests.support.etcd import Etcd, Member, etcd_cluster, need_etcd, written
from tests.support.message_search import has_message, part, pattern
from tests.support.outages import LOST, PATIENT, REACHED
from tests.support.programs import PATIENCE_S, Server
from tests.support.scenario import a_join
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_hub import all_run, restart_count

GRACE_S = 1.0
"""Default of `--disconnect-grace`."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Three members, which cost eight times as much as one while nothing happens."""
    need_etcd()
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 3) as etcd:
        yield etcd


# The leader dies.


async def test_running_one_after_another_takes_over_in_time_and_the_workers_notice_nothing(replicas: Replicas) -> None:
    await (await replicas.replicate()).line("following")
    first = await replicas.nodes("ab", "--nnodes", "2", "--max-restarts", "3", *PATIENT)
    first[0].kill()
    second = await replicas.hub.group(4)
    async with Probe(replicas.endpoint) as probe:
        for _ in range(2):
            leader = await replicas.leader()
            began = time.monotonic()
            await leader.kill()
            assert await probe.takeover_s(began) < TAKEOVER_S
        assert sum(has_message(line, agent_words.connection.leads_now) for line in probe.notes) == 2
    assert all_run(second)
    second[3].kill()
    third = await replicas.hub.group(4)
    assert restart_count(third) == 2, "the one that follows knows what was before"
    assert [worker.group_rank for worker in third] == [worker.group_rank for worker in second]
    for agent in replicas.agents.values():
        await agent.line(pattern(agent_words.connection.leads_now))
    await replicas.finish(third)


async def test_all_servers_die_and_one_returns(replicas: Replicas) -> None:
    workers = await replicas.nodes("ab", "--nnodes", "2", *PATIENT)
    for server in replicas.servers:
        await server.kill()
    again = await replicas.replicate()
    replicas.servers[0].proxy.target = again.endpoint  # at the address that agents know
    await again.leads()
    assert all_run(workers)
    await replicas.finish(workers)


async def test_a_leader_that_is_asked_to_stop_is_followed_at_once(unserved: Replicas) -> None:
    lease = ("--leader-lease", f"{2 * PATIENCE_S:.0f}")
    await (await unserved.replicate(*lease)).leads()
    for _ in range(2):
        await (await unserved.replicate(*lease)).line("following")
    workers = await unserved.nodes("ab", "--nnodes", "2", *PATIENT)
    took_s = []
    async with Probe(unserved.endpoint) as probe:
        for _ in range(2):
            leader = await unserved.leader()
            began = time.monotonic()
            leader.signal(signal.SIGTERM)
            took_s.append(await probe.takeover_s(began))  # its patience is shorter than the lease
            assert await leader.exit_code() == 0
    assert min(took_s) < 1.0, "either, but for what else this machine does"
    assert all_run(workers)
    await unserved.finish(workers)
    for agent in unserved.agents.values():
        was_quick = max(took_s) < HANDOVER_S / 2
        assert not (was_quick and re.search(LOST, "\n".join(agent.err))), "nothing to worry about"


# The leader hangs.


async def test_a_leader_that_was_stopped_does_not_write_when_it_continues_and_follows(replicas: Replicas) -> None:
    first = await replicas.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--disconnect-grace", "0", *PATIENT[:-2])
    leader = await replicas.leader()
    async with Probe(replicas.endpoint) as probe:
        began = time.monotonic()
        leader.signal(signal.SIGSTOP)
        late = [asyncio.create_task(join_in_vain(leader.port, f"late {number}")) for number in range(3)]
        assert await probe.takeover_s(began) < TAKEOVER_S
    assert all_run(first)
    first[3].kill()
    second = await replicas.hub.group(4)
    assert restart_count(second) == 1
    before = replicas.records()
    leader.signal(signal.SIGCONT)
    await leader.line(pattern(cluster_words.no_longer_leads, shard=None))
    await leader.line("following")
    await asyncio.gather(*late)
    assert replicas.records() == before, "it has written nothing"
    assert all_run(second)
    await replicas.finish(second)


async def test_a_leader_that_hangs_behind_one_address_is_left_within_a_lease_of_the_next_one(
    replicas: Replicas,
) -> None:
    leader, following = replicas.servers
    async with TcpProxy(leader.endpoint) as balancer:
        for name in "ab":
            flags = ("--node-id", name, "--nproc", "2", "--nnodes", "2", *ALL_COME, "--lease", "6")
            await replicas.agent(name, "--endpoint", balancer.address, *flags)
        workers = await replicas.hub.group(4)
        leader.signal(signal.SIGSTOP)
        await following.leads()
        balancer.target = following.endpoint
        async with asyncio.timeout(PATIENCE_S):
            while any(not node["connected"] for node in (await following.run())["nodes"]):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await replicas.restarts() == {}
        assert all_run(workers)
        leader.signal(signal.SIGCONT)
        await replicas.finish(workers)


async def join_in_vain(port: int, run_id: str) -> None:
    """Send a join that a server reads when it no longer leads."""
    transport = HttpTransport("127.0.0.1", port, None)
    with pytest.raises(NotLeader):
        await transport.exchange(a_join("late", run_id=run_id))
    await transport.close()


# etcd's members die.


@pytest.mark.parametrize("which", ["etcd's leader", "another"])
async def test_the_death_of_an_etcd_member_has_no_effect_on_runs(replicas: Replicas, which: str) -> None:
    first = await replicas.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    member = next(
        each for each in replicas.etcd.members if is_etcds_leader(replicas.etcd, each) == (which == "etcd's leader")
    )
    member.kill()
    try:
        first[3].kill()
        second = await replicas.hub.group(4)
        assert restart_count(second) == 1
        await replicas.restart_server()
        await replicas.finish(second)
    finally:
        replicas.etcd.start(member)
        await written([member.address])


def is_etcds_leader(etcd: Etcd, member: Member) -> bool:
    return etcd.ctl("endpoint", "status", endpoints=[member.address]).split(", ")[4] == "true"


async def test_agents_that_are_sent_away_while_etcd_is_gone_are_not_lost_afterwards(unserved: Replicas) -> None:
    """Etcd keeps leases over its restart, so that the server still leads what it led."""
    server = await unserved.replicate()
    await server.leads()
    workers = await unserved.nodes("abc", "--nnodes", "3", "--lease", "4", nproc=1)
    for member in unserved.etcd.members:
        member.kill()
    for agent in unserved.agents.values():
        await agent.line(LOST)
    await asyncio.sleep(3 * GRACE_S)
    unserved.etcd.start()
    for agent in unserved.agents.values():
        await agent.line(REACHED)
    assert cluster_words.LEASE_RENEWED in str(server.err)
    assert all_run(workers) and restart_count(workers) == 0
    (run,) = (await server.status())["runs"]
    assert run["round"] == 1, run
    await unserved.finish(workers)


# The leader is cut off.


async def test_a_leader_that_is_cut_off_from_etcd_stops_answering_and_follows_when_it_is_back(
    unserved: Replicas,
) -> None:
    async with AsyncExitStack() as stack:
        gates = [await stack.enter_async_context(TcpProxy(address)) for address in unserved.etcd.addresses]
        leader = await unserved.replicate(members=[gate.address for gate in gates])
        await leader.leads()
        await (await unserved.replicate()).line("following")
        first = await unserved.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
        async with Probe(unserved.endpoint) as probe:
            began = time.monotonic()
            for gate in gates:
                gate.hold()
            assert await probe.takeover_s(began) < TAKEOVER_S
        assert all_run(first)
        first[3].kill()
        second = await unserved.hub.group(4)
        assert restart_count(second) == 1
        await join_in_vain(leader.port, "late")
        before = unserved.records()
        for gate in gates:
            gate.release()
        await leader.line(pattern(cluster_words.no_longer_leads, shard=None))
        await leader.line("following")
        assert unserved.records() == before, "it has written nothing"
        await unserved.finish(second)


# Agents that know little.


async def test_agents_that_start_before_their_servers_wait_for_them(unserved: Replicas) -> None:
    first, second = await unserved.replicate(), await unserved.replicate()
    await unserved.node("a", "--nnodes", "2")
    await unserved.node("b", "--nnodes", "2")
    await unserved.finish(await unserved.hub.group(4))
    assert {await first.is_leader(), await second.is_leader()} == {True, False}


@pytest.mark.parametrize("flags", [(), ("--shards", "16")], ids=["one shard", "shards"])
async def test_without_etcd_a_server_says_so_and_keeps_trying(flags: tuple[str, ...]) -> None:
    need_etcd()
    server = await Server.listen("--store", "etcd://127.0.0.1:1,127.0.0.1:2", *flags)
    members = ("127.0.0.1:1", "127.0.0.1:2")
    await server.line(f"{part(etcd_words.cannot_use, etcd=etcd_words.name(members))}.*refused; {words.TRYING_AGAIN}")
    with pytest.raises(urllib.error.HTTPError, match="503") as caught:
        await server.get("/readyz")
    assert caught.value.read() == b"no leader is known\n"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await server.get("/leaderz")
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == 0
