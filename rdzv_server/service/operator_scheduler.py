"""Work for operators, done in short slices between agents' requests: pages, streams, scrapes, and the status.

An event loop does everything that is ready before it looks for more. If each of a hundred streams did a little in the
same turn, an agent's request would wait for all of them. So operators' work waits here, in queues by peer, and one
slice of it is done at a time. After a slice, the loop is free for other work; the busier the others are, the longer it
stays free.

So an agent's request waits for a few slices at most, even with many watchers. See ADR 49.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from rdzv_server.service.fair_scheduler import OfRunningLoop, RoundRobin
from rdzv_server.service.timeouts import Timeouts, release

SLICE_S = 0.00025
"""Seconds of a slice, after which work waits for its next slice. Work that cannot be divided may take longer."""
OTHERS = 9
"""Ratio of agents' to operators' time in the event loop while there is not enough for both."""
LEAST_REST = 1
"""Least ratio of time without operators' work to time with it, also in an idle loop."""
LOOK_BACK_S = 0.05
"""Seconds over which the scheduler measures how busy agents keep the loop."""

Do = Callable[[], None]
Clock = Callable[[], float]


class OperatorScheduler:
    """Scheduler of one event loop for work that must not delay agents' requests.

    `cpu_s`: function that returns the CPU time of the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_s: Clock = time.thread_time) -> None:
        self._loop = loop
        self._cpu_s = cpu_s
        self._asked = RoundRobin[Do]()
        self._is_under_way = False
        """Whether a slice is running, or the next one is scheduled."""
        self._began_at = float("-inf")
        """Time at which the current call in a slice began."""
        self._cpu_at = self._did_s = self._did_cpu_s = 0.0
        """CPU time when the call began; its time and its CPU time without the tasks that it woke."""
        self._spent_s = 0.0
        """CPU seconds of the slice so far: on a busy machine the thread may not run all the time."""
        self._rests_until = float("-inf")
        self._busy = 1.0
        """Part of the time left to agents that they have used lately, from 0 to 1."""
        self._looked_at, self._looked_cpu_s, self._own_s = loop.time(), cpu_s(), 0.0
        """Time and CPU time of the last measurement, and seconds of slices since then."""

    def ask(self, of: str, do: Do) -> None:
        """Call `do` in a slice, and run the tasks that it wakes in the same slice. Peers (`of`) take turns."""
        self._asked.append(of, do)
        if not self._is_under_way:
            self._take_next_turn()

    def is_over(self) -> bool:
        """Return whether the caller is in no slice, or has used all of its slice."""
        return self._spent_s + self._loop.time() - self._began_at >= SLICE_S

    def _take_next_turn(self) -> None:
        self._is_under_way = True
        if self._rests_until > self._loop.time():
            self._loop.call_at(self._rests_until, self._take)
        else:
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        """Make the next call. Tasks that it wakes are queued in the loop between `_go_on` and `_end`."""
        began_at = self._began_at = self._loop.time()
        cpu_at = self._cpu_s()
        self._loop.call_soon(self._resume_clock)
        try:
            self._asked.pop()()
        finally:
            self._did_s, self._did_cpu_s = self._loop.time() - began_at, self._cpu_s() - cpu_at
            self._loop.call_soon(self._end)

    def _resume_clock(self) -> None:
        self._began_at, self._cpu_at = self._loop.time() - self._did_s, self._cpu_s() - self._did_cpu_s

    def _end(self) -> None:
        now = self._loop.time()
        self._spent_s += self._cpu_s() - self._cpu_at
        self._began_at = float("-inf")
        if self._spent_s >= SLICE_S:
            self._rest(now)
        self._is_under_way = False
        if self._asked:
            self._take_next_turn()

    def _rest(self, now: float) -> None:
        self._own_s += self._spent_s
        if now >= self._looked_at + LOOK_BACK_S:
            self._look(now)
        self._rests_until = now + max(LEAST_REST, OTHERS * self._busy) * self._spent_s
        self._spent_s = 0.0

    def _look(self, now: float) -> None:
        """Measure how busy agents kept the loop; a waiting loop takes no CPU time."""
        cpu_s = self._cpu_s()
        theirs_s = now - self._looked_at - self._own_s
        took_s = cpu_s - self._looked_cpu_s - self._own_s
        self._busy = min(1.0, max(0.0, took_s / theirs_s)) if theirs_s > 0 else 1.0
        self._looked_at, self._looked_cpu_s, self._own_s = now, cpu_s, 0.0


class _Stream(NamedTuple):
    """Stream that waits for a change, and its peer."""

    woken: asyncio.Future[None]
    peer: str

    def wake(self) -> None:
        # The pages of this peer do not wait for its streams.
        operator_scheduler().ask(f"streams of {self.peer}", partial(release, self.woken))


class Broadcast:
    """Broadcast to many streams. Each is woken in a slice of its own, after `timeout_s` seconds at the latest."""

    def __init__(self, timeout_s: float) -> None:
        self.number = 0
        """Number of the latest change."""
        self._waiting: dict[_Stream, None] = {}
        # With a method of this object, the two would be a cycle, and so garbage after each run's last stream.
        self._timeouts = Timeouts(timeout_s, _Stream.wake)

    def notify_all(self) -> None:
        self.number += 1
        waiting, self._waiting = self._waiting, {}
        for stream in waiting:
            self._timeouts.stop(stream)
            stream.wake()

    async def wait(self, seen: int) -> bool:
        """Wait for a change after number `seen`. Return whether there is one, or False after the timeout.

        Returns in a slice.
        """
        if self.number == seen:
            stream = _Stream(asyncio.get_running_loop().create_future(), _PEER.get())
            self._waiting[stream] = None
            self._timeouts.start(stream)
            try:
                await stream.woken
            finally:
                self._timeouts.stop(stream)
                self._waiting.pop(stream, None)
        return self.number != seen


async def checkpoint(of: str | None = None) -> None:
    """Return at once in the current slice, or in the next one if it is over.

    `of`: peer of the task's work from now on.
    """
    if of is not None:
        _PEER.set(of)
    if operator_scheduler().is_over():
        begun = asyncio.get_running_loop().create_future()
        operator_scheduler().ask(_PEER.get(), partial(release, begun))
        await begun


operator_scheduler = OfRunningLoop(OperatorScheduler)
_PEER: ContextVar[str] = ContextVar("peer", default="")
