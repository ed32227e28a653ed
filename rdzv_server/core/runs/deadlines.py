"""Deadlines of the attempts of a server: the soonest is known at once, whatever changes."""

from heapq import heapify, heappop, heappush

from rdzv_server.core.journals import Key

SPARE = 64
"""Stale deadlines that are tolerated, beyond one for each attempt, before they are dropped."""


class Deadlines:
    """Deadline of each attempt that has one. It may come too soon, and is set anew then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Key]] = []
        self._armed: dict[Key, float] = {}

    def arm(self, key: Key, at: float | None) -> None:
        """Set the attempt's deadline, unless it has a sooner one; None: there is none to set."""
        if at is not None and at < self._armed.get(key, float("inf")):
            self._armed[key] = at
            heappush(self._heap, (at, key))
            self._drop_stale()

    def disarm(self, key: Key) -> None:
        self._armed.pop(key, None)
        self._drop_stale()

    def next(self) -> float | None:
        """Time of the soonest deadline, or of one that was soonest before."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Take the attempts whose deadline has come, each once, those of a run in their order.

        A machine that has more to do than it does in one go sets a new deadline.
        """
        due: list[Key] = []
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._armed.get(key) == at:  # else an earlier deadline was set after this one
                del self._armed[key]
                due.append(key)
        return sorted(due)

    def _drop_stale(self) -> None:
        """Drop deadlines that an earlier one has replaced, or whose attempt is forgotten: some lie days ahead."""
        if len(self._heap) > 2 * len(self._armed) + SPARE:
            self._heap = [(at, key) for key, at in self._armed.items()]
            heapify(self._heap)
