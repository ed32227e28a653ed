"""Stores of durable facts: every fact is written before it is acted on.

A store is an append-only list of records for each attempt of a run. Signs of life never reach it.
"""

from collections.abc import Sequence
from typing import Protocol

from rdzv_server.core.effects import Record


class StoreBroken(Exception):
    """The server cannot work with this store. One line that says why and what to do."""


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

    async def append(self, records: Sequence[Record]) -> None:
        """Write the records, and return once they would survive this machine's loss of power.

        All or none; a store that cannot promise it may hold a beginning of them after a crash. Raises
        `StoreUnavailable`, after which the same records must come next, `StoreBroken` or `StoreFenced`.
        """

    async def forget(self, run_id: str, attempt: int) -> None:
        """Drop an attempt's records. Raises likewise."""

    async def compact(self, records: Sequence[Record]) -> None:
        """These records stand for all of their attempt that were written before, which are dropped.

        Raises as `append` does; after `StoreUnavailable` it is as if nothing had been asked for.
        """

    async def close(self) -> None:
        """Let the store go."""


class MemoryStore:
    """Keeps the records for as long as the process lives: for tests, and for `--standalone`."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], list[Record]] = {}

    async def load(self) -> Sequence[Record]:
        return [record for records in self._records.values() for record in records]

    async def append(self, records: Sequence[Record]) -> None:
        for record in records:
            self._records.setdefault((record.run_id, record.attempt), []).append(record)

    async def forget(self, run_id: str, attempt: int) -> None:
        self._records.pop((run_id, attempt), None)

    async def compact(self, records: Sequence[Record]) -> None:
        self._records[records[0].run_id, records[0].attempt] = list(records)

    async def close(self) -> None:
        pass
