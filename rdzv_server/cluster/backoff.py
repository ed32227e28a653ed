"""Whom a server leaves shards to: those that have been there for a while, a longer one each time that one fails.

So a server that comes and goes, or that does not take what it is left, cannot make shards go to and fro. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass

LONGEST_S = 600.0
"""No server is waited for longer; and one that stayed for so long has made up for what was before."""
MOST_DOUBLINGS = 16


@dataclass(slots=True)
class _Record:
    since: float
    """When it came, failed last, or went."""
    is_here: bool = True
    failures: int = 0


class Trust:
    """What one server knows of the others. `settle_s`: how long the first while is."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._records: dict[str, _Record] = {}

    def see(self, servers: Collection[str], now: float) -> None:
        """These are there now, and no others."""
        for server in servers:
            record = self._records.setdefault(server, _Record(now))
            if not record.is_here:
                record.since, record.is_here = now, True
        for server, record in list(self._records.items()):
            if server not in servers:
                self._miss(server, record, now)

    def failed(self, server: str, now: float) -> None:
        """It has not taken what it was left."""
        if record := self._records.get(server):
            record.since, record.failures = now, record.failures + 1

    def trusts(self, server: str, now: float) -> bool:
        return now >= self.since(server)

    def since(self, server: str) -> float:
        """From when on it is trusted, if nothing happens."""
        record = self._records.get(server)
        if record is None or not record.is_here:
            return float("inf")
        wait_s: float = min(LONGEST_S, self._settle_s * 2.0 ** min(record.failures, MOST_DOUBLINGS))
        return record.since + wait_s

    def _miss(self, server: str, record: _Record, now: float) -> None:
        has_stayed = now - record.since >= LONGEST_S
        if record.is_here:
            record.failures = 0 if has_stayed else record.failures + 1
            record.since, record.is_here = now, False
        elif has_stayed:
            del self._records[server]  # gone for as long
