"""Fair scheduling of runs: if 10,000 nodes of one run send requests at once, requests of a small run still get in
between.

An event loop handles everything that is ready before it looks for more, so a late request would wait for all earlier
ones. This scheduler does a little at a time, alternately for each run. Connections without an accepted request
(strangers) have a queue of their own and a smaller part of the time. So their number and their load do not delay
agents. See ADR 23.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, proxy

from msgspec import Struct

CALLS_PER_TURN, TURN_S = 64, 0.002
"""Most turns that are taken before other tasks of the event loop run, and seconds after which no other turn begins."""
UNAUTHENTICATED_PER_TURN, UNAUTHENTICATED_TURN_S = 2, 0.0005
"""The same for strangers. Each request that is read takes more time later, for its refusal."""
TURNS_AN_AGENT = 2
"""Extra turns that strangers get for each agent that comes in on a new connection: those behind it in the queue are
probably agents, too. Each needs one turn, so a crowd of agents doubles its pace."""
MOST_CREDIT = 16
"""Most extra turns at a time: opening and reading a connection in its turn takes a fifth of a millisecond."""
BURST_S = 0.01
"""Seconds in which the same number of turns is taken without waiting, if no other turn waits."""

Do = Callable[[], None]
Item = TypeVar("Item")
Scheduler = TypeVar("Scheduler")


class RoundRobin(Generic[Item]):
    """Round robin: queues by name, from which items are taken alternately."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()

    def append(self, name: str, item: Item) -> None:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = deque()
        queue.append(item)

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
    """Call to make; None after it was made."""


class _Share:
    """Share of the time, for agents or for strangers: its queues, and the rest of a burst without waiting."""

    def __init__(self, most: int, most_s: float) -> None:
        self.waiting = RoundRobin[_Turn]()
        self._most, self._most_s = most, most_s
        self.credit = 0
        """Extra turns, used once, within the time that agents have."""
        self._burst_at = float("-inf")
        self._burst, self._burst_s = 0, 0.0

    def begin_at_once(self, now: float) -> bool:
        """Count a turn, and return whether it may be taken without waiting."""
        if now > self._burst_at + BURST_S:
            self._burst_at, self._burst, self._burst_s = now, 0, 0.0
        self._burst += 1
        return self._burst <= self._most and self._burst_s < self._most_s

    def took(self, seconds: float) -> None:
        """Count the time of a turn that was taken without waiting."""
        self._burst_s += seconds

    def take(self, clock: Callable[[], float]) -> None:
        """Take some turns: at least one if any waits."""
        left = self._most + self.credit
        over_at = clock() + (TURN_S if self.credit else self._most_s)
        while self.waiting and left:
            turn, left = self.waiting.pop(), left - 1
            if self.credit > left:
                self.credit = left
            do, turn.do = turn.do, None
            assert do
            do()
            if clock() >= over_at:
                break


class FairScheduler:
    """Fair scheduler of one event loop, in which runs take turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known = _Share(CALLS_PER_TURN, TURN_S)
        self._unauthenticated = _Share(UNAUTHENTICATED_PER_TURN, UNAUTHENTICATED_TURN_S)
        self._all: deque[_Turn] = deque()
        """Turns of known connections, in the order in which they were requested."""
        self._turn_is_scheduled = False

    def ask(self, of: str, do: Do, *, is_unauthenticated: bool = False) -> None:
        """Call `do` in a later turn of `of`, which is a run or a peer. Calls with the same `of` keep their order.

        `is_unauthenticated`: whether no request of the connection has been let in.
        """
        now, share = self._loop.time(), self._unauthenticated if is_unauthenticated else self._known
        if not share.waiting and share.begin_at_once(now):
            do()
            share.took(self._loop.time() - now)
            return
        turn = _Turn(now, do)
        if not is_unauthenticated:
            self._all.append(turn)
        share.waiting.append(of, turn)
        self._take_next_turn()

    def agent_came(self) -> None:
        """Note that an agent came in on a new connection: strangers get more turns, but at most as many as agents."""
        self._unauthenticated.credit = min(self._unauthenticated.credit + TURNS_AN_AGENT, MOST_CREDIT)

    @property
    def agents_wait(self) -> bool:
        """Whether requests of agents wait for their turns, as far as is known."""
        return bool(self._known.waiting) or (self._unauthenticated.credit > 0 and bool(self._unauthenticated.waiting))

    def unread_since(self) -> float:
        """Return when the oldest waiting turn of a known connection was requested; infinite if none waits."""
        while self._all and self._all[0].do is None:
            self._all.popleft()
        return self._all[0].asked_at if self._all else float("inf")

    def _take(self) -> None:
        self._turn_is_scheduled = False
        try:
            self._known.take(self._loop.time)
            self._unauthenticated.take(self._loop.time)
        finally:
            self.unread_since()  # has the side effect that finished turns are dropped
            if self._known.waiting or self._unauthenticated.waiting:
                self._take_next_turn()

    def _take_next_turn(self) -> None:
        if not self._turn_is_scheduled:
            self._loop.call_soon(self._take)
        self._turn_is_scheduled = True


class OfRunningLoop(Generic[Scheduler]):
    """Scheduler of the running event loop, shared by all its users and made at the first request."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Scheduler]) -> None:
        self._make = make
        self._known: WeakKeyDictionary[asyncio.AbstractEventLoop, Scheduler] = WeakKeyDictionary()

    def __call__(self) -> Scheduler:
        loop = asyncio.get_running_loop()
        found = self._known.get(loop)
        if found is None:
            # A reference to the loop, which is the key, would keep the loop alive.
            found = self._known[loop] = self._make(proxy(loop))
        return found


scheduler = OfRunningLoop(FairScheduler)
