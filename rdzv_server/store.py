"""Where facts are written before they are acted on.

A store is an append-only list of records for each attempt of a run. Signs of life never reach it.
"""

from collections.abc import Sequence
from typing import Protocol

from rdzv_server.core.effects import Record


class Store(Protocol):
    """What the driver needs of a store. A failed write raises, and nothing that follows from it is acted on."""

    async def load(self) -> Sequence[Record]:
        """Every record that is not forgotten; those of one attempt in the order in which they were written."""

    async def append(self, records: Sequence[Record]) -> None:
        """Write the records, all or none, and return once they would survive this process."""

    async def forget(self, run_id: str, attempt: int) -> None:
        """Drop an attempt's records."""


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
