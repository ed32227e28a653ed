"""Deadlines of the attempts of a server. The soonest one is always available at once."""

from heapq import heapify, heappop, heappush

from rdzv_server.core.journals import Key

SPARE = 64
"""Number of stale deadlines, beyond one for each attempt, that are kept before all stale ones are dropped."""


class Deadlines:
    """Deadline of each attempt that has one. It may come too early, and is then set again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Key]] = []
        self._armed: dict[Key, float] = {}

    def arm(self, key: Key, at: float | None) -> None:
        """Set the attempt's deadline, unless it has an earlier one. If `at` is None, there is nothing to set."""
        if at is not None and at < self._armed.get(key, float("inf")):
            self._armed[key] = at
            heappush(self._heap, (at, key))
            self._drop_stale()

    def disarm(self, key: Key) -> None:
        self._armed.pop(key, None)
        self._drop_stale()

    def next(self) -> float | None:
        """Return the time of the soonest deadline, or of one that was the soonest before."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[Key]:
        """Take the attempts whose deadline has passed, each once, sorted by run and attempt.

        A machine that cannot do all its work at once sets a new deadline.
        """
        due: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._armed.get(key) == at:  # else an earlier deadline was set after this one
                del self._armed[key]
                due.append(key)
        return sorted(due)

    def _drop_stale(self) -> None:
        """Drop deadlines that an earlier one has replaced, or whose attempt is forgotten: some are days ahead."""
        if len(self._heap) > 2 * len(self._armed) + SPARE:
            self._heap = [(at, key) for key, at in self._armed.items()]
            heapify(self._heap)
