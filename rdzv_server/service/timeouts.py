"""Timeouts of one length, with one timer of the event loop for all of them.

Usually a timeout is stopped before it ends: each request starts and stops several. All timeouts are equally long, so
the one that began first ends first, and starting or stopping one changes one entry in a dict. The dict is ordered,
since a plain one finds its first entry only after the places of all entries that were removed before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

TIMEOUTS_PER_TURN = 64
"""Most timeouts that end before anything else in the event loop runs."""

Subject = TypeVar("Subject", bound=Hashable)


class Timeouts(Generic[Subject]):
    """Timeouts that call `over` with each subject whose timeout is not stopped within `seconds`."""

    def __init__(self, seconds: float, over: Callable[[Subject], None]) -> None:
        self._seconds, self._over = seconds, over
        self._due: OrderedDict[Subject, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, subject: Subject) -> None:
        """Begin the timeout of a subject, unless it has already begun."""
        if subject in self._due:
            return
        loop = asyncio.get_running_loop()
        at = self._due[subject] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(at, self._look)

    def stop(self, subject: Subject) -> None:
        """Stop the timeout of a subject, if it has begun."""
        self._due.pop(subject, None)

    def _look(self) -> None:
        """End the timeouts that are due. Meanwhile the timer counts as set, so timeouts that `over` starts set none."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        try:
            for _ in range(TIMEOUTS_PER_TURN):
                if self._first_at() > now:
                    break
                subject, _ = self._due.popitem(last=False)
                self._over(subject)
        finally:
            self._timer = loop.call_at(self._first_at(), self._look) if self._due else None

    def _first_at(self) -> float:
        """Return the end of the first timeout; infinite if there is none."""
        return next(iter(self._due.values()), inf)


def release(waiting: asyncio.Future[None]) -> None:
    """Let the waiting task continue, unless it already does."""
    if not waiting.done():
        waiting.set_result(None)
