"""Stores of durable facts: every fact is written before it is acted on.

A store is an append-only list of records for each attempt of a run, and beside it the attempt's latest events: a
snapshot takes the place of the records, and the events stay. Signs of life never reach it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import Record

Key = tuple[str, int]
"""run_id and attempt."""

EVENTS_KEPT = 10_000
"""Events of an attempt that a store keeps at least, the latest; up to a tenth more until the oldest are dropped."""
EVENT_SLACK = EVENTS_KEPT // 10


WITHOUT_MEMORY = "to begin without any memory of its runs: their agents then form them anew, and their workers restart"


class StoreBroken(Exception):
    """The server cannot work with this store. One line that says why and what to do."""


def of_another_format(place: str, found: str, own: int, way_on: str) -> StoreBroken:
    """What is at `place` has a format that this server does not read. `found`: "format N", or whatever stands there."""
    number = found.removeprefix("format ")
    age = "another" if not number.isdecimal() else "an older" if int(number) < own else "a later"
    return StoreBroken(
        f"{place} was written by {age} version of rdzv-server ({found}, this one: format {own}), and is left as it is: "
        f"start that version, or {way_on}"
    )


def damaged(place: str, error: Exception, *, is_later: bool, way_on: str) -> StoreBroken:
    """What is at `place` cannot be read. `is_later`: it may be sound, for a later version of the server."""
    what = "was written by a later version of rdzv-server, or is damaged" if is_later else "is damaged"
    first = "Start that version, or restore" if is_later else "Restore"
    return StoreBroken(f"{place} {what} ({' '.join(str(error).split())}). {first} {way_on} {WITHOUT_MEMORY}")


class StoreUnavailable(Exception):
    """Nothing was written, and trying again may help: a full disk, say. One line."""


class StoreFenced(Exception):
    """Another server may lead by now: this one writes nothing any more, and must stop acting. One line."""


class Store(Protocol):
    """A store, as the driver needs it. After a failed write nothing that follows from it is acted on."""

    async def load(self) -> Sequence[Record]:
        """Every record that is not forgotten; those of one attempt in the order in which they were written.

        Called once, first. Raises `StoreBroken` or `StoreUnavailable`.
        """

    async def append(self, records: Sequence[Record], events: Sequence[RunEvent] = ()) -> None:
        """Write the records and the events, and return once they would survive this machine's loss of power.

        All or none; a store that cannot promise it may hold a beginning of them after a crash, the events last. Raises
        `StoreUnavailable`, after which the same records must come next, `StoreBroken` or `StoreFenced`.
        """

    async def event_numbers(self) -> Mapping[Key, int]:
        """Number of the last event of each attempt that has any. Raises as `load`, after which it is called."""

    async def read_events(self, run_id: str, attempt: int, after: int, most: int) -> Sequence[RunEvent]:
        """Events of the attempt with numbers above `after`, at most so many, the oldest first.

        Fewer only if there are no more. Raises as `load`.
        """

    async def read_delivered(self, run_id: str, attempt: int) -> int:
        """What `write_delivered` was told last of the attempt; 0: nothing. Raises as `load`."""

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        """Keep the number of the last event that the webhook's receiver has acknowledged. Raises as `append`."""

    async def forget(self, run_id: str, attempt: int) -> None:
        """Drop an attempt's records, its events and what has been delivered of them. Raises likewise."""

    async def compact(self, records: Sequence[Record]) -> None:
        """These records stand for all of their attempt that were written before, which are dropped.

        Raises as `append` does; after `StoreUnavailable` it is as if nothing had been asked for.
        """

    async def close(self) -> None:
        """Let the store go."""


class MemoryStore:
    """Keeps the records for as long as the process lives: for tests, and for `--standalone`."""

    def __init__(self) -> None:
        self._records: dict[Key, list[Record]] = {}
        self._events: dict[Key, deque[RunEvent]] = {}
        self._delivered: dict[Key, int] = {}

    async def load(self) -> Sequence[Record]:
        return [record for records in self._records.values() for record in records]

    async def append(self, records: Sequence[Record], events: Sequence[RunEvent] = ()) -> None:
        for record in records:
            self._records.setdefault((record.run_id, record.attempt), []).append(record)
        for event in events:
            key = event.run_id, event.attempt
            if key not in self._events:
                self._events[key] = deque(maxlen=EVENTS_KEPT)
            self._events[key].append(event)

    async def event_numbers(self) -> Mapping[Key, int]:
        return {key: events[-1].number for key, events in self._events.items()}

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

    async def forget(self, run_id: str, attempt: int) -> None:
        self._delivered.pop((run_id, attempt), None)
        self._records.pop((run_id, attempt), None)
        self._events.pop((run_id, attempt), None)

    async def compact(self, records: Sequence[Record]) -> None:
        self._records[records[0].run_id, records[0].attempt] = list(records)

    async def close(self) -> None:
        pass
