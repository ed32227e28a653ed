"""Four servers share the runs of a cluster in sixteen shards: each leads its part, and takes over part of another's.

In all cases at most one server acts for a shard: the end of each test checks every answer of every server.
"""

import asyncio
import itertools
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from rdzv_server.words import cluster
from tests.integration.replicas import TAKEOVER_S, Probe, Replica, Replicas
from tests.support.etcd import Etcd, need_etcd
from tests.support.message_search import pattern
from tests.support.process_info import is_running
from tests.support.programs import Program, Server
from tests.support.worker_hub import Worker, WorkerHub

need_etcd()

from rdzv_server.cluster.placement import shard_of  # noqa: E402
from rdzv_server.storage.etcd_client import EtcdClient  # noqa: E402
from rdzv_server.words import etcd as etcd_words  # noqa: E402

SHARDS = 16
SHARDS_FLAG = ("--shards", str(SHARDS), "--rebalance-after", "1")
EVEN_WITHIN_S = 40.0


class Shared(Replicas):
    """Servers that share sixteen shards."""

    def __init__(self, hub: WorkerHub, etcd: Etcd, name: str) -> None:
        super().__init__(hub, etcd, name, SHARDS)
        self._client = EtcdClient(etcd.addresses)

    async def add(self, count: int, *flags: str) -> None:
        for _ in range(count):
            await self.replicate(*SHARDS_FLAG, *flags)

    async def leaders(self, among: Sequence[Replica] = ()) -> dict[int, Replica]:
        """Return the leader of each shard, once these servers, by default all that run, share the shards evenly."""
        begin, end = (f"/rdzv-server/{self.name}/live/leaders{mark}".encode() for mark in "/0")
        servers = {server.proxy.address: server for server in among or self.running()}
        async with asyncio.timeout(EVEN_WITHIN_S):
            while True:
                keys, _, revision = await self._client.range(begin, end)
                led = {int(key.key.rpartition(b"/")[2]): servers.get(key.value.decode()) for key in keys}
                loads = Counter(led.values())
                is_even = max(loads.values(), default=0) - min(loads.values(), default=0) <= 1
                if len(led) == SHARDS and set(loads) == set(servers.values()) and is_even:
                    return {shard: server for shard, server in led.items() if server}
                await self._client.changed(begin, revision + 1, end)

    def unused(self, leader: Replica, leaders: dict[int, Replica]) -> str:
        """Return an unused run id in a shard that this server leads."""
        ids = (f"run-{number}" for number in itertools.count())
        return next(each for each in ids if leaders[shard_of(each, SHARDS)] is leader and each not in self.agents)

    async def run_at(self, leader: Replica, leaders: dict[int, Replica], *flags: str) -> "OneNode":
        """Return a run of one node, in a shard that this server leads."""
        run_id = self.unused(leader, leaders)
        agent = await self.node(run_id, "--run-id", run_id, "--max-restarts", "3", *flags, nproc=1)
        (worker,) = await self.hub.group(1)
        return OneNode(self.hub, agent, worker)

    async def end(self) -> None:
        await self._client.close()
        await super().end()


class OneNode:
    """A run with its only agent and its only worker."""

    def __init__(self, hub: WorkerHub, agent: Program, worker: Worker) -> None:
        self._hub = hub
        self.agent = agent
        self.worker = worker

    async def restart(self) -> None:
        """Let the run's worker fail. Return when the next one runs."""
        before = int(self.worker.env["TORCHELASTIC_RESTART_COUNT"])
        self.worker.kill()
        (self.worker,) = await self._hub.group(1)
        assert int(self.worker.env["TORCHELASTIC_RESTART_COUNT"]) == before + 1


@pytest.fixture
async def bare(hub: WorkerHub, etcd: Etcd, request: pytest.FixtureRequest) -> AsyncIterator[Shared]:
    """Shards without a server yet."""
    async with Shared(hub, etcd, re.sub(r"\W+", "-", request.node.name)) as cluster:
        yield cluster


@pytest.fixture
async def four(bare: Shared) -> Shared:
    """Four servers that share the shards evenly."""
    await bare.add(4)
    await bare.leaders()
    return bare


async def test_a_killed_server_of_four_returns_without_an_effect_on_workers(four: Shared) -> None:
    leaders = await four.leaders()
    assert set(Counter(leaders.values()).values()) == {4}
    victim, *others = four.running()
    runs = [await four.run_at(server, leaders) for server in (victim, victim, *others)]
    workers = [run.worker.pid for run in runs]
    async with Probe(four.endpoint, four.unused(victim, leaders)) as probe:
        began = time.monotonic()
        await victim.kill()
        assert await probe.takeover_s(began) < TAKEOVER_S
    survivors = await four.leaders()
    assert all(survivors[shard] is leader for shard, leader in leaders.items() if leader is not victim), "nothing else"
    assert all(map(is_running, workers))
    await runs[0].restart()
    back = await four.replicate(*SHARDS_FLAG, proxy=victim.proxy)
    again = await four.leaders()
    moved = [shard for shard, leader in again.items() if leader is not survivors[shard]]
    assert len(moved) == 4 and all(again[shard] is back for shard in moved), "no more than it takes"
    assert all(map(is_running, workers[1:]))
    for run in runs:
        await run.restart()
    await four.finish([run.worker for run in runs])


async def test_if_a_server_of_four_hangs_the_others_lead_its_shards(four: Shared) -> None:
    leaders = await four.leaders()
    victim, *others = four.running()
    run = await four.run_at(victim, leaders)
    unmoved = await four.run_at(others[0], leaders)
    async with Probe(four.endpoint, four.unused(victim, leaders)) as probe:
        began = time.monotonic()
        victim.signal(signal.SIGSTOP)
        assert await probe.takeover_s(began) < TAKEOVER_S
    worker = run.worker.pid
    await four.leaders(among=others)
    assert is_running(worker)
    await run.restart()
    victim.signal(signal.SIGCONT)
    await victim.line(f"shard .*{pattern(cluster.no_longer_leads, shard=None, why=cluster.LEASE_EXPIRED)}")
    await four.leaders()
    await run.restart()
    assert is_running(unmoved.worker.pid)
    await four.finish([run.worker, unmoved.worker])


async def test_an_agent_that_knows_one_server_finds_its_runs_leader_and_the_next_one(four: Shared) -> None:
    leaders = await four.leaders()
    known, leader, *_ = four.running()
    run = await four.run_at(leader, leaders, "--endpoint", known.proxy.address)
    assert run.agent.said[1].startswith("node-agent: round 1"), "without a word"
    await leader.kill()
    await four.leaders()
    await run.restart()
    await four.finish([run.worker])


async def test_a_node_that_dies_is_noticed_at_once(four: Shared) -> None:
    leaders = await four.leaders()
    *_, leader = four.running()
    patient = ("--lease", "500", "--last-call-timeout", "500", "--disconnect-grace", "0")
    await four.nodes("ab", "--run-id", four.unused(leader, leaders), "--nnodes", "1:2", *patient, nproc=1)
    await four.agents.pop("b").kill()
    await four.finish(await four.hub.group(1))


async def shown(server: Replica, led_by: dict[int, str]) -> dict[str, Any]:
    """Return the server's status, once it shows these leaders of the shards: it hears of them after etcd does."""
    async with asyncio.timeout(EVEN_WITHIN_S):
        while True:
            status: dict[str, Any] = await server.status()
            if {shard["shard"]: shard["leader"] for shard in status["server"]["shards"]} == led_by:
                return status
            await asyncio.sleep(0.01)  # the status has no event


async def test_every_server_shows_the_leader_of_each_shard(four: Shared) -> None:
    leaders = await four.leaders()
    led_by = {shard: leader.proxy.address for shard, leader in leaders.items()}
    owner, *others = four.running()
    run = await four.run_at(owner, leaders)
    run_id = run.worker.env["TORCHELASTIC_RUN_ID"]
    for server in (owner, *others):
        status = await shown(server, led_by)
        assert status["server"]["leads"] and status["server"]["ready"]
        assert [each["run_id"] for each in status["runs"]] == ([run_id] if server is owner else [])
        assert await server.get("/leaderz") == "leads\n"
        assert await server.get("/readyz") == "ready\n"
    await four.finish([run.worker])


@pytest.mark.parametrize(("first", "second"), [(16, 4), (16, 1), (1, 16)])
async def test_a_server_with_another_number_of_shards_is_refused(bare: Shared, first: int, second: int) -> None:
    server = await bare.replicate("--shards", str(first))
    await server.line("leading: ")
    flags = ("--store", bare.store, "--shards", str(second), "--leader-lease", "2")
    other = await Program.start(*Server.command(*flags))
    assert await other.exit_code() == 1
    has = f"{first} shard{'s' * (first > 1)}"
    said = etcd_words.of_other_shards(f"/rdzv-server/{bare.name}", has, str(first))
    await other.line(f"cannot continue; .*{re.escape(said)}")
    assert server.process.returncode is None
