"""An event loop that takes what its sockets bring a little at a time, and knows whether it keeps up.

asyncio takes from the system all that is ready at once, and answers it before it looks again: when the 10,000 nodes of
one run speak in the same instant, every other run waits for all of them. Taken in small portions, whoever speaks later
waits for a portion or two, since the system hands ready sockets out in turns. See ADR 23.
"""

import asyncio
import selectors
import time
from typing import Any

from rdzv_server.clock import SLACK_S

PORTION = 64
"""Sockets that are read before anything else in the process gets its turn."""


class FairLoop(asyncio.SelectorEventLoop):
    """asyncio's own, in portions."""

    def __init__(self) -> None:
        self._portions = _Portions()
        super().__init__(self._portions)

    @property
    def held_up_s(self) -> float:
        """Seconds for which what had arrived was kept waiting, beyond the slack, since the loop was made."""
        return self._portions.sweeps.held_up_s(time.monotonic())


def fair_loop() -> asyncio.AbstractEventLoop:
    """A new event loop; asyncio's own where the system has no epoll."""
    return FairLoop() if hasattr(selectors, "EpollSelector") else asyncio.new_event_loop()


class Sweeps:
    """How long it takes to read all that has arrived. Times are seconds of one monotonic clock, the caller's.

    A sweep is over when a portion was not full, or when as many sockets have been read as there are: then all that had
    arrived when it began has been read.
    """

    def __init__(self, now: float) -> None:
        self._held_up_s = 0.0
        self._read = 0
        self._began, self._waited_s = now, 0.0

    def portion(self, asked: float, given: float, count: int, sockets: int) -> None:
        """A portion of `count` was asked for, and given then; until then there was nothing to do."""
        self._waited_s += given - asked
        self._read += count
        if count < PORTION or self._read >= sockets:
            self._held_up_s = self.held_up_s(given)
            self._began, self._waited_s, self._read = given, 0.0, 0

    def held_up_s(self, now: float) -> float:
        return self._held_up_s + max(0.0, now - self._began - self._waited_s - SLACK_S)


class _Portions(getattr(selectors, "EpollSelector", object)):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.sweeps = Sweeps(time.monotonic())
        self._selector: Any = _Epoll(self._selector, self.sweeps)


class _Epoll:
    """An epoll object whose `poll` gives a portion at most."""

    def __init__(self, epoll: Any, sweeps: Sweeps) -> None:
        self._epoll, self._sweeps = epoll, sweeps
        for name in ("register", "unregister", "modify", "fileno", "close"):
            setattr(self, name, getattr(epoll, name))

    def poll(self, timeout: float, sockets: int) -> list[tuple[int, int]]:
        asked = time.monotonic()
        events: list[tuple[int, int]] = self._epoll.poll(timeout, min(sockets, PORTION))
        self._sweeps.portion(asked, time.monotonic(), len(events), sockets)
        return events
