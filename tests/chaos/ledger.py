"""Ledger of the restarts that the run must have: a small model that knows only the monkey's actions.

    nothing --a worker dies, a node goes, a node comes--> opened --the next round is complete--> one entry

Events before the next round is complete belong to the same restart. A node that goes explains the deaths of workers.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

WEIGHT = {
    "node_arrived": 0, "worker_failure": 0, "node_left": 1, "node_lost": 1, "node_drained": 1, "run_restarted": 1,
}  # fmt: skip
"""Weights of causes: during a restart, an event becomes its cause if its weight is higher."""

NAMES = {
    "node_arrived": r"^admitting \d+ more: (.+)$",
    "worker_failure": r"^worker rank \d+ on node (.+) failed: ",
    "node_left": r"^node (.+) (?:left|leaves): ",
    "node_lost": r"^node (.+) lost: ",
    "node_drained": r"^node (.+) is drained by ",
    "run_restarted": r"^restarted by (.+)$",
}
"""Patterns for the nodes in the reason of a restart."""


@dataclass(frozen=True)
class Entry:
    """One restart. `nodes`: nodes that its reason may name, empty for any, as if workers die of each other's death."""

    cause: str
    nodes: frozenset[str] = frozenset()
    instead: "tuple[Entry, ...]" = ()
    """Other forms of the restart, each with another cause: two events came at once, or a leave got no answer."""

    @property
    def is_charged(self) -> bool:
        return self.cause == "worker_failure"

    def is_told_by(self, restart: Mapping[str, Any]) -> bool:
        """Return whether operators see this restart."""
        told = restart["cause"], restart["charged"]
        named = re.search(NAMES[self.cause], restart["reason"])
        return told == (self.cause, self.is_charged) and named is not None and self._may_name(named[1].split(", "))

    def _may_name(self, nodes: list[str]) -> bool:
        return not self.nodes or self.nodes.issuperset(nodes)

    def __str__(self) -> str:
        return " ".join([self.cause, *sorted(self.nodes)])


class Ledger:
    """The monkey enters its actions, and when rounds are complete."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._open: Entry | None = None
        self.without_survivors = 0
        """Number of times that all workers were killed at once, so that none could save its state."""

    def worker_failed(self) -> None:
        self._because("worker_failure")

    def node_lost(self, *nodes: str) -> None:
        self._because("node_lost", *nodes)

    def node_left(self, *nodes: str) -> None:
        self._because("node_left", *nodes)

    def node_unheard(self, *nodes: str) -> None:
        """Enter a node whose agent has left without learning whether the server knows: it may be missed instead."""
        if self._open and self._open.cause == "node_left":
            # Its leave may have arrived before the others', or it was missed before theirs arrived.
            self.node_left(*nodes)
            self.or_instead("node_lost", *nodes)
            return
        self._because("node_lost", *nodes)
        if self._open and self._open.cause == "node_lost":
            self._open = replace(self._open, instead=(Entry("node_left", self._open.nodes),))

    def left_or_lost(self, left: str, lost: str) -> None:
        """Enter the loss of a node at the time at which the other one has left: the first one is the cause."""
        self.node_lost(lost)
        if self._open and self._open.cause == "node_left":
            self.or_instead("node_lost", lost)
        elif self._open:
            self._open = Entry("node_lost", frozenset({left, lost}), (Entry("node_left", frozenset({left})),))

    def node_arrived(self, *nodes: str) -> None:
        self._because("node_arrived", *nodes)

    def node_drained(self, node: str) -> None:
        self._because("node_drained", node)

    def run_restarted(self) -> None:
        self._because("run_restarted")

    def worker_failed_or_run_restarted(self) -> None:
        """Enter a worker's failure and an operator's restart at the same time: the first one is the cause."""
        self._because("worker_failure")
        if self._open and self._open.cause == "worker_failure":
            self.or_instead("run_restarted")

    def or_instead(self, cause: str, *nodes: str) -> None:
        """Let the restart that was entered last also be this one instead: they came at once."""
        assert self._open
        self._open = replace(self._open, instead=(*self._open.instead, Entry(cause, frozenset(nodes))))

    def round_completes(self) -> None:
        """Every node that should be in the run has joined its next round, or no round was opened."""
        if self._open:
            self.entries.append(self._open)
        self._open = None

    def no_round_follows(self) -> None:
        """The run has ended because of what was entered last, so that is no restart."""
        self._open = None

    def misses(self, view: Mapping[str, Any]) -> bool:
        """Return whether operators see fewer restarts than there must be."""
        return sum(view["restarts"].values()) < len(self.entries)

    def differences(self, view: Mapping[str, Any]) -> list[str]:
        """Return the differences between the ledger and what operators see, which in a long run is only the end."""
        told: list[Mapping[str, Any]] = view["history"]
        self._settle(told)
        wanted = self.entries[-len(told) :] if told else self.entries
        same = len(list(takewhile(lambda pair: pair[0].is_told_by(pair[1]), zip(wanted, told, strict=False))))
        counts = {cause: times for cause, times in view["restarts"].items() if times}
        checks = {
            "restart_count": (view["restart_count"], sum(entry.is_charged for entry in self.entries)),
            "restarts": (counts, dict(Counter(entry.cause for entry in self.entries))),
            "history": (list(map(_text, told[same:])), list(map(str, wanted[same:]))),
        }
        return [f"{name}: {is_}, not {want}" for name, (is_, want) in checks.items() if is_ != want]

    def _settle(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Learn from the server which of several possible causes its restarts had."""
        first = max(0, len(self.entries) - len(told))
        for at, (entry, restart) in enumerate(zip(self.entries[first:], told, strict=False), start=first):
            possible = {each.cause: each for each in (*entry.instead, replace(entry, instead=()))}
            self.entries[at] = possible.get(restart["cause"], possible[entry.cause])

    def _because(self, cause: str, *nodes: str) -> None:
        if self._open is None or WEIGHT[cause] > WEIGHT[self._open.cause]:
            self._open = Entry(cause, frozenset(nodes))
        elif cause == self._open.cause:
            self._open = Entry(cause, self._open.nodes.union(nodes))


def _text(restart: Mapping[str, Any]) -> str:
    return f"{restart['cause']}{', charged' * restart['charged']} ({restart['reason']})"
