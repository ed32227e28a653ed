"""Observations of a node's workers by the sources of hang detection, and their findings."""

from collections.abc import Mapping
from math import inf

from msgspec import Struct

from node_agent.kernel.core.progress import Reading

MOST_PAUSES = 100
SHOWN = 120
"""Most characters of a line or a pattern in a suspicion."""


class Suspicion(Struct, frozen=True):
    """Workers that a source suspects, by local rank, the one furthest behind first. Empty if the suspicion is over."""

    source: str
    reason: str
    local_ranks: tuple[int, ...]
    silent_s: float = 0.0
    """Seconds for which all of them have shown no progress, 0 if an event caused the suspicion."""
    limit_s: float | None = None
    """Exceeded limit in seconds, None if the source is not a time limit or nothing is suspected."""
    ends_rules: bool = False
    """Whether a line has reported that all work is done. Then no log rule of any node expects anything any more."""
    is_untold: bool = False
    """Whether no worker of this node has reported progress in this round, and no suspected rank in an earlier one."""


class Signs(Struct, frozen=True):
    """Observations of the running workers, by local rank. Times are by the agent's clock."""

    readings: Mapping[int, Reading]
    last_output_at: Mapping[int, float]
    """Time of each running worker's last output, 0 if it has written nothing yet."""
    last_sign_at: float = 0.0
    """Time at which any worker of the round, running or not, last wrote something or exited 0; 0 if none has yet."""
    lines_seen_until: float = inf
    """Time until which all output was compared with the rules, infinite if no output waits for that."""
    uninterruptible: frozenset[tuple[int, int]] = frozenset()
    """Threads of the workers in uninterruptible sleep at present, each with its worker's local rank first."""
    preparation: str = ""
    """What the agent waits for before it starts the workers; empty if it waits for nothing."""
    held_since: float | None = None
    """Time since which the console takes nothing, so that workers may wait to write. None if they do not."""


class CountedTime:
    """Time without the periods in which the agent or its console was held up, or the server was silent."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []

    def leave_out(self, begin: float, end: float) -> None:
        while self._pauses and self._pauses[-1][1] >= begin:  # they overlap, so they count as one pause
            earlier = self._pauses.pop()
            begin, end = min(begin, earlier[0]), max(end, earlier[1])
        self._pauses.append((begin, end))
        del self._pauses[:-MOST_PAUSES]

    def between(self, since: float, now: float) -> float:
        counted = now - since
        for begin, end in reversed(self._pauses):
            if end <= since:
                break
            counted -= min(end, now) - max(begin, since)
        return counted
