"""Work for operators, done in short slices between agents' requests: pages, streams, scrapes, and the status.

An event loop does whatever is ready before it looks for more: if each of some hundred streams did a little in the same
turn of the loop, an agent's request would wait for all of them. So what operators ask for waits here, in queues by
peer, and one slice of it at a time is done. After a slice the loop is left to the others, for the longer the more they
have to do, and it waits while an agent's request is on its way through the loop. So an agent waits for a part of one
slice, however many look, and as a rule for none. See ADR 50.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from weakref import WeakKeyDictionary, proxy

from rdzv_server.service.fair_scheduler import RoundRobin
from rdzv_server.service.timeouts import Timeouts

SLICE_S = 0.00025
"""Time after which work has to wait for its next slice. What is not divided may take longer."""
OTHERS = 9
"""Operators get one part of the event loop's time, and agents so many, while there is not enough for both."""
LEAST_REST = 1
"""Parts of an idle loop's time that are left free."""
REQUEST_TURNS = 4
"""Turns of the loop in which an agent's request is answered, as a rule. Operators' work waits for them."""
LOOK_BACK_S = 0.05
"""Time over which the scheduler looks how busy the others are."""

Do = Callable[[], None]
Clock = Callable[[], float]


class OperatorScheduler:
    """Scheduler of one event loop for the work that must leave agents' requests as they are.

    `cpu_s`: CPU time of the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_s: Clock = time.thread_time) -> None:
        self._loop: asyncio.AbstractEventLoop = proxy(loop)  # or it would outlive its end: it is the key of this entry
        self._cpu_s = cpu_s
        self._asked = RoundRobin[Do]()
        self._is_under_way = False
        """Whether a slice is being done, or the next one is waited for."""
        self._began_at = float("-inf")
        """Begin of what is being done in a slice."""
        self._cpu_at = self._did_s = self._did_cpu_s = 0.0
        """CPU time at its begin; time and CPU time that it took before what it woke up."""
        self._spent_s = 0.0
        """CPU time that the slice has taken so far: on a busy machine the thread may stand still meanwhile."""
        self._rests_until = self._gives_way_until = float("-inf")
        self._turns_given = REQUEST_TURNS
        """Turns in which it has given way to the agent's request that came last."""
        self._busy = 1.0
        """Part of the time left to them that the others took lately."""
        self._looked_at, self._looked_cpu_s, self._own_s = loop.time(), cpu_s(), 0.0
        """Time, CPU time, and time of slices since then: of the last look."""

    def ask(self, of: str, do: Do) -> None:
        """`do` in a slice, and in the same slice what it wakes up: peers (`of`) take turns."""
        self._asked.append(of, do)
        if not self._is_under_way:
            self._come_round()

    def give_way(self) -> None:
        """Note that an agent's request has come: operators wait for its answer, for nine slices' time at most."""
        self._turns_given = 0

    def is_over(self) -> bool:
        """Whether who asks is in no slice, or has had all of it."""
        return self._spent_s + self._loop.time() - self._began_at >= SLICE_S

    def _come_round(self) -> None:
        self._is_under_way = True
        now = self._loop.time()
        if not self._spent_s:
            self._gives_way_until = max(now, self._rests_until) + OTHERS * SLICE_S
        if self._rests_until > now:
            self._loop.call_at(self._rests_until, self._begin)
        else:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Do the next thing once no agent's request is on its way, or operators have given way for long enough."""
        if self._turns_given < REQUEST_TURNS and self._loop.time() < self._gives_way_until:
            self._turns_given += 1
            self._loop.call_soon(self._begin)
        else:
            self._take()

    def _take(self) -> None:
        """Do the next thing. Tasks that it wakes up come to stand in the loop's queue between `_go_on` and `_end`."""
        began_at = self._began_at = self._loop.time()
        cpu_at = self._cpu_s()
        self._loop.call_soon(self._go_on)
        try:
            self._asked.pop()()
        finally:
            self._did_s, self._did_cpu_s = self._loop.time() - began_at, self._cpu_s() - cpu_at
            self._loop.call_soon(self._end)

    def _go_on(self) -> None:
        self._began_at, self._cpu_at = self._loop.time() - self._did_s, self._cpu_s() - self._did_cpu_s

    def _end(self) -> None:
        now = self._loop.time()
        self._spent_s += self._cpu_s() - self._cpu_at
        self._began_at = float("-inf")
        if self._spent_s >= SLICE_S:
            self._rest(now)
        self._is_under_way = False
        if self._asked:
            self._come_round()

    def _rest(self, now: float) -> None:
        self._own_s += self._spent_s
        if now >= self._looked_at + LOOK_BACK_S:
            self._look(now)
        self._rests_until = now + max(LEAST_REST, OTHERS * self._busy) * self._spent_s
        self._spent_s = 0.0

    def _look(self, now: float) -> None:
        """See how busy the others were. A loop that waits takes no CPU time."""
        cpu_s = self._cpu_s()
        theirs_s = now - self._looked_at - self._own_s
        took_s = cpu_s - self._looked_cpu_s - self._own_s
        self._busy = min(1.0, max(0.0, took_s / theirs_s)) if theirs_s > 0 else 1.0
        self._looked_at, self._looked_cpu_s, self._own_s = now, cpu_s, 0.0


class Broadcast:
    """News for many streams, each of which is woken in a slice of its own. `timeout_s`: nobody waits for longer."""

    def __init__(self, timeout_s: float) -> None:
        self.number = 0
        """Number of the latest news."""
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._timeouts = Timeouts(timeout_s, self._wake)

    def notify_all(self) -> None:
        self.number += 1
        for woken in list(self._waiting):
            self._wake(woken)

    async def wait(self, seen: int) -> bool:
        """Return in a slice: whether there is newer news than what the caller has seen, or the time is over."""
        if self.number == seen:
            woken = asyncio.get_running_loop().create_future()
            self._waiting[woken] = _PEER.get()
            self._timeouts.start(woken)
            try:
                await woken
            finally:
                self._timeouts.stop(woken)
                self._waiting.pop(woken, None)
        return self.number != seen

    def _wake(self, woken: asyncio.Future[None]) -> None:
        self._timeouts.stop(woken)
        if (peer := self._waiting.pop(woken, None)) is not None:
            operator_scheduler().ask(peer, partial(_release, woken))


async def checkpoint(of: str | None = None) -> None:
    """Go on in this slice, or wait for the next if it is over. `of`: peer for which this task works from now on."""
    if of is not None:
        _PEER.set(of)
    if operator_scheduler().is_over():
        begun = asyncio.get_running_loop().create_future()
        operator_scheduler().ask(_PEER.get(), partial(_release, begun))
        await begun


def operator_scheduler() -> OperatorScheduler:
    """Scheduler of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _SCHEDULERS.get(loop)
    if found is None:
        found = _SCHEDULERS[loop] = OperatorScheduler(loop)
    return found


_PEER: ContextVar[str] = ContextVar("peer", default="")
_SCHEDULERS: WeakKeyDictionary[asyncio.AbstractEventLoop, OperatorScheduler] = WeakKeyDictionary()


def _release(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
