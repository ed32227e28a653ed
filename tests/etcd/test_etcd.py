"""The records in a real etcd: the next leader finds what was written, and the old one writes no more."""

import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from rdzv_server.core.effects import Effect, ForgetRun, Record
from rdzv_server.core.events import NodeJoined, WorkersFailed
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.base import StoreBroken, StoreFenced, StoreUnavailable, changes_of
from rdzv_server.words import etcd as words
from rdzv_server.words import storage as storage_words
from tests.support.etcd import Etcd, Shared, etcd_cluster, need_etcd, written
from tests.support.message_search import has_message, message_fields, part, pattern
from tests.support.scenario import RUN_ID, a_failure, a_join, durable, settings_of
from tests.unit.rdzv_server.storage.test_stores import RECORDS

need_etcd()

import grpc  # noqa: E402
from aetcd import rpc  # noqa: E402

from rdzv_server.storage.etcd import (  # noqa: E402
    FORMAT,
    MAX_OPERATIONS,
    EtcdStore,
    folder_of,
    read_attempts_with,
    read_journal,
    settle_format,
)
from rdzv_server.storage.etcd_client import EtcdClient, end_of  # noqa: E402


@contextmanager
def full(etcd: Etcd) -> Iterator[None]:
    """Let etcd reject writes as if its database had reached its quota."""
    with grpc.insecure_channel(etcd.addresses[0]) as channel:
        change = rpc.MaintenanceStub(channel).Alarm
        member = change(rpc.AlarmRequest(action=rpc.AlarmRequest.GET)).header.member_id
        change(rpc.AlarmRequest(action=rpc.AlarmRequest.ACTIVATE, memberID=member, alarm=rpc.NOSPACE))
        try:
            yield
        finally:
            change(rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=member, alarm=rpc.NOSPACE))


@pytest.fixture
async def store(shared: Shared) -> EtcdStore:
    """The leader's store, in use."""
    return await next_leader(shared)


async def next_leader(shared: Shared) -> EtcdStore:
    store: EtcdStore = await shared.lead()
    await store.load()
    return store


async def held(shared: Shared) -> list[Record]:
    """Return the records that the next leader finds."""
    return list(await (await shared.lead()).load())


def joins(count: int, size: int = 0, run_id: str = RUN_ID) -> list[Record]:
    role = "r" * size or "default"
    return [Record(run_id, 1, float(n), NodeJoined(a_join(f"n{n}", role=role), "10.0.0.9")) for n in range(count)]


async def transactions(client: EtcdClient, write: Awaitable[None]) -> int:
    """Return how many revisions of etcd the write took."""
    _, before = await client.get(b"-")
    await write
    return (await client.get(b"-"))[1] - before


async def test_a_batch_of_one_run_is_one_transaction_with_one_key(store, shared, client):
    assert await transactions(client, store.append(joins(500))) == 1
    assert len((await client.range(shared.records, end_of(shared.records)))[0]) == 1
    assert await held(shared) == joins(500)


async def test_no_run_id_leads_out_of_the_records(store, shared, client):
    names = ["../../leader", "/", "..", "a/00000001/0", "%2F", "\0", "{x}", " ", "\N{GHOST}" * 256]
    many = [record for name in names for record in joins(1, run_id=name)]
    await store.append(many)
    keys = [key.key.decode() for key in (await client.range(shared.records, end_of(shared.records)))[0]]
    assert [key.count("/") - shared.prefix.count("/") for key in keys] == [4] * len(names)
    assert await held(shared) == many
    await (await shared.lead()).append([ForgetRun("..", 1)])
    assert await held(shared) == [record for record in many if record.run_id != ".."]


@pytest.mark.parametrize(
    ("many", "least"),
    [
        ([record for n in range(MAX_OPERATIONS + 5) for record in joins(1, run_id=f"run {n}")], 2),
        (joins(6_000, size=100), 3),
    ],
    ids=["runs", "bytes"],
)
async def test_more_than_a_transaction_takes_is_written_in_several(store, shared, client, many, least):
    assert await transactions(client, store.append(many)) >= least
    assert await held(shared) == many


@pytest.mark.parametrize("changes", [RECORDS, [ForgetRun(RUN_ID, 1)]])
@pytest.mark.parametrize("next_leader", [True, False], ids=["another leads", "none leads"])
async def test_a_former_leader_writes_nothing(shared, changes, next_leader):
    old = await shared.lead()
    await old.load()
    await old.append(joins(2))
    if next_leader:
        await shared.lead()
    else:
        await shared.delete("/leader")
    with pytest.raises(StoreFenced, match=pattern(words.LEADERSHIP_OVER)):
        await old.append(changes)
    assert await held(shared) == joins(2)


@pytest.mark.parametrize("changes", [[], [ForgetRun("gone", 1)]], ids=["", "as it forgets a run"])
async def test_records_stay_in_order_if_etcd_has_lost_some_in_between(tmp_path, changes):
    """etcd comes back from a snapshot that still has the leader's key, and the leader writes before it notices."""
    with etcd_cluster(tmp_path, 1) as etcd:
        (member,) = etcd.members
        client = EtcdClient(etcd.addresses)
        shared = Shared(client, "/lost")
        leader = await shared.lead()
        await leader.append(joins(1, run_id="gone") + joins(2))
        member.kill()
        shutil.copytree(member.data, tmp_path / "snapshot")
        etcd.start()
        await written(etcd.addresses)
        await leader.append([*changes, *joins(5)[2:4]])
        member.kill()
        shutil.rmtree(member.data)
        shutil.copytree(tmp_path / "snapshot", member.data)
        etcd.start()
        await written(etcd.addresses)
        with pytest.raises(StoreFenced, match=pattern(words.RECORDS_LOST)):
            await leader.append(joins(5)[4:])
        assert await held(shared) == joins(1, run_id="gone") + joins(2)
        await client.close()


async def test_a_leader_writes_on_after_the_latest_records_are_forgotten_or_replaced(store, shared):
    await store.append(joins(3, run_id="other") + joins(2))
    await store.append([ForgetRun(RUN_ID, 1)])
    await store.append(joins(1))
    await store.compact(joins(1))
    await store.append(joins(2)[1:])
    await store.append([ForgetRun(RUN_ID, 1), ForgetRun("other", 1)])
    await store.append(joins(1))
    assert await held(shared) == joins(1)
    await (await next_leader(shared)).append(joins(2)[1:])
    assert await held(shared) == joins(2)


async def test_a_former_leader_does_not_finish_its_batch(store, shared, client, monkeypatch):
    written = 0

    async def transact(*request):
        nonlocal written
        answer = await EtcdClient.transact(client, *request)
        written += 1
        if written == 1:
            await shared.delete("/leader")
        return answer

    large = joins(6_000, size=100)
    monkeypatch.setattr(store, "_client", Wrapped(client, transact))
    with pytest.raises(StoreFenced):
        await store.append(large)
    found = await held(shared)
    assert 0 < len(found) < len(large)
    assert found == large[: len(found)], "a beginning of it, in order"


class Wrapped:
    """A client whose transactions the test controls."""

    def __init__(self, client: EtcdClient, transact: Callable) -> None:
        self._client = client
        self.transact = transact

    def __getattr__(self, name: str):
        return getattr(self._client, name)


@pytest.mark.parametrize("is_done", [True, False], ids=["the answer was lost", "the request was lost"])
async def test_an_interrupted_batch_continues_where_it_stopped(store, shared, client, monkeypatch, is_done):
    calls: list[Sequence] = []

    async def transact(compare, do):
        calls.append(do)
        if len(calls) == 2:
            if is_done:
                await client.transact(compare, do)
            raise StoreUnavailable("cannot use etcd: no answer in time")
        return await client.transact(compare, do)

    large = joins(6_000, size=100, run_id="large")
    monkeypatch.setattr(store, "_client", Wrapped(client, transact))
    with pytest.raises(StoreUnavailable):
        await store.append(large)
    await store.append(large)
    assert calls[2] == calls[1], "the same keys with the same values"
    await store.append(RECORDS)
    assert await held(shared) == large + RECORDS


async def test_a_run_of_which_earlier_attempts_are_forgotten_is_found_alive_by_the_next_leader(store, shared):
    registry = Registry(retention_s=2.0)

    async def carry_out(effects: list[Effect]) -> None:
        await store.append(*changes_of(effects))

    async def join(agent: str, lease_s: float, now: float) -> None:
        settings = settings_of("1", lease_s=lease_s, max_restarts=0)
        await carry_out(registry.handle(RUN_ID, NodeJoined(a_join(agent, settings=settings), "10.0.0.9"), now)[1])

    for agent, lease_s, now in (("a", 40.0, 0.0), ("b", 3.0, 1.0)):
        await join(agent, lease_s, now)
        await carry_out(registry.handle(RUN_ID, WorkersFailed(agent, 1, a_failure(agent)), now)[1])
    await carry_out(registry.pass_time(10.0))
    assert [run.attempt for run in registry.runs()] == [1, 2], "the later one waits for the earlier one"
    await join("c", 600.0, 11.0)
    for _ in range(2):  # the later one is due when the earlier one is gone
        await carry_out(registry.pass_time(60.0))
    (alive,) = registry.runs()
    assert set(alive.agents) == {"c"} and not alive.stage.is_end
    again = Registry(retention_s=2.0)
    for record in await held(shared):
        again.replay(record)
    assert durable(again.runs()[0]) == durable(alive)


# Errors are reported.


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("/records/run/00000001/0000000000000000", b"\xc1", words.no_records),
        ("/records/run/00000001/0000000000000000", b"\x91\x93\x00\xa4Boom\xc4\x01\x80", storage_words.unknown_kind),
        ("/records/run/1/x", b"\x90", words.no_records),
        ("/records/x", b"\x90", words.no_records),
    ],
)
async def test_foreign_records_are_reported_as_damage(shared, key, value, what):
    await shared.put(key, value)
    if what is words.no_records and value == b"\x90":
        await shared.put(key, b"\x91\x01")
    tell = storage_words.damaged if what is words.no_records else storage_words.later_or_damaged
    with pytest.raises(StoreBroken) as raised:
        await held(shared)
    why = message_fields(raised.value, tell, restore=words.SNAPSHOT_OR_DELETE)["why"]
    assert has_message(f"{why} ", what), "msgpack's errors may have no text"


async def test_another_servers_records_of_a_later_version_are_not_damage(shared):
    await shared.put("/records/run/00000001/0000000000000000", b"\x91\x93\x00\xa4Boom\xc4\x01\x80")
    with pytest.raises(StoreBroken, match=part(storage_words.later_or_damaged)):
        await read_journal(shared.client, folder_of(shared.prefix, "run", 1))
    with pytest.raises(StoreBroken, match=part(storage_words.later_or_damaged)):
        await read_attempts_with(shared.client, shared.prefix, "Boom")


async def test_a_cluster_keeps_its_format_and_its_number_of_shards(client, prefix):
    for _ in range(2):
        await settle_format(client, prefix, 4)
    with pytest.raises(StoreBroken, match=re.escape(words.of_other_shards(prefix, "4 shards", "4"))):
        await settle_format(client, prefix, 5)


@pytest.mark.parametrize(
    ("key", "value", "version"),
    [
        (
            "/format",
            f"format {FORMAT + 1}, 4 shards".encode(),
            {"age": "a later", "found": f"format {FORMAT + 1}"},
        ),
        ("/format", b"\xff", {"age": "another", "found": "\N{REPLACEMENT CHARACTER}"}),
    ],
)
async def test_a_cluster_of_another_format_asks_for_its_server_and_is_left_as_it_is(shared, key, value, version):
    before = await shared.put(key, value)
    with pytest.raises(StoreBroken, match=pattern(storage_words.of_another_format, own=FORMAT, **version)):
        await settle_format(shared.client, shared.prefix, 4)
    begin, end = f"{shared.prefix}/".encode(), f"{shared.prefix}0".encode()
    (found,), *_ = await shared.client.range(begin, end)
    assert (found.value, found.mod_revision) == (value, before)


async def test_etcd_that_is_not_there_is_named():
    client = EtcdClient(["127.0.0.1:1", "127.0.0.1:2"])
    with pytest.raises(StoreUnavailable, match=f"{part(words.cannot_use, etcd=client.name)}127.0.0.1:2: .*refused"):
        await EtcdStore(client, "/x", b"/leader", 1).load()
    await client.close()


async def test_a_check_notices_that_etcd_is_full(store, etcd, shared):
    await store.append(RECORDS)
    await store.check()
    with full(etcd), pytest.raises(StoreUnavailable, match=pattern(words.no_space, member=etcd.addresses[0])):
        await store.check()
    await store.check()
    assert len(await held(shared)) == len(RECORDS)


async def test_a_former_leader_learns_by_a_check_that_its_leadership_is_over(store, shared):
    await shared.lead()
    with pytest.raises(StoreFenced):
        await store.check()
