"""Elections by a real etcd: one leader at a time, and only a certain one."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.etcd.conftest import PATIENCE_S, until
from tests.support.etcd import etcd_cluster, need_etcd, written
from tests.support.message_search import has_message

need_etcd()

from rdzv_server.cluster.election import OWNER_FIRST_S, Election, Leadership  # noqa: E402
from rdzv_server.cluster.membership import READY, Leader, Membership  # noqa: E402
from rdzv_server.config import ServerConfig  # noqa: E402
from rdzv_server.storage.base import StoreSilent, StoreUnavailable  # noqa: E402
from rdzv_server.storage.etcd_client import EtcdClient, LeaseGone, put  # noqa: E402
from rdzv_server.words import cluster as words  # noqa: E402

LEASE_S = 1
KEPT_LEASE_S = 3
"""Lease that its server must keep for a few renewals. One of a second can end on a busy machine, where a renewal has
0.25 s."""
LONG_LEASE_S = 60
"""Lease that never ends during a test: a test that waits for its end fails."""


class Server:
    """One of several servers that compete to lead shard 0."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, config: ServerConfig) -> None:
        self.client = client
        self.membership = Membership(client, prefix, address, config)
        self.followed: list[Leader | None] = []
        self.over: asyncio.Task[str] | None = None
        self.leadership: Leadership | None = None
        self.lapses: list[float] = []
        """Seconds for which the leadership was not certain, each time."""
        self._running = asyncio.create_task(self.membership.run())
        self.election = Election(client, self.membership, 0)
        self.win = asyncio.create_task(self.wins(0))

    async def wins(self, shard: int) -> Leadership:
        election = self.election if shard == 0 else Election(self.client, self.membership, shard)
        leadership = await election.win(self.followed.append)
        if shard == 0:
            self.leadership = leadership
            self.over = asyncio.create_task(leadership.over(self.lapses.append))
        return leadership

    async def leads(self) -> Leadership:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.shield(self.win)

    async def follows(self, number: int = 0) -> Leader:
        """Return once it follows a leader: of that leadership, if one is given."""
        await until(lambda: bool(self.followed and self.followed[-1] and number in (0, self.followed[-1].number)))
        assert self.followed[-1]
        return self.followed[-1]

    async def end(self) -> None:
        tasks = [task for task in (self._running, self.win, self.over) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def start(client: EtcdClient, prefix: str, gates: object) -> AsyncIterator:
    servers = []

    def start(address: str, over: EtcdClient = client, *, lease_s: int = LONG_LEASE_S, **settings) -> Server:
        servers.append(Server(over, prefix, address, ServerConfig(leader_lease_s=lease_s, **settings)))
        return servers[-1]

    yield start
    for server in servers:
        await server.end()


@pytest.fixture
async def write_key(client: EtcdClient, prefix: str) -> Callable:
    """Return a function that writes keys on leases that are never renewed."""

    async def write(key: str, value: bytes, ttl_s: int = 60) -> int:
        lease_id, _ = await client.grant(ttl_s)
        await client.transact([], [put(f"{prefix}/live/{key}".encode(), value, lease_id)])
        return lease_id

    return write


async def test_a_single_server_leads_at_once_and_keeps_leading(start):
    server = start("a:1", lease_s=KEPT_LEASE_S)
    leadership = await server.leads()
    await asyncio.sleep(KEPT_LEASE_S * 1.5)
    await until(lambda: leadership.is_certain)  # a process that had no processor has to renew its lease first
    assert not server.over.done()


async def test_a_leader_that_resigns_is_followed_at_once_by_one_with_a_higher_number(start):
    first = await start("a:1").leads()
    others = [start("b:1"), start("c:1")]
    for other in others:
        await other.follows()
    await first.resign()
    assert not first.is_certain
    done, _ = await asyncio.wait({other.win for other in others}, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
    second = done.pop().result()
    assert second.number > first.number
    (loser,) = (other for other in others if not other.win.done())
    await loser.follows(second.number)


async def test_a_leader_that_is_cut_off_for_a_moment_keeps_leading(start, gated, client):
    gated_client, gate = gated
    server = start("a:1", gated_client, lease_s=KEPT_LEASE_S)
    first = await server.leads()
    # Another client keeps the lease alive, as etcd does while it has no leader of its own.
    found, _ = await client.get(server.membership.leader_key(0))
    gate.hold()
    while first.is_certain:
        await client.keep_alive(found.lease, 1.0)
        await asyncio.sleep(0.05)
    gate.release()
    async with asyncio.timeout(PATIENCE_S):
        while not first.is_certain:
            await client.keep_alive(found.lease, 1.0)
            await asyncio.sleep(0.05)
    assert server.lapses and min(server.lapses) > 0 and not server.over.done()


async def writes(client: EtcdClient, key: str) -> None:
    """Write a key once etcd answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(StoreUnavailable):
                await client.transact([], [put(key.encode(), b"")])
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("lost", ["all data", "latest members", "latest records"])
async def test_servers_elect_a_leader_again_when_etcd_has_lost_changes(tmp_path, caplog, lost):
    """Its revision has gone back, so a watch from a later one would report nothing for a long time.

    If it still holds the leader's lease, the leader would write later records behind older ones.
    """
    lease_s = LEASE_S if lost == "all data" else LONG_LEASE_S
    with etcd_cluster(tmp_path, 1) as etcd:
        servers = [
            Server(EtcdClient(etcd.addresses), "/lost", address, ServerConfig(leader_lease_s=lease_s))
            for address in ("a:1", "b:1")
        ]
        try:
            await until(lambda: any(server.win.done() for server in servers))
            leader, follower = sorted(servers, key=lambda server: not server.win.done())
            await follower.follows()
            (member,) = etcd.members
            if lost != "all data":
                member.kill()
                shutil.copytree(member.data, tmp_path / "snapshot")
                etcd.start()
            for number in range(3):
                if lost == "latest members":
                    await written(etcd.addresses, f"/lost/live/servers/{number}:1")
                    await until(lambda name=f"{number}:1": (view := leader.membership.view) and name in view.members)
                elif lost == "latest records":
                    await writes(leader.client, f"/lost/records/{number}")
            member.kill()
            shutil.rmtree(member.data)
            if lost != "all data":
                shutil.copytree(tmp_path / "snapshot", member.data)
            etcd.start()
            async with asyncio.timeout(PATIENCE_S):
                assert await leader.over in (words.LEASE_EXPIRED, words.LOST_CHANGES)
                assert not leader.leadership.is_certain
                leader.win = asyncio.create_task(leader.wins(0))
                await asyncio.wait({server.win for server in servers}, return_when="FIRST_COMPLETED")
        finally:
            for server in servers:
                await server.end()
                await server.client.close()
    assert has_message(caplog.text, words.lost_changes)


async def test_a_follower_that_is_cut_off_is_uncertain_about_the_leader_until_etcd_answers(start, gated, caplog):
    gated_client, gate = gated
    leader = await start("a:1").leads()
    follower = start("b:1", gated_client, lease_s=LEASE_S)
    await follower.follows()
    await until(lambda: follower.membership.is_current)
    with caplog.at_level("INFO", "rdzv_server"):
        gate.hold()
        await until(lambda: not follower.membership.is_current)
        await until(lambda: words.LEASE_CONSEQUENCE in caplog.text)
        gate.release()
        await until(lambda: follower.membership.is_current)
    assert (await follower.follows()).number == leader.number
    ended = [line for line in caplog.messages if line in (words.LEASE_RENEWED, words.LEASE_ENDED)]
    assert len(ended) == 1


async def test_a_leader_that_does_not_get_etcds_answers_is_replaced(start, gated):
    """etcd still gets its requests."""
    gated_client, gate = gated
    first = start("a:1", gated_client, lease_s=KEPT_LEASE_S)
    leadership = await first.leads()
    other = start("b:1", lease_s=KEPT_LEASE_S)
    await other.follows()
    gate.hold_answers()
    second = await other.leads()
    assert second.number > leadership.number and not leadership.is_certain


@pytest.mark.parametrize("how", ["the key is deleted", "the lease is revoked"])
async def test_deleting_its_key_ends_a_leadership_at_once(start, etcd, client, prefix, how):
    server = start("a:1")
    leadership = await server.leads()
    found, _ = await client.get(server.membership.leader_key(0))
    key = f"{prefix}/live/leaders/0"
    by_hand = ("del", key) if how == "the key is deleted" else ("lease", "revoke", f"{found.lease:x}")
    await asyncio.to_thread(etcd.ctl, *by_hand)
    async with asyncio.timeout(PATIENCE_S):
        await server.over
    assert not leadership.is_certain


async def test_compaction_of_what_etcd_remembers_ends_nothing(start, etcd, client, gated):
    gated_client, _ = gated
    server = start("a:1")
    leadership = await server.leads()
    follower = start("b:1", gated_client)
    await follower.follows()
    _, revision = await client.get(b"-")
    await asyncio.to_thread(etcd.ctl, "compact", str(revision))
    await asyncio.sleep(0)
    assert not server.over.done() and leadership.is_certain
    await leadership.resign()
    await follower.leads()


async def test_a_server_never_redirects_to_its_own_previous_incarnation(start, write_key):
    await write_key("leaders/0", b"a:1", LEASE_S)
    server = start("a:1")
    await server.leads()
    assert set(server.followed) == {None}


async def test_another_server_at_the_same_address_is_logged(start, caplog):
    await start("a:1", lease_s=LEASE_S).leads()
    start("a:1", lease_s=LEASE_S)
    await until(lambda: words.same_address("a:1") in caplog.messages)


async def test_a_leadership_that_its_server_does_not_use_is_revoked(start, client):
    server = start("a:1", shards=2)
    await server.leads()
    key = server.membership.leader_key(1)
    _, revision = await client.transact([], [put(key, b"a:1", server.membership.lease.id)])
    async with asyncio.timeout(PATIENCE_S):
        leadership = await server.wins(1)
    assert leadership.number > revision
    await leadership.resign()
    assert (await client.get(key))[0] is None


async def test_a_free_shard_is_left_for_a_moment_to_its_owner(start, write_key):
    await write_key("servers/b:1", READY)
    began = asyncio.get_running_loop().time()
    await start("a:1").leads()
    assert asyncio.get_running_loop().time() - began >= OWNER_FIRST_S


async def test_a_server_is_ready_after_a_while_and_owns_no_shards_before_if_another_is_ready(start):
    first = start("a:1", shards=4, rebalance_after_s=0.2)
    await until(lambda: ready(first) == {"a:1"})
    second = start("b:1", shards=4, rebalance_after_s=0.5)
    await until(lambda: second.membership.lease is not None)
    seen_at = asyncio.get_running_loop().time()
    await until(lambda: len(first.membership.view.members) == 2)
    assert set(first.membership.view.owners.values()) == {"a:1"}
    await until(lambda: ready(first) == {"a:1", "b:1"})
    assert asyncio.get_running_loop().time() - seen_at >= 0.4
    assert set(first.membership.view.owners.values()) == {"a:1", "b:1"}


def ready(server: Server) -> set[str]:
    view = server.membership.view
    return {address for address, member in view.members.items() if member.is_ready} if view else set()


async def test_servers_meet_through_any_member_that_answers(three, gates, start):
    """One of three members is dead for one server, another one for the other."""
    client, gate = await gates(three.addresses[0], three.addresses[1])
    gate.hold()
    first = start("a:1", client)
    client, gate = await gates(three.addresses[2], three.addresses[0])
    gate.hold()
    second = start("b:1", client)
    done, _ = await asyncio.wait({first.win, second.win}, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
    assert len(done) == 1
    await (second if first.win in done else first).follows(done.pop().result().number)


class Failing:
    """Client of an etcd that renews leases, but fails at every write."""

    def __init__(self, client: EtcdClient, error: StoreUnavailable) -> None:
        self._client = client
        self._error = error
        self.failed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def transact(self, *args: Any) -> Any:
        self.failed.set()
        raise self._error


FULL = StoreUnavailable("etcd: database space exceeded")


async def test_a_server_knows_why_it_cannot_take_a_free_shard(
    start: Callable[..., Server], client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("a:1")
    server.election._client = Failing(client, FULL)
    await until(lambda: server.election.outage.reason)
    assert server.election.outage.reason == "etcd: database space exceeded"
    assert server.membership.outage_reason is None and not server.win.done()
    other = start("b:1")
    await other.leads()
    await server.follows()
    await until(lambda: server.election.outage.reason is None)
    server.election._client = client
    await other.end()
    assert other.leadership
    await other.leadership.resign()
    await server.leads()


@pytest.mark.parametrize("error", [StoreSilent("etcd: no answer"), LeaseGone("no answer")], ids=["silence", "lease"])
async def test_a_shard_that_cannot_be_taken_while_etcd_is_silent_does_not_log_another_outage(
    start: Callable[..., Server], client: EtcdClient, caplog: pytest.LogCaptureFixture, error: StoreUnavailable
) -> None:
    """The membership and the lease use the same etcd, and say so once for all shards."""
    server = start("a:1")
    server.election._client = failing = Failing(client, error)
    async with asyncio.timeout(PATIENCE_S):
        await failing.failed.wait()
        failing.failed.clear()
        await failing.failed.wait()
    assert server.election.outage.reason is None and "no answer" not in caplog.text
    server.election._client = client
    await server.leads()
