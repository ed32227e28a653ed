"""Servers that share shards over a real etcd, in one process: which one leads what, and what follows."""

import asyncio
import gc
import random
import re
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.actions import CordonRequest, DrainRequest, StopRequest, UncordonRequest
from rdzv_protocol.errors import NotLeader, ServerUnavailable, UnknownNode, UnknownRun
from rdzv_protocol.messages import LeaderReply, LeaderRequest, LeaveRequest

from rdzv_server.words import etcd as etcd_words
from rdzv_server.words import nodes, operations
from tests.etcd.conftest import PATIENCE_S, until
from tests.support.etcd import need_etcd
from tests.support.message_search import has_message, pattern
from tests.support.scenario import Connection, a_join, settings_of

need_etcd()

from rdzv_server.cluster import sharding  # noqa: E402
from rdzv_server.cluster.election import OWNER_FIRST_S  # noqa: E402
from rdzv_server.cluster.membership import READY  # noqa: E402
from rdzv_server.cluster.placement import shard_of  # noqa: E402
from rdzv_server.cluster.sharding import Sharding  # noqa: E402
from rdzv_server.config import ServerConfig  # noqa: E402
from rdzv_server.core import journals  # noqa: E402
from rdzv_server.service import store_access  # noqa: E402
from rdzv_server.service.interface import OperatorRequest  # noqa: E402
from rdzv_server.storage.base import StoreBroken, StoreUnavailable  # noqa: E402
from rdzv_server.storage.etcd import folder_of  # noqa: E402
from rdzv_server.storage.etcd_client import EtcdClient, delete, end_of, put  # noqa: E402
from rdzv_server.words import cluster as words  # noqa: E402
from rdzv_server.words import service as service_words  # noqa: E402

LEASE_S = 1
KEPT_LEASE_S = 5
"""Lease that its server must keep until the test cuts it off. A lease of a second can end before, on a busy machine.
Each renewal has 0.25 s, for the event loop of all servers here and for etcd, which waits for the disk.
"""
LONG_LEASE_S = 60
"""Lease of servers that must not lose it: no busy machine delays a server for so long."""
SETTLE_S = 0.3
SHARDS = 4
OPERATOR = Connection("operator")


class Server:
    """One of the servers that share four shards."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, lease_s: int, settle_s: float) -> None:
        self._address = address
        config = ServerConfig(shards=SHARDS, leader_lease_s=lease_s, rebalance_after_s=settle_s)
        self.shards = Sharding(client, prefix, address, config)
        self.running = asyncio.create_task(self.shards.run())

    @property
    def led(self) -> list[int]:
        return [view.shard for view in self.shards.state().shards if view.leader == self._address]

    async def leads(self, count: int) -> None:
        """Return once it leads this number of shards."""
        await until(lambda: len(self.led) == count)

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.shards.close()


@pytest.fixture
async def start(client: EtcdClient, prefix: str, gates: object) -> AsyncIterator:
    servers = []

    def start(
        address: str, over: EtcdClient = client, *, lease_s: int = LONG_LEASE_S, settle_s: float = SETTLE_S
    ) -> Server:
        servers.append(Server(over, prefix, address, lease_s, settle_s))
        return servers[-1]

    yield start
    for server in servers:
        await server.end()


async def test_new_servers_get_their_shards_and_leaving_servers_hand_theirs_over(start):
    first = start("a:1")
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await first.leads(2)
    assert sorted(first.led + second.led) == list(range(SHARDS))
    await second.end()
    await first.leads(4)


FULL = StoreUnavailable("etcd: database space exceeded")


class Refusing:
    """Client of an etcd that answers, but does not accept writes of a shard or of its leader while `is_full`.

    `parts`: parts of the refused keys.
    """

    def __init__(self, client: EtcdClient, error: Exception = FULL, *parts: bytes) -> None:
        self._client = client
        self._error = error
        self._parts = parts or (b"/live/leaders/", b"/shards/")
        self._takes_deletes = False
        self.is_full = False
        self.refused: set[bytes] = set()

    def refuse_to_lead(self, shard: int) -> None:
        """Refuse the writes of a leader of this shard, except its resignation."""
        self._parts, self._takes_deletes, self.is_full = (
            (b"/live/leaders/%d" % shard, b"/shards/%d/" % shard),
            True,
            True,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def transact(self, compare: Sequence[Any], do: Sequence[Any]) -> tuple[bool, int]:
        key = do[0].request_put.key or (b"" if self._takes_deletes else do[0].request_delete_range.key)
        if self.is_full and any(part in key for part in self._parts):
            self.refused.add(key)
            raise self._error
        return await self._client.transact(compare, do)


async def test_a_full_etcd_is_logged_once_and_not_for_each_shard(start, client, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(store_access, "CHECK_S", 0.01)
    full = Refusing(client)
    full.is_full = True
    server = start("a:1", full)

    def logged(*lines: str) -> list[int]:
        return [sum(line in message for message in caplog.messages) for line in lines]

    await until(lambda: len(full.refused) == SHARDS)  # it cannot take over
    assert logged(words.CANNOT_TAKE_OVER, words.CAN_TAKE_OVER) == [1, 0]
    full.is_full = False
    await server.leads(SHARDS)
    assert logged(words.CANNOT_TAKE_OVER, words.CAN_TAKE_OVER) == [1, 1]
    full.refused.clear()
    full.is_full = True
    await until(lambda: len(full.refused) == SHARDS)  # it cannot write what it leads
    assert logged(service_words.NOTHING_DECIDED, service_words.STORE_IS_BACK) == [1, 0]
    full.is_full = False
    await until(lambda: logged(service_words.STORE_IS_BACK) == [1])
    assert logged(service_words.NOTHING_DECIDED, words.CANNOT_TAKE_OVER) == [1, 1]


async def test_the_next_outage_is_logged_after_a_leadership_has_ended_in_one(
    start, client, prefix, caplog, monkeypatch
):
    monkeypatch.setattr(store_access, "CHECK_S", 0.01)
    full = Refusing(client)
    server = start("a:1", full)
    await server.leads(SHARDS)
    full.is_full = True
    await until(lambda: len(full.refused) == SHARDS)
    await client.transact([], [delete(f"{prefix}/live/leaders/{shard}".encode()) for shard in range(SHARDS)])
    await server.leads(0)
    full.is_full = False
    await server.leads(SHARDS)
    caplog.clear()
    full.is_full = True
    await until(lambda: any(service_words.NOTHING_DECIDED in message for message in caplog.messages))


async def test_a_server_that_does_not_take_its_shard_gets_no_more_until_it_restarts(start, client, prefix, caplog):
    caplog.set_level("INFO")
    server = start("a:1")
    await server.leads(4)

    def left() -> int:
        return sum(words.hands_over_to("b:1") in message for message in caplog.messages)

    for life in (1, 2):
        lease_id, _ = await client.grant(60)
        await client.transact([], [put(f"{prefix}/live/servers/b:1".encode(), READY, lease_id)])
        await until(lambda life=life: left() == life * SHARDS // 2)
        await server.leads(4)
        await asyncio.sleep(2 * OWNER_FIRST_S)
        assert left() == life * SHARDS // 2 and len(server.led) == 4
        await client.revoke(lease_id)


async def test_a_server_that_restarts_quickly_does_not_move_shards(start, client, prefix):
    server = start("a:1")
    await server.leads(4)
    before = [view.leadership for view in server.shards.state().shards]
    for _ in range(3):
        flapping = start("b:1", settle_s=60.0)
        await until(lambda flapping=flapping: all(view.leader for view in flapping.shards.state().shards))
        await flapping.end()
    assert [view.leadership for view in server.shards.state().shards] == before


async def test_a_server_that_is_cut_off_stops_leading_in_time_and_gets_its_part_again(start, gated):
    gated_client, gate = gated
    first = start("a:1", gated_client, lease_s=KEPT_LEASE_S)
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await first.leads(2)
    lost, kept = first.led, second.led
    assert second.shards.state().peers == ["a:1"]
    gate.hold()
    while first.led:
        assert second.led == kept
        await asyncio.sleep(0.005)
    assert first.shards.state().unhealthy_reason == words.UNCERTAIN
    assert first.shards.state().peers == ["b:1"], "as last known"
    with pytest.raises(NotLeader):
        await first.shards.ask(OperatorRequest(StopRequest(run_id=run_of(lost[0])), "me"), OPERATOR)
    await second.leads(4)
    gate.release()
    await first.leads(2)
    await second.leads(2)


def run_of(shard: int) -> str:
    return next(f"run-{number}" for number in range(1_000) if shard_of(f"run-{number}", SHARDS) == shard)


async def test_two_servers_never_lead_one_shard_when_servers_are_cut_off_or_stopped(start, etcd, gates):
    ways = [await gates(etcd.addresses[0]) for _ in range(3)]
    servers = [start(f"{name}:1", client, lease_s=LEASE_S) for name, (client, _) in zip("abc", ways, strict=True)]
    looking = asyncio.create_task(look_at(servers))
    chance = random.Random(1)
    for _ in range(6):
        await until(lambda: sum(len(server.led) for server in servers) == SHARDS)
        victim = chance.randrange(3)
        client, gate = ways[victim]
        gate.hold()
        await asyncio.sleep(chance.uniform(0.0, 2.0 * LEASE_S))
        gate.release()
        await servers[victim].end()
        servers[victim] = start(f"{'abc'[victim]}:1", client, lease_s=LEASE_S)
    await until(lambda: sum(len(server.led) for server in servers) == SHARDS)
    looking.cancel()
    (found,) = await asyncio.gather(looking, return_exceptions=True)
    assert isinstance(found, asyncio.CancelledError), found


async def look_at(servers: list[Server]) -> None:
    """Check continuously until two servers lead a shard."""
    while True:
        led = [shard for server in servers for shard in server.led]
        assert len(led) == len(set(led)), led
        await asyncio.sleep(0.003)


async def test_every_server_names_the_leader_of_the_runs_shard(start):
    first = start("a:1")
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await until(lambda: all(shard.leader for shard in first.shards.state().shards))
    theirs, ours = run_of(second.led[0]), run_of(first.led[0])
    with pytest.raises(NotLeader) as refusal:
        await first.shards.ask(OperatorRequest(StopRequest(run_id=theirs), "me"), OPERATOR)
    assert refusal.value.leader == "b:1"
    with pytest.raises(UnknownRun):
        await first.shards.ask(OperatorRequest(StopRequest(run_id=ours), "me"), OPERATOR)
    for run_id, leader in ((theirs, "b:1"), (ours, "a:1")):
        reply = await first.shards.ask(LeaderRequest(after=0, run_id=run_id), OPERATOR)
        assert (reply.leader, reply.leads) == (leader, leader == "a:1")


async def test_a_request_for_a_leader_without_a_run_names_none(start):
    server = start("a:1")
    await server.leads(4)
    asked = asyncio.create_task(server.shards.ask(LeaderRequest(after=0), OPERATOR))
    await asyncio.sleep(0)
    assert not asked.done()
    await server.end()
    assert await asked == LeaderReply(leadership=0)


async def test_a_server_is_ready_once_it_knows_a_leader(start, gated):
    gated_client, gate = gated
    gate.hold()
    server = start("a:1", gated_client)
    await asyncio.sleep(0)
    assert server.shards.state().unhealthy_reason == words.NO_LEADER and not server.shards.state().leads
    gate.release()
    await server.leads(4)
    assert server.shards.state().unhealthy_reason is None and server.shards.state().leads
    await server.end()
    assert server.shards.state().unhealthy_reason == service_words.CLOSING


async def test_damaged_records_stop_only_their_own_shard(start, client, prefix, caplog):
    await client.transact([], [put(f"{prefix}/shards/2/records/x".encode(), b"not ours")])
    first = start("a:1")
    await first.leads(3)
    await until(lambda: has_message(caplog.text, words.shard_broken, shard=2))
    assert not first.running.done() and first.led == [0, 1, 3]
    second = start("b:1")
    await until(lambda: second.led and len(first.led) <= 2)


async def test_damaged_records_about_nodes_stop_no_shard(start, client, prefix, caplog):
    """All shards follow shard 0's cordons. Runs need a leader more than the latest cordons."""
    damaged = folder_of(f"{prefix}/shards/0", *journals.NODES) + b"%016x" % 1
    first = start("a:1")
    await first.leads(SHARDS)
    await client.transact([], [put(damaged, b"not ours")])
    damaged_at = client.revision
    await until(lambda: caplog.text.count(damaged.decode()) == SHARDS - 1)
    assert all(has_message(line, words.keeps_cordons) for line in caplog.messages if damaged.decode() in line)
    assert len(first.led) == SHARDS
    followers = [replica._follower for replica in first.shards._replicas if replica._follower]
    assert len(followers) == SHARDS - 1
    assert all(each._revision >= damaged_at for each in followers), "it would read and log the damaged record again"
    await client.transact([], [delete(damaged)])
    await first.shards.ask(OperatorRequest(CordonRequest(node_id="n"), "me"), OPERATOR)
    await until(lambda: all("n" in term.driver.registry.nodes.state.cordons for term in first.shards._terms()))


async def test_a_server_leads_a_shard_again_after_its_records_are_repaired(start, client, prefix, caplog, monkeypatch):
    monkeypatch.setattr(sharding, "LEAVE_S", 0.1)
    foreign = f"{prefix}/shards/2/records/x".encode()
    await client.transact([], [put(foreign, b"not ours")])
    server = start("a:1")
    await until(lambda: caplog.text.count(foreign.decode()) == 2)
    assert server.led == [0, 1, 3] and server.shards.state().unhealthy_reason is None
    await client.transact([], [delete(foreign)])
    await server.leads(SHARDS)
    assert not any(replica.broken for replica in server.shards._replicas)


async def test_a_shard_whose_leader_breaks_is_led_by_another_server_though_etcd_refused_its_resignation(
    start, client, caplog
):
    """etcd may ask for a password for a while: a key that stays behind would keep everybody from the shard."""
    refusing = Refusing(client, StoreBroken("etcd refuses: user name is empty"), b"/shards/2/", b"/live/leaders/2")
    first = start("a:1", refusing)
    await first.leads(4)
    refusing.is_full = True
    run_id = next(name for name in map(str, range(100)) if shard_of(name, SHARDS) == 2)
    with pytest.raises((NotLeader, ServerUnavailable)):
        await first.shards.ask(a_join("a", run_id=run_id, settings=settings_of("1")), Connection("a"))
    await until(lambda: has_message(caplog.text, words.shard_broken, shard=2))
    assert (await client.get(first.shards._membership.leader_key(2)))[0], "etcd has refused the resignation"
    with pytest.raises(NotLeader, match="user name is empty"):
        await first.shards.ask(a_join("a", run_id=run_id, settings=settings_of("1")), Connection("a"))
    second = start("b:1")
    await until(lambda: second.led)
    refusing.is_full = False
    await until(lambda: 2 in second.led)
    await until(lambda: {view.shard: view.leader for view in first.shards.state().shards}[2] == "b:1")


async def test_a_server_that_failed_with_each_shard_at_another_time_continues(start, client, caplog, monkeypatch):
    """It follows the leaders, and names them to agents."""
    monkeypatch.setattr(sharding, "LEAVE_S", 0.1)
    first = start("a:1", refusing := Refusing(client, StoreBroken("etcd refuses")), settle_s=LONG_LEASE_S)
    await first.leads(SHARDS)
    second = start("b:1", settle_s=LONG_LEASE_S)

    def is_left(shard: int) -> bool:
        """Return whether the other server leads the shard, and this one may try again."""
        is_candidate = first.shards._replicas[shard]._election.is_candidate
        return shard in second.led and is_candidate and has_message(caplog.text, words.shard_broken, shard=shard)

    for shard in range(SHARDS):
        refusing.refuse_to_lead(shard)
        with pytest.raises((NotLeader, ServerUnavailable)):
            await first.shards.ask(a_join("a", run_id=run_of(shard), settings=settings_of("1")), Connection("a"))
        await until(lambda shard=shard: first.running.done() or is_left(shard))
        assert not first.running.done()


async def test_a_server_that_cannot_lead_any_shard_exits(start, client, prefix):
    for shard in range(SHARDS):
        await client.transact([], [put(f"{prefix}/shards/{shard}/records/x".encode(), b"not ours")])
    server = start("a:1")
    with pytest.raises(StoreBroken, match=pattern(etcd_words.damaged)):
        async with asyncio.timeout(PATIENCE_S):
            await server.running


async def test_runs_of_a_leadership_that_has_ended_are_freed_without_a_collection(start, client, prefix):
    """Otherwise a server that leads a large run again and again holds it several times."""
    server = start("a:1")
    await server.leads(SHARDS)
    connection = Connection("agent")
    await server.shards.ask(a_join("agent", settings=settings_of("1")), connection)
    (machine,) = (
        term.driver.registry.machine_of("run", "agent") for term in server.shards._terms() if term.driver.runs()
    )
    kept = [weakref.ref(each) for each in (machine, connection)]
    del machine, connection
    gc.disable()
    try:
        await client.transact([], [delete(f"{prefix}/live/leaders/{shard}".encode()) for shard in range(SHARDS)])
        await until(lambda: [each() for each in kept] == [None, None])
    finally:
        gc.enable()


@pytest.mark.parametrize("what", ["servers/a:1", "leaders/3"])
async def test_keys_that_are_deleted_by_hand_are_written_again(start, client, prefix, what):
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
    state = server.shards.state()
    assert state.unhealthy_reason is None and state.leads, "ready again"


async def test_a_node_that_no_shard_knows_is_not_drained(start, etcd, gates):
    """Any server may lead its runs. A completed request is answered again, although the node is gone."""
    ways = [await gates(etcd.addresses[0]) for _ in range(2)]
    first = start("a:1", ways[0][0])
    await first.leads(4)
    second = start("b:1", ways[1][0])
    await second.leads(2)
    await first.leads(2)
    decides, other = (first, second) if 0 in first.led else (second, first)

    async def drain(node_id: str, request_id: str = "") -> str:
        request = DrainRequest(node_id=node_id, request_id=request_id)
        return (await decides.shards.ask(OperatorRequest(request, "me"), OPERATOR)).message

    for shard, node_id in ((decides.led[-1], "ours"), (other.led[-1], "theirs"), (other.led[0], "of-an-end")):
        settings = settings_of("1", lease_s=60.0)
        await by(shard, decides, other).shards.ask(a_join(node_id, run_id=run_of(shard), settings=settings), OPERATOR)
    await other.shards.ask(OperatorRequest(StopRequest(run_id=run_of(other.led[0])), "me"), OPERATOR)
    for unknown in ("of-an-end", "their", "run-1", "nobody"):
        with pytest.raises(UnknownNode, match=pattern(nodes.unknown_node(unknown))):
            await drain(unknown)
    assert decides.shards.state().cordons == []
    for request_id in ("1", "1", "2"):
        request = OperatorRequest(UncordonRequest(node_id="nobody", request_id=request_id), "me")
        done = await decides.shards.ask(request, OPERATOR)
        assert (done.changed, done.message) == (False, operations.not_cordoned("nobody"))
    for node_id in ("ours", "theirs"):
        assert await drain(node_id, node_id) == operations.drained(node_id, "")
    await until(lambda: "draining" in {agent.state for run in other.shards.runs() for agent in run.agents.values()})
    for node_id in ("ours", "theirs"):
        done = await decides.shards.ask(OperatorRequest(UncordonRequest(node_id=node_id), "me"), OPERATOR)
        assert done.changed
        run_id = next(run.run_id for run in (*decides.shards.runs(), *other.shards.runs()) if node_id in run.node_ids)
        leaves = LeaveRequest(run_id=run_id, agent_id=node_id, reason="drained")
        await by(shard_of(run_id, SHARDS), decides, other).shards.ask(leaves, OPERATOR)
        assert await drain(node_id, node_id) == operations.drained(node_id, "")
        with pytest.raises(UnknownNode):
            await drain(node_id)
    ways[0 if decides is first else 1][1].hold()
    with pytest.raises((ServerUnavailable, NotLeader)):
        await drain("nobody")


def by(shard: int, *servers: Server) -> Server:
    """Return the server that leads the shard."""
    return next(server for server in servers if shard in server.led)


async def test_every_shard_follows_decisions_about_a_node_also_under_its_next_leader(start):
    first = start("a:1")
    await first.leads(4)
    second = start("b:1")
    await second.leads(2)
    await first.leads(2)
    decides, other = (first, second) if 0 in first.led else (second, first)
    shard = other.led[0]
    run_id = run_of(shard)
    await other.shards.ask(a_join("n", run_id=run_id, settings=settings_of("1", lease_s=60.0)), OPERATOR)
    with pytest.raises(NotLeader):
        await other.shards.ask(OperatorRequest(DrainRequest(node_id="n"), "me"), OPERATOR)
    drain = OperatorRequest(DrainRequest(node_id="n", for_s=600.0, reason="why", request_id="1"), "me")
    await decides.shards.ask(drain, OPERATOR)
    await until(lambda: [agent.state for run in other.shards.runs() for agent in run.agents.values()] == ["draining"])
    (theirs,), (ours,) = other.shards.state().cordons, decides.shards.state().cordons
    assert (theirs.node_id, theirs.by, theirs.reason, theirs.until) == ("n", "me", "why", ours.until)
    await decides.shards.ask(OperatorRequest(UncordonRequest(node_id="n"), "me"), OPERATOR)
    await until(lambda: other.shards.state().cordons == [])
    await decides.shards.ask(OperatorRequest(CordonRequest(node_id="n"), "me"), OPERATOR)
    await other.end()
    await decides.leads(4)
    again = run_of(shard) + "-again"
    again = next(name for name in (f"{again}{number}" for number in range(100)) if shard_of(name, SHARDS) == shard)
    reply = await decides.shards.ask(a_join("n", run_id=again), OPERATOR)
    assert reply.directive.reason == "standing by: node n is cordoned"


PAGE = (Path(__file__).parents[2] / "docs/how-to/high-availability.md").read_text()
(TABLE,) = re.findall(r"\| key \| content \|\n((?:\|.*\n)+)", PAGE)
KINDS = re.findall(r"^\| `(\S+)`", TABLE, re.MULTILINE)
"""Kinds of keys that the page names. A part in capitals stands for any text without a slash."""


def kind_of(key: str) -> str:
    """Return the kind of a key; the key itself if the page does not name its kind."""
    return next((kind for kind in KINDS if re.fullmatch(re.sub("[A-Z]+", "[^/]+", kind), key)), key)


async def test_the_page_names_each_kind_of_key_that_servers_write(start, client, prefix, monkeypatch):
    monkeypatch.setattr(store_access, "CHECK_S", 0.01)
    server = start("a:1")
    await server.leads(SHARDS)
    await server.shards.ask(a_join("n", settings=settings_of("1", lease_s=60.0)), OPERATOR)
    begin, found = f"{prefix}/".encode(), set[str]()
    async with asyncio.timeout(PATIENCE_S):
        while not any(key.endswith("/checked") for key in found):
            keys = await client.range(begin, end_of(begin))
            found = {each.key.decode().removeprefix(f"{prefix}/") for each in keys[0]}
    assert {kind_of(key) for key in found} == set(KINDS)
