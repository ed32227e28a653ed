"""Time of the server, and detection of times in which agents could not be heard.

The time goes on while the server is down. As long as its machine is up it is the monotonic clock's, whatever the wall
clock did; only on another machine, or after a reboot, does the wall clock say how long nobody served. What holds the
server up (a stopped process, a paused machine, a slow disk, more requests than it can read) must end no lease: then the
core is told, and gives every agent a fresh one.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rdzv_server.core.effects import Record
from rdzv_server.core.events import Life, NodeBlamed, NodeOperation, RunCreated
from rdzv_server.core.machine import WALL_CLOCK_SLACK_S
from rdzv_server.service.fair_scheduler import SLACK_S, FairScheduler, scheduler

BEAT_S = 2.0
"""Seconds between two checks whether the process was held up: seldom, since the agent of `--standalone` wakes up for
them. A lease should be well above this."""
DATED = RunCreated | NodeOperation | NodeBlamed
"""Facts that record the server's life in which they happened, and the wall-clock time."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Clock:
    """Clock of the server in seconds, based on the event loop's monotonic clock.

    `wall_s`: wall clock, in seconds since 1970, by which people are told times.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self.life = Life()
        self._beat_at = float("inf")
        self._wall_ahead_s = float("inf")
        """Distance of the wall clock from the server's time, when it was set last."""
        self._was_held_up = False
        self._looked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._scheduler: FairScheduler | None = None

    def start(self, records: Sequence[Record]) -> None:
        """Go on from the server's life that has left these records, and begin to detect times of being held up."""
        self._scheduler = scheduler()
        self.life = _life(records, _boot_id(), self._loop_s(), self._wall_s())
        self._beat()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def now(self) -> float:
        return self._loop_s() + self.life.offset_s

    def wall_clock_set(self) -> float | None:
        """Wall-clock time in seconds since 1970, if it was set since the last call, and at the first; else None."""
        wall_s = self._wall_s()
        ahead_s = wall_s - self.now()
        if abs(ahead_s - self._wall_ahead_s) <= WALL_CLOCK_SLACK_S:
            return None
        self._wall_ahead_s = ahead_s
        return wall_s

    def was_held_up(self) -> bool:
        """Whether agents may not have been heard since the last call."""
        now = self._loop_s()
        was = self._was_held_up or now > self._beat_at + SLACK_S
        was = was or (self._scheduler is not None and self._scheduler.held_up_at() > self._looked_at)
        self._was_held_up, self._looked_at = False, now
        if now > self._beat_at:
            self._beat_at = now + BEAT_S
        return was

    def hold_up(self) -> None:
        """Note that agents could not be heard until now."""
        self._was_held_up = True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note that agents could not be heard, if the block takes long."""
        began = self._loop_s()
        yield
        self._was_held_up |= self._loop_s() - began > SLACK_S

    def _beat(self) -> None:
        now = self._loop_s()
        self._was_held_up |= now > self._beat_at + SLACK_S
        self._beat_at = now + BEAT_S
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()


def _life(records: Sequence[Record], boot_id: str, monotonic_s: float, wall_s: float) -> Life:
    """Life that follows those of the records, and goes on in their time."""
    if not records:
        return Life(boot_id, 0.0)
    last_at = max(record.at for record in records)
    created = [(record.at, record.fact) for record in records if isinstance(record.fact, DATED)]
    same_boot = [fact.life.offset_s for _, fact in created if boot_id and fact.life.boot_id == boot_id]
    away_s = 0.0
    if same_boot:
        away_s = monotonic_s + same_boot[-1] - last_at
    elif known := [(at, fact.wall_at) for at, fact in created if fact.wall_at is not None]:
        at, wall_at = known[-1]
        away_s = wall_s - wall_at - (last_at - at)
    return Life(boot_id, last_at + max(0.0, away_s) - monotonic_s)


def _boot_id() -> str:
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
