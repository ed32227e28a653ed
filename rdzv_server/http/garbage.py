"""Garbage collection at times when nobody waits for it, and soon enough that no stranger fills memory with garbage.

Python looks through new objects once 10,000 more have been made than freed. A held request is thirty of them, and while
10,000 nodes are answered and ask again, as many are freed as are made: so it once looked through 190,000 at a time, for
up to a tenth of a second. See ADR 53.
"""

import asyncio
import gc
import os
from contextlib import suppress

from rdzv_server.service.timeouts import Timeouts

COLLECT_AFTER = (10_000, 100_000, 1_000_000)
"""Thresholds of Python's collector, which leaves old objects to `GarbageCollector`: many nodes are many objects that
stay, and Python would look through all of them again and again while a large run forms."""
YOUNG_S = 0.01
"""Seconds after a first request in which the youngest objects are collected: a few thousand at most."""
FEW = 100
"""Number of closed connections after which garbage is collected that is not older than a look: a connection whose
body was refused leaves up to 10 kB. After as many all garbage is collected in a quiet moment, and free memory goes back
to the system."""
LOOK_S = 1.0
"""Seconds after a request or a closed connection in which the process looks whether a full collection is due. Objects
that are there at a look are old: only a full collection looks through them again."""
GROWN, GROWN_BYTES = 1.25, 16 << 20
"""Growth of the process, as a ratio and in bytes beside it, since the last full collection, after which one is due."""
STEADY_BYTES = 1 << 20
"""Growth between two looks below which the process does not grow."""
MOST_LOOKS, MOST_LOOKS_OPEN = 5, 30
"""Looks at which the process is found grown before all garbage is collected in a moment that is not quiet. The second
is for a process in which hardly any connection has closed: as a rule a large run forms then, without garbage."""


class GarbageCollector:
    """Collector of a little garbage at a time while requests come, and of all of it when much may have gathered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._young = Timeouts[None](YOUNG_S, lambda _: self._collect_young())
        self._looks = Timeouts[None](LOOK_S, lambda _: self._look())
        self._closings = self._closings_seen = 0
        self._grown_looks = 0
        """Looks at which the process was found grown, since the last full collection."""
        self._before_bytes = self._kept_bytes = resident_bytes()
        """Size of the process at the last look, and after the last full collection."""

    def request_arrived(self) -> None:
        self._young.start(None)

    def connection_closed(self) -> None:
        self._looks.start(None)
        self._closings += 1
        if self._closings % FEW == 0:
            gc.collect(1)

    def _collect_young(self) -> None:
        self._looks.start(None)
        gc.collect(0)

    def _look(self) -> None:
        """Make a full collection if one is due, now or at a later look."""
        gc.freeze()
        size = resident_bytes()
        is_quiet = self._closings == self._closings_seen and size < self._before_bytes + STEADY_BYTES
        self._closings_seen, self._before_bytes = self._closings, size
        has_grown, has_closed = size > self._kept_bytes * GROWN + GROWN_BYTES, self._closings >= FEW
        self._grown_looks += has_grown
        if (has_closed and is_quiet) or self._grown_looks > (MOST_LOOKS if has_closed else MOST_LOOKS_OPEN):
            self._collect()
        elif has_grown or has_closed:
            self._looks.start(None)

    def _collect(self) -> None:
        self._closings = self._closings_seen = self._grown_looks = 0
        gc.unfreeze()
        gc.collect()
        give_back()
        self._before_bytes = self._kept_bytes = resident_bytes()


def resident_bytes() -> int:
    """Memory that the process holds now; 0 where the system does not tell."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """Give memory that is free back to the system: glibc keeps it, once it has been used in small pieces."""
    import ctypes  # of no other use to a server

    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
