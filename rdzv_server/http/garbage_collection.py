"""Garbage collection as rarely as it may be: while the server examines all objects, it answers no request.

Python examines new objects when many more have been made than freed. While 10,000 nodes are answered and ask again, the
server frees as many objects as it makes. Python then examined 190,000 objects at a time, for up to 0.1 s. So the server
sets new objects aside soon after each request, and examines all objects only if it has grown. See ADR 53.
"""

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from rdzv_server.service.timeouts import Timeouts

if TYPE_CHECKING:
    import ctypes

COLLECT_AFTER = (1_000_000, 100_000, 1_000_000)
"""Thresholds of Python's collector, which leaves all objects to `GarbageCollector` while there are requests. With
lower ones, Python would look through many lasting objects in the middle of a large run's restart."""
YOUNG_S = 0.01
"""Seconds after a first request in which new objects are set aside: only a full collection examines them then."""
FEW = 100
"""Number of closed connections after which free memory goes back to the system in a quiet moment."""
CHECK_DELAY_S = 1.0
"""Seconds after a request or a closed connection in which the server checks what is due."""
GROWN, GROWN_BYTES = 1.25, 16 << 20
"""Growth of the process since the last full collection after which one is due, as a ratio plus a number of bytes. The
growth that new connections explain does not count, also after they have closed."""
STEADY_BYTES = 1 << 20
"""Growth between two checks below which the process counts as not growing."""
MOST_LOOKS = 30
"""Number of checks with a grown process after which all garbage is collected. A process usually grows because a large
run forms, or because strangers come and go. Neither leaves garbage."""


class GarbageCollector:
    """Collector that examines nothing until much garbage may have gathered, and then everything."""

    def __init__(self, used_bytes: Callable[[], int]) -> None:
        """`used_bytes`: returns the most bytes that the present connections take without any garbage."""
        self._loop = asyncio.get_running_loop()
        self._used_bytes = used_bytes
        self._kept_used = self._most_used = used_bytes()
        """Value of `used_bytes` at the last full collection, and its highest value since."""
        self._young = Timeouts[None](YOUNG_S, lambda _: self._set_aside())
        self._looks = Timeouts[None](CHECK_DELAY_S, lambda _: self._look())
        self._closings = self._closings_seen = 0
        self._grown_looks = 0
        """Number of checks since the last full collection at which the process had grown."""
        self._before_bytes = self._kept_bytes = resident_bytes()
        """Size of the process at the last check, and after the last full collection."""

    def request_arrived(self) -> None:
        self._young.start(None)

    def connection_closed(self) -> None:
        self._looks.start(None)
        self._closings += 1

    def _set_aside(self) -> None:
        self._looks.start(None)
        gc.freeze()

    def _look(self) -> None:
        """Make a full collection or give memory back if that is due, now or at a later check."""
        size = resident_bytes()
        is_quiet = self._closings == self._closings_seen and size < self._before_bytes + STEADY_BYTES
        self._closings_seen, self._before_bytes = self._closings, size
        self._most_used = max(self._most_used, self._used_bytes())
        has_grown = size > self._kept_bytes * GROWN + GROWN_BYTES + self._most_used - self._kept_used
        has_closed = self._closings >= FEW
        self._grown_looks += has_grown
        if self._grown_looks > MOST_LOOKS:
            gc.unfreeze()
            gc.collect()
            self._give_back()
            self._grown_looks, self._kept_bytes = 0, self._before_bytes
            self._kept_used = self._most_used = self._used_bytes()
            return
        if has_closed and is_quiet:
            self._give_back()
        if has_grown or self._closings >= FEW:
            self._looks.start(None)

    def _give_back(self) -> None:
        give_back()
        self._closings = self._closings_seen = 0
        self._before_bytes = resident_bytes()


def resident_bytes() -> int:
    """Return the memory that the process holds now, in bytes; 0 if the system does not report it."""
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """Return free memory to the system. Without this, glibc keeps memory that was used in small pieces."""
    with suppress(OSError, AttributeError):  # another libc
        _libc().malloc_trim(0)


@cache
def _libc() -> "ctypes.CDLL":
    """Return the libc of this process, once: each `CDLL` is garbage in cycles."""
    import ctypes  # a server needs it only here

    return ctypes.CDLL(None)
