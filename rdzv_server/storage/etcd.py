"""Records in etcd, for several servers: `--store etcd://`. Only the leader of a shard writes its records.

    PREFIX/format                                     the version of the records, and the number of shards
    PREFIX/shards/SHARD/records/RUN/ATTEMPT/NUMBER    some consecutive records of an attempt, in the numbers' order
    PREFIX/shards/SHARD/checked                       empty; written to learn whether etcd still accepts writes
    PREFIX/shards/SHARD/events/RUN/ATTEMPT/LAST       some consecutive events, under the number of the last one;
                                                      under 0 the number of the last one that has been delivered

Every write compares the create revision of the leader's key with its own leadership. That is the fence. Once another
server leads, or none does, nothing more is written, even if a request of the old leader comes very late. A batch also
needs the latest key of the batch before it. If that key is gone, etcd has been started from an older snapshot: later
records would stand behind older ones, without those in between.

A batch that is too large for one transaction is split into several, in order. If the server dies in between, the
beginning of the batch remains. That is a state that the run was in, since each record is a fact applied on its own.
No agent or operator knows anything about the batch: those waiting for the rest have no answer and ask again. A snapshot
that has only begun does not count (`record_codec.settled`).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any
from urllib.parse import quote, unquote

import msgpack
from rdzv_protocol.events import RunEvent
from rdzv_protocol.text import count

from rdzv_server.core.effects import ForgetRun, Record
from rdzv_server.core.journals import Key
from rdzv_server.storage.base import (
    Change,
    StoreBroken,
    StoreFenced,
    StoreUnavailable,
    damaged,
    drops_of,
    of_another_format,
)
from rdzv_server.storage.etcd_client import EtcdClient, delete, end_of, is_free, is_made_at, is_there, put
from rdzv_server.storage.record_codec import (
    MalformedRecord,
    OfLaterVersion,
    pack,
    pack_events,
    settled,
    unpack,
    unpack_events,
)
from rdzv_server.words import etcd as words

FORMAT = 4
"""Version of the keys and of the records; the server refuses a cluster of any other version."""
MAX_OPERATIONS = 128
"""Most operations of a transaction, etcd's own limit."""
MAX_BYTES = 1 << 20
"""Most bytes of a transaction's values. etcd's own limit for a request is 1.5 MiB."""
CHUNK_BYTES = 1 << 18
"""Bytes of a key's value after which further records go into the next key."""
PAGE_KEYS = 32
EVENTS_OF_KEY = 64
"""Most events that share a key. With the evidence of as many failures, they are as large as a chunk of records."""
KEYS_AT_ONCE = 10_000
"""Most names of keys that are read at once, without their values."""


def format_key(prefix: str) -> bytes:
    """Return the key of a cluster's format, which every server may read."""
    return f"{prefix}/format".encode()


async def settle_format(client: EtcdClient, prefix: str, shards: int) -> None:
    """Write a new cluster's format, or check it; before and after, check that etcd's members form one cluster.

    Raises `StoreBroken` if it is another format, or if they do not, or `StoreUnavailable`.
    """
    key, value = format_key(prefix), f"format {FORMAT}, {count(shards, 'shard')}"
    await client.identify(key)
    await client.transact([is_free(key)], [put(key, value.encode())])
    await client.verify()
    found, _ = await client.get(key)
    text = found.value.decode(errors="replace") if found else ""
    if text == value:
        return
    version, _, there = text.partition(", ")
    if version == f"format {FORMAT}":
        raise StoreBroken(words.of_other_shards(prefix, there, there.split()[0]))
    place = words.place(client.name, prefix)
    raise of_another_format(place, version or "no format", FORMAT, words.GIVE_OWN_CLUSTER)


class EtcdStore:
    """Store of one leadership of a shard. `key`: the leader's key, whose create revision is the leadership's number."""

    def __init__(self, client: EtcdClient, prefix: str, key: bytes, leadership: int) -> None:
        self._client = client
        self._root = prefix
        self._key, self._leadership = key, leadership
        self._fence = is_made_at(key, leadership)
        self._next_number = 0
        self._batch: Sequence[Change] | None = None
        self._unwritten: list[list[Any]] = []
        """Transactions of the current batch that have not been made yet."""
        self._latest = b""
        """Key of the latest records or events that were written, if etcd should still have it. Keys are never used
        twice."""

    async def load(self) -> Sequence[Record]:
        folder = f"{self._root}/records/".encode()
        chunks: list[tuple[int, bytes, list[Record]]] = []
        try:
            async for keys, _ in self._client.pages(folder, end_of(folder), PAGE_KEYS):
                for key in keys:
                    number, records = _unpack(key.key, key.value)
                    chunks.append((number, key.key, records))
                    await asyncio.sleep(0)  # the lease is renewed meanwhile
        except MalformedRecord as error:
            place, is_later = words.place(self._client.name, self._root), isinstance(error, OfLaterVersion)
            raise damaged(place, error, is_later=is_later, restore=words.SNAPSHOT_OR_DELETE) from error
        attempts: dict[Key, list[Record]] = {}
        for number, key, records in sorted(chunks, key=itemgetter(0)):
            self._next_number, self._latest = number + 1, key
            for record in records:
                attempts.setdefault(record.key, []).append(record)
        return [record for of_attempt in attempts.values() for record in settled(of_attempt)]

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        """Make the changes in order, then write the events.

        After `StoreUnavailable`, the beginning of them may be written, and the same batch must come next: it continues
        where it stopped. Raises `StoreFenced` if this leadership is over, or if etcd has lost the latest batch.
        """
        if self._batch is None:
            self._batch, self._unwritten = changes, list(self._plan(changes, events))
        assert self._batch is changes, "a batch that was not written must be tried again before the next one"
        while self._unwritten:
            await self._write(self._unwritten[0])
            self._latest = _latest(self._latest, self._unwritten.pop(0))
        self._batch = None

    async def check(self) -> None:
        await self._write([put(f"{self._root}/checked".encode(), b"")])

    async def event_numbers(self) -> Mapping[Key, int]:
        folder, numbers = f"{self._root}/events/".encode(), dict[Key, int]()
        async for keys, _ in self._client.pages(folder, end_of(folder), KEYS_AT_ONCE, keys_only=True):
            for key in keys:
                *_, run, attempt, last = key.key.decode().split("/")
                if int(last, 16):
                    numbers[unquote(run), int(attempt)] = int(last, 16)
        return numbers

    async def read_records(self, run_id: str, attempt: int) -> Sequence[Record]:
        records, _ = await read_journal(self._client, self._folder(run_id, attempt))
        return settled(records)

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        folder, found = self._folder(run_id, attempt, "events"), list[RunEvent]()
        pages = self._client.pages(folder + b"%016x" % (after + 1), end_of(folder), PAGE_KEYS)
        async with aclosing(pages):
            async for keys, _ in pages:
                for key in keys:
                    found += [event for event in unpack_events(key.value) if event.number > after]
                if len(found) >= most:
                    break
        return found[:most]

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        found, _ = await self._client.get(self._folder(run_id, attempt, "events") + b"%016x" % 0)
        return int(found.value) if found else 0

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        await self._write([put(self._folder(run_id, attempt, "events") + b"%016x" % 0, b"%d" % number)])

    async def compact(self, records: Sequence[Record]) -> None:
        """Write the snapshot, then drop what it replaces.

        After a crash in between, both are there, or the beginning of one.
        """
        first = self._next_number
        try:
            await self.append(records)
        except StoreUnavailable:
            self._batch, self._unwritten = None, []
            raise
        folder = self._folder(*records[0].key)
        await self._write([delete(folder, folder + b"%016x" % first)])  # not the latest key, which is of the snapshot

    async def close(self) -> None:
        """Do nothing: the owner of the client closes it."""

    async def _write(self, operations: Sequence[Any]) -> None:
        has_latest = [is_there(self._latest)] if self._latest else []
        done, _ = await self._client.transact([self._fence, *has_latest], operations)
        if not done:
            found, _ = await self._client.get(self._key)
            still_leads = found is not None and found.create_revision == self._leadership
            raise StoreFenced(words.RECORDS_LOST if still_leads else words.LEADERSHIP_OVER)

    def _plan(self, changes: Sequence[Change], events: Sequence[RunEvent]) -> Iterator[list[Any]]:
        """Split a batch into transactions, each as large as etcd allows; the events come last."""
        transaction: list[Any] = []
        size = 0
        operations = chain(self._operations(changes), self._event_deletes(changes), self._event_operations(events))
        for operation, more in operations:
            if transaction and (len(transaction) == MAX_OPERATIONS or size + more > MAX_BYTES):
                yield transaction
                transaction, size = [], 0
            transaction.append(operation)
            size += more
        yield transaction

    def _operations(self, changes: Sequence[Change]) -> Iterator[tuple[Any, int]]:
        """Yield operations that make the changes, each with its size.

        Consecutive records of one attempt share a key.
        """
        for (kind, run_id, attempt), group in groupby(changes, lambda each: (type(each), each.run_id, each.attempt)):
            if kind is ForgetRun:
                yield from self._deletes(run_id, attempt)
            else:
                yield from self._puts(run_id, attempt, [each for each in group if isinstance(each, Record)])

    def _puts(self, run_id: str, attempt: int, records: Sequence[Record]) -> Iterator[tuple[Any, int]]:
        packed = [(record.at, *pack(record)) for record in records]
        while packed:
            sizes = accumulate(len(body) for _, _, body in packed)
            count = max(1, sum(size <= CHUNK_BYTES for size in sizes))
            key, value = self._folder(run_id, attempt) + b"%016x" % self._next_number, msgpack.packb(packed[:count])
            yield put(key, value), len(key) + len(value)
            self._next_number += 1
            packed = packed[count:]

    def _deletes(self, run_id: str, attempt: int) -> Iterator[tuple[Any, int]]:
        for kind in ("records", "events"):
            folder = self._folder(run_id, attempt, kind)
            yield delete(folder, end_of(folder)), 2 * len(folder)

    def _event_deletes(self, changes: Sequence[Change]) -> Iterator[tuple[Any, int]]:
        """Yield operations that delete the keys whose events are all dropped, each with its size."""
        for (run_id, attempt), below in drops_of(changes):
            folder = self._folder(run_id, attempt, "events")
            yield delete(folder + b"%016x" % 1, folder + b"%016x" % below), 2 * len(folder)

    def _event_operations(self, events: Sequence[RunEvent]) -> Iterator[tuple[Any, int]]:
        """Yield operations that write the events, each with its size."""
        for run_id, attempt, _, last, body in pack_events(events, EVENTS_OF_KEY):
            folder = self._folder(run_id, attempt, "events")
            yield put(folder + b"%016x" % last, body), len(folder) + len(body)

    def _folder(self, run_id: str, attempt: int, kind: str = "records") -> bytes:
        return folder_of(self._root, run_id, attempt, kind)


def _latest(latest: bytes, operations: Sequence[Any]) -> bytes:
    """Return the latest key after these operations have been done; empty if they have deleted it."""
    for operation in operations:
        if operation.HasField("request_put"):
            latest = operation.request_put.key
        elif operation.request_delete_range.key <= latest < operation.request_delete_range.range_end:
            latest = b""
    return latest


def folder_of(root: str, run_id: str, attempt: int, kind: str = "records") -> bytes:
    """Return the prefix of an attempt's keys below `root`. `kind`: "records" or "events"."""
    return f"{root}/{kind}/{quote(run_id, safe='')}/{attempt:08d}/".encode()


async def read_journal(client: EtcdClient, folder: bytes) -> tuple[list[Record], int]:
    """Read a journal that another server writes. Return its records, and etcd's revision when the reading began.

    Raises `StoreBroken` or `StoreUnavailable`.
    """
    chunks: list[tuple[int, list[Record]]] = []
    revision = 0
    try:
        async for keys, now in client.pages(folder, end_of(folder), PAGE_KEYS):
            chunks += [_unpack(key.key, key.value) for key in keys]
            revision = revision or now
    except MalformedRecord as error:
        raise _unreadable(words.place(client.name, folder.decode()), error) from error
    return [record for _, records in sorted(chunks, key=itemgetter(0)) for record in records], revision


async def read_attempts_with(client: EtcdClient, root: str, text: str) -> list[list[Record]]:
    """Read the records of each attempt of a shard that mentions `text`, led here or elsewhere; only few are decoded.

    Raises `StoreBroken` or `StoreUnavailable`.
    """
    folders: dict[bytes, list[Any]] = {}
    mentions: set[bytes] = set()
    records, word = f"{root}/records/".encode(), text.encode()
    async for keys, _ in client.pages(records, end_of(records), PAGE_KEYS):
        for key in keys:
            folder = key.key.rpartition(b"/")[0]
            folders.setdefault(folder, []).append(key)
            if word in key.value:
                mentions.add(folder)
        for folder in [*folders][:-1]:  # read to its end
            if folder not in mentions:
                del folders[folder]
    try:
        chunks = {folder: [_unpack(key.key, key.value) for key in folders[folder]] for folder in sorted(mentions)}
    except MalformedRecord as error:
        raise _unreadable(words.place(client.name, root), error) from error
    return [settled([record for _, records in each for record in records]) for each in chunks.values()]


def _unreadable(place: str, error: MalformedRecord) -> StoreBroken:
    """Return the error for another server's records that this one cannot read."""
    if isinstance(error, OfLaterVersion):
        return damaged(place, error, is_later=True, restore=words.SNAPSHOT_OR_DELETE)
    return StoreBroken(words.damaged(place, error))


def _unpack(key: bytes, value: bytes) -> tuple[int, list[Record]]:
    """Return the number of a key, and the records in its value. Raises `MalformedRecord`."""
    try:
        *_, run, attempt, number = key.decode().split("/")
        where = unquote(run), int(attempt)
        parts = [(*where, float(at), str(kind), bytes(body)) for at, kind, body in msgpack.unpackb(value)]
        return int(number, 16), [unpack(*part) for part in parts]
    except MalformedRecord:
        raise
    except Exception as error:  # msgpack's own errors, and any that foreign bytes cause in it
        raise MalformedRecord(words.no_records(key.decode(errors="replace"), error)) from None
