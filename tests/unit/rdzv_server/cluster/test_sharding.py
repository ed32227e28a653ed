"""Servers that share shards over a real etcd, in one process: who leads what, and what becomes of it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from rdzv_protocol.errors import NotLeader, UnknownRun
from rdzv_protocol.messages import LeaderReply, LeaderRequest, StopRequest

from tests.support.etcd import Etcd, Gate, need_etcd
from tests.support.scenario import Connection

need_etcd()

from rdzv_server.cluster import balance  # noqa: E402
from rdzv_server.cluster.election import Leader  # noqa: E402
from rdzv_server.cluster.membership import Presence  # noqa: E402
from rdzv_server.cluster.placement import shard_of  # noqa: E402
from rdzv_server.cluster.shard_candidacy import MOMENT_S, ShardCandidacy, ShardLeadership  # noqa: E402
from rdzv_server.cluster.sharding import Shards  # noqa: E402
from rdzv_server.storage import shard_count  # noqa: E402
from rdzv_server.storage.base import StoreBroken  # noqa: E402
from rdzv_server.storage.etcd_client import EtcdClient, delete, put  # noqa: E402

PATIENCE_S = 20.0
LEASE_S = 1
SHARDS = 4
OPERATOR = Connection("operator")


class Server:
    """One of those that share four shards."""

    def __init__(self, client: EtcdClient, prefix: str, address: str) -> None:
        self._address = address
        self.shards = Shards(
            client, prefix, address, lease_s=LEASE_S, shards=SHARDS, retention_s=60.0, max_runs=100
        )  # fmt: skip
        self.running = asyncio.create_task(self.shards.run())

    @property
    def led(self) -> list[int]:
        return [view.shard for view in self.shards.shards if view.leader == self._address]

    async def leads(self, count: int) -> None:
        """Return once it leads so many shards."""
        await until(lambda: len(self.led) == count)

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.shards.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def start(client: EtcdClient, prefix: str) -> AsyncIterator:
    servers = []

    def start(address: str, over: EtcdClient = client) -> Server:
        servers.append(Server(over, prefix, address))
        return servers[-1]

    yield start
    for server in servers:
        await server.end()


@pytest.fixture
async def presence(client: EtcdClient, prefix: str) -> AsyncIterator:
    """A server that is there, and leads nothing yet."""
    presence = Presence(client, prefix, "a:1", LEASE_S, SHARDS)
    running = asyncio.create_task(presence.run())
    await until(lambda: presence.lease is not None)
    yield presence
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def gated(etcd: Etcd) -> AsyncIterator[tuple[EtcdClient, Gate]]:
    """A client whose way to etcd can be shut."""
    async with Gate(etcd.addresses[0]) as gate:
        client = EtcdClient([gate.address])
        yield client, gate
        gate.open()
        await client.close()


async def test_servers_that_come_are_left_their_part_and_those_that_go_leave_theirs(start):
    first = start("a:1")
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await first.leads(2)
    assert sorted(first.led + second.led) == list(range(SHARDS))
    await second.end()
    await first.leads(4)


async def test_who_does_not_take_what_it_is_left_is_not_left_it_again_and_again(start, client, prefix, caplog):
    server = start("a:1")
    await server.leads(4)
    lease_id, _ = await client.grant(60)
    await client.transact([], [put(f"{prefix}/live/servers/b:1".encode(), b"", lease_id)])

    def left_at() -> list[float]:
        return [record.created for record in caplog.records if "leaving it to b:1" in record.getMessage()]

    caplog.set_level("INFO")
    await until(lambda: len(left_at()) == 2)
    first, second = left_at()
    assert second - first >= 2 * LEASE_S
    assert sum("b:1 has not taken it" in message for message in caplog.messages) == 1
    await server.leads(4)
    await client.revoke(lease_id)


async def test_who_is_cut_off_leads_nothing_before_another_does_and_is_left_its_part_when_it_is_back(start, gated):
    gated_client, gate = gated
    first = start("a:1", gated_client)
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    lost, kept = first.led, second.led
    gate.shut()
    while first.led:
        assert second.led == kept
        await asyncio.sleep(0.005)
    assert first.shards.trouble == "etcd does not answer: this server's leadership is not certain"
    with pytest.raises(NotLeader):
        await first.shards.ask(StopRequest(run_id=run_of(lost[0])), OPERATOR)
    await second.leads(4)
    gate.open()
    await first.leads(2)
    await second.leads(2)


def run_of(shard: int) -> str:
    return next(f"run-{number}" for number in range(1_000) if shard_of(f"run-{number}", SHARDS) == shard)


async def test_at_no_moment_do_two_lead_a_shard_whoever_is_cut_off_or_stopped(start, etcd):
    gates = [Gate(etcd.addresses[0]) for _ in range(3)]
    clients = []
    for gate in gates:
        await gate.__aenter__()
        clients.append(EtcdClient([gate.address]))
    servers = [start(f"{name}:1", client) for name, client in zip("abc", clients, strict=True)]
    looking = asyncio.create_task(look_at(servers))
    chance = random.Random(1)
    try:
        for _ in range(6):
            await until(lambda: sum(len(server.led) for server in servers) == SHARDS)
            victim = chance.randrange(3)
            gates[victim].shut()
            await asyncio.sleep(chance.uniform(0.0, 2.0 * LEASE_S))
            gates[victim].open()
            await servers[victim].end()
            servers[victim] = start(f"{'abc'[victim]}:1", clients[victim])
        await until(lambda: sum(len(server.led) for server in servers) == SHARDS)
    finally:
        looking.cancel()
        (found,) = await asyncio.gather(looking, return_exceptions=True)
        for server in servers:
            await server.end()
        for gate, client in zip(gates, clients, strict=True):
            await client.close()
            await gate.__aexit__(None, None, None)
    assert isinstance(found, asyncio.CancelledError), found


async def look_at(servers: list[Server]) -> None:
    """All the time, until two lead a shard."""
    while True:
        led = [shard for server in servers for shard in server.led]
        assert len(led) == len(set(led)), led
        await asyncio.sleep(0.003)


async def test_whoever_is_asked_names_the_leader_of_the_runs_shard(start):
    first = start("a:1")
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await until(lambda: all(shard.leader for shard in first.shards.shards))
    theirs, ours = run_of(second.led[0]), run_of(first.led[0])
    with pytest.raises(NotLeader) as refusal:
        await first.shards.ask(StopRequest(run_id=theirs), OPERATOR)
    assert refusal.value.leader == "b:1"
    with pytest.raises(UnknownRun):
        await first.shards.ask(StopRequest(run_id=ours), OPERATOR)
    for run_id, leader in ((theirs, "b:1"), (ours, "a:1")):
        reply = await first.shards.ask(LeaderRequest(after=0, run_id=run_id), OPERATOR)
        assert (reply.leader, reply.leads) == (leader, leader == "a:1")


async def test_who_does_not_say_which_runs_leader_it_asks_for_is_told_of_none(start):
    server = start("a:1")
    await server.leads(4)
    asked = asyncio.create_task(server.shards.ask(LeaderRequest(after=0), OPERATOR))
    await asyncio.sleep(0)
    assert not asked.done()
    await server.end()
    assert await asked == LeaderReply(leadership=0)


async def test_it_is_ready_once_a_leader_is_known(start, gated):
    gated_client, gate = gated
    gate.shut()
    server = start("a:1", gated_client)
    await asyncio.sleep(0)
    assert server.shards.trouble == "no leader is known" and not server.shards.leads
    gate.open()
    await server.leads(4)
    assert server.shards.trouble is None and server.shards.leads
    await server.end()
    assert server.shards.trouble == "shutting down"


async def test_a_shard_whose_records_are_damaged_stands_still_alone(start, client, prefix, caplog):
    await client.transact([], [put(f"{prefix}/shards/2/records/x".encode(), b"not ours")])
    server = start("a:1")
    await server.leads(3)
    await until(lambda: any("shard 2: cannot be led by this server" in message for message in caplog.messages))
    assert not server.running.done() and server.led == [0, 1, 3]


async def test_a_shard_that_nobody_can_lead_keeps_no_other_from_moving(start, client, prefix, monkeypatch):
    monkeypatch.setattr(balance, "TAKEN_WITHIN_S", 0.5)
    await client.transact([], [put(f"{prefix}/shards/2/records/x".encode(), b"not ours")])
    await start("a:1").leads(3)
    await start("b:1").leads(1)


async def test_a_server_that_can_lead_no_shard_goes(start, client, prefix):
    for shard in range(SHARDS):
        await client.transact([], [put(f"{prefix}/shards/{shard}/records/x".encode(), b"not ours")])
    server = start("a:1")
    with pytest.raises(StoreBroken, match="is damaged"):
        async with asyncio.timeout(PATIENCE_S):
            await server.running


@pytest.mark.parametrize("what", ["servers/a:1", "leaders/3"])
async def test_what_a_hand_deletes_is_written_again(start, client, prefix, what):
    server = start("a:1")
    await server.leads(4)
    key = f"{prefix}/live/{what}".encode()
    found, _ = await client.get(key)
    await client.transact([], [delete(key)])
    again, _ = await client.get(key)
    async with asyncio.timeout(PATIENCE_S):
        while again is None:
            await asyncio.sleep(0.01)
            again, _ = await client.get(key)
    assert again.create_revision > found.create_revision
    await server.leads(4)


async def test_a_leadership_that_its_server_does_not_exercise_is_taken_away(presence, client):
    key = presence.leader_key(0)
    _, revision = await client.transact([], [put(key, b"a:1", presence.lease.id)])
    leadership = await won(ShardCandidacy(client, presence, 0))
    assert leadership.number > revision
    await leadership.resign()
    assert (await client.get(key))[0] is None


async def test_a_free_shard_is_left_for_a_moment_to_the_server_that_should_lead_it(presence, client, prefix):
    lease_id, _ = await client.grant(60)
    await client.transact([], [put(f"{prefix}/live/servers/b:1".encode(), b"", lease_id)])
    await until(lambda: presence.view is not None and len(presence.view.servers) == 2)
    assert [presence.view.preferred[shard] for shard in (0, 1)] == ["a:1", "b:1"]
    began = asyncio.get_running_loop().time()
    own, other = ShardCandidacy(client, presence, 0), ShardCandidacy(client, presence, 1)
    leadership, late = await asyncio.gather(won(own), won(other))
    assert late.number > leadership.number
    assert asyncio.get_running_loop().time() - began >= MOMENT_S
    for each in (leadership, late):
        await each.resign()
    await client.revoke(lease_id)


async def test_its_own_former_life_is_no_address_to_send_agents_to(presence, client):
    lease_id, _ = await client.grant(LEASE_S)
    await client.transact([], [put(presence.leader_key(0), b"a:1", lease_id)])
    followed: list[Leader | None] = []
    leadership = await won(ShardCandidacy(client, presence, 0), followed)
    assert set(followed) == {None}
    await leadership.resign()


async def won(candidacy: ShardCandidacy, followed: list[Leader | None] | None = None) -> ShardLeadership:
    async with asyncio.timeout(PATIENCE_S):
        return await candidacy.win(([] if followed is None else followed).append)


async def test_another_server_under_the_same_address_is_said(start, caplog):
    await start("a:1").leads(4)
    start("a:1")
    await until(
        lambda: "another server runs as a:1, too: give each its own address with --advertise" in caplog.messages
    )


async def test_a_cluster_keeps_its_number_of_shards(client, prefix):
    await shard_count.settle(client, prefix, 4)
    await shard_count.settle(client, prefix, 4)
    with pytest.raises(StoreBroken, match="has 4 shards: start this server with --shards 4, as the others"):
        await shard_count.settle(client, prefix, 5)


@pytest.mark.parametrize(("key", "value"), [("schema", b"2"), ("leader", b"a:1")])
async def test_a_cluster_without_shards_gets_none(client, prefix, key, value):
    await client.transact([], [put(f"{prefix}/{key}".encode(), value)])
    with pytest.raises(StoreBroken, match="has 1 shard: start this server with --shards 1"):
        await shard_count.settle(client, prefix, 4)
