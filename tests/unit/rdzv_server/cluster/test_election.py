"""Who leads, by a real etcd: one at a time, and none without being sure."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.etcd import Etcd, Gate, need_etcd

need_etcd()

from rdzv_server.cluster.election import Candidacy, Leader, Leadership  # noqa: E402
from rdzv_server.storage.etcd import leader_key  # noqa: E402
from rdzv_server.storage.etcd_client import EtcdClient  # noqa: E402

PATIENCE_S = 20.0
LEASE_S = 1


class Server:
    """One of several that want to lead."""

    def __init__(self, client: EtcdClient, prefix: str, address: str) -> None:
        self.followed: list[Leader | None] = []
        self._news = asyncio.Event()
        candidacy = Candidacy(client, prefix, address, LEASE_S)
        self.win = asyncio.create_task(candidacy.win(self._follow))

    def _follow(self, leader: Leader | None) -> None:
        self.followed.append(leader)
        self._news.set()
        self._news = asyncio.Event()

    async def leads(self) -> Leadership:
        async with asyncio.timeout(PATIENCE_S):
            return await self.win

    async def follows(self, number: int = 0) -> Leader:
        """Return once it follows somebody: of that leadership, if one is given."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.followed or self.followed[-1] is None or number not in (0, self.followed[-1].number):
                await self._news.wait()
        return self.followed[-1]

    async def end(self) -> None:
        self.win.cancel()
        (result,) = await asyncio.gather(self.win, return_exceptions=True)
        if isinstance(result, Leadership):
            await result.resign()


@pytest.fixture
async def start(client: EtcdClient, prefix: str, gated: object) -> AsyncIterator:
    servers = []

    def start(address: str, over: EtcdClient = client) -> Server:
        servers.append(Server(over, prefix, address))
        return servers[-1]

    yield start
    for server in servers:
        await server.end()


@pytest.fixture
async def gated(etcd: Etcd) -> AsyncIterator[tuple[EtcdClient, Gate]]:
    """A client whose way to etcd can be shut."""
    async with Gate(etcd.addresses[0]) as gate:
        client = EtcdClient([gate.address])
        yield client, gate
        gate.open()
        await client.close()


async def test_alone_it_leads_at_once_and_goes_on_leading(start):
    leadership = await start("a:1").leads()
    assert leadership.is_certain
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LEASE_S * 2.5):
            await leadership.over()
    assert leadership.is_certain


async def test_the_others_are_told_who_leads(start):
    leadership = await start("a:1").leads()
    assert await start("b:1").follows() == Leader("a:1", leadership.number)


async def test_who_resigns_is_followed_at_once_by_one_other_with_a_higher_number(start):
    first = await start("a:1").leads()
    others = [start("b:1"), start("c:1")]
    for other in others:
        await other.follows()
    began = time.monotonic()
    await first.resign()
    assert not first.is_certain
    done, _ = await asyncio.wait({other.win for other in others}, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
    assert time.monotonic() - began < LEASE_S
    second = done.pop().result()
    assert second.number > first.number
    (loser,) = (other for other in others if not other.win.done())
    await loser.follows(second.number)


async def test_a_leader_that_is_cut_off_stops_before_another_begins(start, gated):
    client, gate = gated
    first = await start("a:1", client).leads()
    second = start("b:1")
    await second.follows()
    gate.shut()
    while first.is_certain:
        assert not second.win.done()
        await asyncio.sleep(0.005)
    assert not second.win.done()
    await second.leads()
    gate.open()
    async with asyncio.timeout(PATIENCE_S):
        assert "lease" in await first.over() or "key" in await first.over()
    assert not first.is_certain


async def test_a_leader_that_is_cut_off_for_a_moment_goes_on_leading(start, gated, client, prefix):
    gated_client, gate = gated
    first = await start("a:1", gated_client).leads()
    # The lease is kept alive by another hand: as etcd does while it has no leader of its own.
    found, _ = await client.get(leader_key(prefix))
    gate.shut()
    while first.is_certain:
        await client.keep_alive(found.lease, 1.0)
        await asyncio.sleep(0.05)
    gate.open()
    async with asyncio.timeout(PATIENCE_S):
        while not first.is_certain:
            await client.keep_alive(found.lease, 1.0)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["the key is deleted", "the lease is revoked"])
async def test_a_leadership_ends_at_once_by_an_operators_hand(start, etcd, client, prefix, how):
    leadership = await start("a:1").leads()
    over = asyncio.create_task(leadership.over())
    found, _ = await client.get(leader_key(prefix))
    by_hand = ("del", f"{prefix}/leader") if how == "the key is deleted" else ("lease", "revoke", f"{found.lease:x}")
    await asyncio.to_thread(etcd.ctl, *by_hand)
    async with asyncio.timeout(PATIENCE_S):
        await over
    assert not leadership.is_certain


async def test_compaction_of_what_etcd_remembers_ends_nothing(start, etcd, client, gated):
    gated_client, _ = gated
    leadership = await start("a:1").leads()
    over = asyncio.create_task(leadership.over())
    follower = start("b:1", gated_client)
    await follower.follows()
    _, revision = await client.get(b"-")
    await asyncio.to_thread(etcd.ctl, "compact", str(revision))
    await asyncio.sleep(0)
    assert not over.done() and leadership.is_certain
    await leadership.resign()
    await follower.leads()
    over.cancel()
    await asyncio.gather(over, return_exceptions=True)


async def test_its_own_former_life_is_no_address_to_send_agents_to(start, client, prefix):
    from aetcd import rpc

    lease_id, _ = await client.grant(LEASE_S)
    put = rpc.PutRequest(key=leader_key(prefix), value=b"a:1", lease=lease_id)
    await client.transact([], [rpc.RequestOp(request_put=put)])
    server = start("a:1")
    await server.leads()
    assert set(server.followed) == {None}


async def test_another_server_under_the_same_address_is_said(start, caplog):
    await start("a:1").leads()
    start("a:1")
    said = asyncio.Event()
    caplog.handler.addFilter(lambda record: said.set() or True)
    async with asyncio.timeout(PATIENCE_S):
        await said.wait()
    assert "another server leads as a:1, too: give each its own address with --advertise" in caplog.messages
