"""Virtual time: a heap of timers. Nothing sleeps."""

from collections.abc import Callable
from heapq import heappop, heappush

Call = Callable[[], None]


class Timer:
    """A call to make later, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None

    def fire(self) -> None:
        if self.call is not None:
            self.call()


class Clock:
    """Seconds since the beginning. Time moves from one timer to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._scheduled = 0

    def at(self, when: float, call: Call) -> Timer:
        """Make the call at this time. Calls at the same instant are made in the order of their requests."""
        timer = Timer(call)
        self._scheduled += 1
        heappush(self._heap, (max(when, self.now), self._scheduled, timer))
        return timer

    def later(self, delay_s: float, call: Call) -> Timer:
        return self.at(self.now + delay_s, call)

    def step(self, until: float) -> bool:
        """Make the next call and return True. If none is due before `until`, let time pass to it and return False."""
        while self._heap and self._heap[0][0] <= until:
            when, _, timer = heappop(self._heap)
            if timer.call is not None:
                self.now = when
                self.steps += 1
                timer.call()
                return True
        self.now = until
        return False
