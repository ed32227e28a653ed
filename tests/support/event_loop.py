"""An event loop with a clock that the test sets."""

from collections.abc import Callable


class Loop:
    """An event loop with a clock that the test sets. As in asyncio, each turn calls what was ready when it began."""

    def __init__(self) -> None:
        self.now = self.cpu_s = 100.0
        self._ready: list[Callable[[], None]] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_at(self, at: float, callback: Callable[[], None]) -> None:
        self._timers.append((at, callback))

    def work(self, seconds: float) -> None:
        """Keep the loop's thread busy for this time."""
        self.now += seconds
        self.cpu_s += seconds

    def stand_still(self, seconds: float) -> None:
        """Give the processor to other processes for this time."""
        self.now += seconds

    def turn(self) -> None:
        if not self._ready and self._timers:
            self.now = max(self.now, min(at for at, _ in self._timers))  # the loop waits
        due = [callback for at, callback in self._timers if at <= self.now]
        self._timers = [(at, callback) for at, callback in self._timers if at > self.now]
        ready, self._ready = self._ready + due, []
        for callback in ready:
            callback()
