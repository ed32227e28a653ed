"""When the server looks for garbage, which is when nobody waits for it.

Python looks through new objects once 10,000 more have been made than freed. A held request is thirty of them, and while
10,000 nodes are answered and ask again, as many are freed as are made: so it once looked through 190,000 at a time, for
up to a tenth of a second. See ADR 57.
"""

import asyncio
import gc

from rdzv_server.service.timeouts import Timeouts

COLLECT_AFTER = (10_000, 100_000, 10)
"""Python's thresholds. Many nodes are many objects that stay: to look through all of them as often as Python does takes
a quarter of the time, and up to a second at once. With the looks below it is after a quarter of an hour of requests."""
YOUNG_S = 0.01
"""New objects are looked through so long after the first request that made any: a few thousand at most."""
CLOSED = 10_000
"""Closed connections whose memory waits to be collected, 1.5 kB each: an asyncio transport holds on to itself."""
QUIET_S = 1.0
"""That is collected when no connection has closed for this long."""


class GarbageCollector:
    """Looks for garbage a little at a time while requests come, and for all of it after a mass disconnect."""

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
        """Look for all garbage if no connection has closed for a while: in a mass disconnect nobody may wait for it."""
        if self._closings != closings:
            self._loop.call_later(QUIET_S, self._collect, self._closings)
            return
        self._closings = 0
        gc.collect()


def _collect_young() -> None:
    gc.collect(0)
