"""Fair scheduling of runs: one whose 10,000 nodes send requests at once lets a small one in between.

What an event loop finds to do it does at once, before it looks for more; so whoever comes later waits for all that came
before. Here a little of it is done at a time, alternately for each run. See ADR 23.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, proxy

from msgspec import Struct

AT_ONCE = 64
"""Most turns that are taken before anything else in the event loop runs."""
BURST_S = 0.01
"""Seconds in which `AT_ONCE` turns are taken without waiting: as a rule nobody else is there."""
SLACK_S = 0.5
"""Seconds of waiting for a turn beyond which one counts as held up."""

Do = Callable[[], None]
Item = TypeVar("Item")
Scheduler = TypeVar("Scheduler")


class RoundRobin(Generic[Item]):
    """Round robin: queues by name, from which items are taken alternately."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()

    def append(self, name: str, item: Item) -> None:
        self._queues.setdefault(name, deque()).append(item)

    def pop(self) -> Item:
        """Take the next item. Raises `KeyError` if there is none."""
        name, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[name] = queue
        return item

    def __bool__(self) -> bool:
        return bool(self._queues)


class _Turn(Struct):
    asked_at: float
    do: Do | None
    """None once it is done."""


class FairScheduler:
    """Fair scheduler of one event loop: runs take turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked = RoundRobin[_Turn]()
        self._all: deque[_Turn] = deque()
        self._held_up_at = float("-inf")
        self._burst_at = float("-inf")
        self._burst = 0
        self._comes_round = False

    def ask(self, of: str, do: Do) -> None:
        """Call `do` in a later turn of the run, or peer, `of`; its calls are made one after another."""
        now = self._loop.time()
        if self._is_free(now):
            do()
            return
        turn = _Turn(now, do)
        self._all.append(turn)
        self._asked.append(of, turn)
        self._come_round()

    def held_up_at(self) -> float:
        """Time at which a turn was last seen to be late by more than `SLACK_S`."""
        while self._all and self._all[0].do is None:
            self._all.popleft()
        now = self._loop.time()
        if self._all and self._all[0].asked_at + SLACK_S < now:
            self._held_up_at = now
        return self._held_up_at

    def _is_free(self, now: float) -> bool:
        if self._asked:
            return False
        if now > self._burst_at + BURST_S:
            self._burst_at, self._burst = now, 0
        self._burst += 1
        return self._burst <= AT_ONCE

    def _take(self) -> None:
        self.held_up_at()
        self._comes_round = False
        left = AT_ONCE
        try:
            while self._asked and left:
                turn, left = self._asked.pop(), left - 1
                do, turn.do = turn.do, None
                assert do
                do()
        finally:
            if self._asked:
                self._come_round()

    def _come_round(self) -> None:
        if not self._comes_round:
            self._loop.call_soon(self._take)
        self._comes_round = True


class OfRunningLoop(Generic[Scheduler]):
    """Scheduler of the running event loop, for all that share its time; made when first asked for."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Scheduler]) -> None:
        self._make = make
        self._known: WeakKeyDictionary[asyncio.AbstractEventLoop, Scheduler] = WeakKeyDictionary()

    def __call__(self) -> Scheduler:
        loop = asyncio.get_running_loop()
        found = self._known.get(loop)
        if found is None:
            found = self._known[loop] = self._make(proxy(loop))  # or the loop, which is the key, would outlive its end
        return found


scheduler = OfRunningLoop(FairScheduler)
