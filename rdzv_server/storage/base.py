"""Stores of durable facts: the server writes every fact before it acts on it.

A store is an append-only list of records for each attempt of a run, and beside it the attempt's latest events. A
snapshot replaces the records; the events stay. Signs of life are never stored.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal, Protocol

from rdzv_protocol.events import RunEvent

from rdzv_server.core import journals
from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record
from rdzv_server.core.events import EventsDropped, RunCreated
from rdzv_server.core.journals import Key
from rdzv_server.words import storage as words

Change = Record | ForgetRun
"""Change of a store: write a record, or drop an attempt with its records, its events and the number of its last
delivered event. A record of `EventsDropped` drops these events as well; a store may keep some that are packed together
with later ones."""


class StoreBroken(Exception):
    """Failure after which the server cannot work with the store, in one line that says why and what to do."""


def of_another_format(place: str, found: str, own: int, or_do: str) -> StoreBroken:
    """Return the error for a store at `place` in another format. `found`: "format N", or any other text found there."""
    number = found.removeprefix("format ")
    age: Literal["an older", "a later", "another"]
    age = "another" if not number.isdecimal() else "an older" if int(number) < own else "a later"
    return StoreBroken(words.of_another_format(place, age, found, own, or_do))


def damaged(place: str, error: Exception, *, is_later: bool, restore: str) -> StoreBroken:
    """Return the error for a store at `place` that cannot be read. `is_later`: whether a later server may read it."""
    tell = words.later_or_damaged if is_later else words.damaged
    return StoreBroken(tell(place, _on_one_line(error), restore))


def internal_error(place: str, error: Exception) -> StoreBroken:
    """Return the error for a fault of this server in its work with the store at `place`, which is intact."""
    return StoreBroken(words.internal_error(place, _on_one_line(error)))


def check_beginnings(records: Iterable[Record]) -> None:
    """Raise `StoreBroken` if an attempt has records but not that of its creation: another program has deleted it."""
    begun = {journals.NODES, journals.NUMBERS}
    for record in records:
        if isinstance(record.fact, RunCreated):
            begun.add(record.key)
        elif record.key not in begun:
            raise StoreBroken(words.no_creation(*record.key))


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class StoreUnavailable(Exception):
    """Failure of a store that may pass, such as a full disk, with nothing written; in one line."""


class StoreSilent(StoreUnavailable):
    """Failure of a store that does not answer at all, or whose answer was lost: it may have written something."""


class StoreFenced(Exception):
    """Refusal to write, because another server may lead by now and this one must stop acting; in one line."""


class Store(Protocol):
    """Interface of a store. After a failed write, the server does nothing that follows from the write."""

    async def load(self) -> Sequence[Record]:
        """Read all records that are not forgotten; the records of one attempt are in the order of writing.

        Called once, first. Raises `StoreBroken` or `StoreUnavailable`.
        """

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        """Make the changes, write the events, and return once they would survive a power loss of this machine.

        A dropped attempt has no records or events in the same batch: see `changes_of`. Either all is done or nothing; a
        store that cannot ensure that may hold the beginning after a crash: changes in order, then events. Raises
        `StoreUnavailable`, after which the same batch must come next, `StoreBroken` or `StoreFenced`.
        """

    async def check(self) -> None:
        """Write something that does not change records, to learn whether the store still accepts writes.

        Raises the errors of `append`; after `StoreUnavailable` any batch may come next.
        """

    async def event_numbers(self) -> Mapping[Key, int]:
        """Return the number of the last event of each attempt that has any.

        Called after `load`; raises the same errors.
        """

    async def read_records(self, run_id: str, attempt: int) -> Sequence[Record]:
        """Return the records of the attempt in the order of writing. Called after `load`; raises the same errors."""

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        """Return up to `most` events of the attempt with numbers above `after`, the oldest first.

        A dropped event may be among them, unless `after` is at least its number. Fewer than `most` means that there are
        no more. Raises the errors of `load`.
        """

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        """Return the number that `write_delivered` last wrote for the attempt; 0 if none.

        Raises the errors of `load`.
        """

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        """Write the number of the last event that the webhook's receiver has acknowledged.

        Raises the errors of `append`.
        """

    async def compact(self, records: Sequence[Record]) -> None:
        """Replace all records of an attempt with these, its snapshot.

        Raises the errors of `append`; after `StoreUnavailable` nothing has changed.
        """

    async def close(self) -> None:
        """Close the store."""


def changes_of(effects: Sequence[Effect]) -> tuple[list[Change], list[RunEvent]]:
    """Return the changes of a batch, in order, and its events, without anything that the batch itself forgets or drops.

    The rest is about other attempts than what is dropped, since the number of an attempt is never used twice.
    """
    changes: list[Change] = []
    events: list[RunEvent] = []
    gone: set[Key] = set()
    dropped: dict[Key, int] = {}
    for effect in effects:
        if isinstance(effect, EmitEvent):
            events.append(effect.event)
        elif isinstance(effect, Record):
            changes.append(effect)
            if isinstance(effect.fact, EventsDropped):
                dropped[effect.key] = effect.fact.below
        elif isinstance(effect, ForgetRun):
            changes.append(effect)
            gone.add(effect.key)
    if gone:
        changes = [each for each in changes if isinstance(each, ForgetRun) or each.key not in gone]
        events = [event for event in events if (event.run_id, event.attempt) not in gone]
    if dropped:
        events = [event for event in events if event.number >= dropped.get((event.run_id, event.attempt), 0)]
    return changes, events


def drops_of(changes: Iterable[Change]) -> list[tuple[Key, int]]:
    """Return the attempts whose events the changes drop, each with the number of the first event that stays."""
    return [
        (change.key, change.fact.below)
        for change in changes
        if isinstance(change, Record) and isinstance(change.fact, EventsDropped)
    ]


class MemoryStore:
    """Store in memory that lasts as long as the process: for tests, and for `--standalone`."""

    def __init__(self) -> None:
        self._records: dict[Key, list[Record]] = {}
        self._events: dict[Key, deque[RunEvent]] = {}
        self._delivered: dict[Key, int] = {}

    async def load(self) -> Sequence[Record]:
        return [record for records in self._records.values() for record in records]

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        for change in changes:
            if isinstance(change, Record):
                self._records.setdefault(change.key, []).append(change)
            else:
                self._forget(change.key)
        for key, below in drops_of(changes):
            kept = self._events.get(key, deque())
            while kept and kept[0].number < below:
                kept.popleft()
        for event in events:
            self._events.setdefault((event.run_id, event.attempt), deque()).append(event)

    async def check(self) -> None:
        """Do nothing: memory accepts every write."""

    async def event_numbers(self) -> Mapping[Key, int]:
        return {key: events[-1].number for key, events in self._events.items() if events}

    async def read_records(self, run_id: str, attempt: int) -> Sequence[Record]:
        return list(self._records.get((run_id, attempt), ()))

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        events = self._events.get((run_id, attempt))
        if not events:
            return []
        begin = max(0, after + 1 - events[0].number)
        return list(islice(events, begin, begin + most))

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        return self._delivered.get((run_id, attempt), 0)

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        self._delivered[run_id, attempt] = number

    async def compact(self, records: Sequence[Record]) -> None:
        self._records[records[0].key] = list(records)

    async def close(self) -> None:
        pass

    def _forget(self, key: Key) -> None:
        self._records.pop(key, None)
        self._events.pop(key, None)
        self._delivered.pop(key, None)
