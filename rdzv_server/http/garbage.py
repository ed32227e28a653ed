"""Garbage collection at times when nobody waits for it.

Python looks through new objects once 10,000 more have been made than freed. A held request is thirty of them, and while
10,000 nodes are answered and ask again, as many are freed as are made: so it once looked through 190,000 at a time, for
up to a tenth of a second. See ADR 53.
"""

import asyncio
import gc

from rdzv_server.service.timeouts import Timeouts

COLLECT_AFTER = (10_000, 100_000, 10)
"""Thresholds of Python's collector. Many nodes are many objects that stay: full collections as often as by default take
a quarter of the time, up to a second at once. With these, one comes after 15 minutes of requests."""
YOUNG_S = 0.01
"""Seconds after a first request in which the youngest objects are collected: a few thousand at most."""
CLOSED = 10_000
"""Number of closed connections after which all garbage is collected: each holds 1.5 kB in a cycle of its transport."""
QUIET_S = 1.0
"""Seconds without a closing connection after which all garbage is collected, once `CLOSED` have closed."""


class GarbageCollector:
    """Collector of a little garbage at a time while requests come, and of all of it after a mass disconnect."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._young = Timeouts[None](YOUNG_S, lambda _: _collect_young())
        self._closings = 0

    def request_arrived(self) -> None:
        self._young.start(None)

    def connection_closed(self) -> None:
        self._closings += 1
        if self._closings == CLOSED:
            self._loop.call_later(QUIET_S, self._collect, self._closings)

    def _collect(self, closings: int) -> None:
        """Collect all garbage if no connection has closed since `closings` were counted; else check again later."""
        if self._closings != closings:
            self._loop.call_later(QUIET_S, self._collect, self._closings)
            return
        self._closings = 0
        gc.collect()


def _collect_young() -> None:
    gc.collect(0)
