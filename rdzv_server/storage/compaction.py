"""Compaction: when an attempt has many records, a snapshot replaces them.

So the size of a store depends on the size of the run, not on its history. The same holds for the data that a server
reads at its start.
"""

from collections import Counter
from collections.abc import Iterable

from rdzv_server.core.effects import ForgetRun
from rdzv_server.core.events import NodeJoined, WorkersFailed
from rdzv_server.core.journals import Key
from rdzv_server.core.kernel.kept_failures import size_of
from rdzv_server.core.kernel.snapshot import PART_BYTES
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.base import Change, Store, StoreUnavailable

BEYOND = 1_000
"""Number of an attempt's records up to which no snapshot is written."""
FACTOR = 4
"""Ratio of an attempt's records to those of a snapshot at which one is written, so that writes grow by a quarter."""


class Compaction:
    """Compaction of a store: counts all attempts' records, and writes snapshots of attempts that have many."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._store = store
        self._lengths: Counter[Key] = Counter()
        self._due_at: dict[Key, int] = {}
        """Number of records at which each attempt is checked next."""
        self._due: set[Key] = set()

    def written(self, changes: Iterable[Change]) -> None:
        """Note that the store has made these changes."""
        for change in changes:
            key = change.key
            if isinstance(change, ForgetRun):
                self._forget(key)
                continue
            length = self._lengths[key] = self._lengths[key] + _weight(change.fact)
            if length >= self._due_at.get(key, BEYOND):
                self._due.add(key)

    def _forget(self, key: Key) -> None:
        self._lengths.pop(key, None)
        self._due_at.pop(key, None)
        self._due.discard(key)

    async def run(self, now: float) -> None:
        """Write the snapshots that are due; a snapshot without room can wait.

        Raises the errors of `Store.append`.
        """
        while self._due:
            key = self._due.pop()
            records = self._registry.snapshot(key, now)
            enough = max(BEYOND, FACTOR * len(records))
            if records and self._lengths[key] >= enough:
                try:
                    await self._store.compact(records)
                    self._lengths[key] = len(records)
                except StoreUnavailable:
                    enough += self._lengths[key]
            self._due_at[key] = enough


def _weight(fact: object) -> int:
    """Return the number of records that the record of a fact counts as.

    A failure, or a join with long texts, may be as long as many others.
    """
    match fact:
        case WorkersFailed(failure=failure):
            return 1 + size_of(failure) // PART_BYTES
        case NodeJoined(join=join):
            texts = (join.run_id, join.agent_id, join.node_id, join.sort_key, join.log_dir, join.unfit, *join.queries)
            return 1 + sum(map(len, texts)) // PART_BYTES
    return 1
