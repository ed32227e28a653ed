"""What the run's ledger of restarts must hold: a small model that knows only what the monkey has done.

    nothing --a worker dies, a node goes, a node comes--> opened --every node that is left works again--> one entry

Whatever happens between is part of the same restart. A node that goes explains the deaths of workers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One restart. Only a worker's failure is charged."""

    cause: str

    @property
    def is_charged(self) -> bool:
        return self.cause == "worker_failure"

    def __str__(self) -> str:
        return f"{self.cause}{' (charged)' if self.is_charged else ''}"


RANK_OF_CAUSE = {"node_arrived": 0, "worker_failure": 0, "node_left": 1, "node_lost": 1}
"""A restart that was put down to a cause of rank 0 is put down to one of rank 1 that joins it."""


class Ledger:
    """The monkey tells it what it does, and when the run works again."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._open: str | None = None

    def worker_failed(self) -> None:
        self._because("worker_failure")

    def node_lost(self) -> None:
        self._because("node_lost")

    def node_left(self) -> None:
        self._because("node_left")

    def node_arrived(self) -> None:
        self._because("node_arrived")

    def works_again(self) -> None:
        """Every node that should be in the run is in its round, and works."""
        if self._open:
            self.entries.append(Entry(self._open))
        self._open = None

    def _because(self, cause: str) -> None:
        if self._open is None or RANK_OF_CAUSE[cause] > RANK_OF_CAUSE[self._open]:
            self._open = cause

    def differences(self, view: dict[str, Any]) -> list[str]:
        """Where the run, as its operators see it, tells another story."""
        told = [Entry(restart["cause"]) for restart in view["history"]]
        charges = [restart["charged"] for restart in view["history"]]
        counts = Counter(entry.cause for entry in self.entries)
        checks = {
            "history": (told, self.entries[-len(told) :] if told else self.entries),
            "charges": (charges, [entry.is_charged for entry in told]),
            "restarts": ({cause: times for cause, times in view["restarts"].items() if times}, dict(counts)),
            "restart_count": (view["restart_count"], sum(entry.is_charged for entry in self.entries)),
        }
        return [f"{name}: {_text(is_)}, not {_text(want)}" for name, (is_, want) in checks.items() if is_ != want]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Sequence) else str(value)
