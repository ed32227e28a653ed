"""Time of the server, and detection of times in which it could not hear agents.

The server's time continues while the server is down. Until the machine reboots, it follows the monotonic clock, even if
the wall clock jumps. Only on another machine, or after a reboot, does the wall clock show how long no server was
running.

Trouble of the server must not end a lease. A beat of the event loop measures for how long the process stood still,
because it was stopped or its machine paused. Each write to the store is timed. If many requests wait, deadlines count
as of the arrival of the oldest one. The core learns of all three: see `core/kernel/liveness.py`.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rdzv_server.core.effects import Record
from rdzv_server.core.events import Incarnation, NodeOperation, RunCreated
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.kernel.machine import WALL_CLOCK_SLACK_S
from rdzv_server.core.node_facts import NodeBlamed
from rdzv_server.service.fair_scheduler import FairScheduler, scheduler

BEAT_S = 2.0
"""Seconds between two checks whether the process was held up. They are rare, since the agent of `--standalone` wakes up
for each one. A lease should be much longer than this."""
SLACK_S = 0.5
"""Seconds by which a beat or a write may be late on a busy machine. Anything longer is a hold-up, and so is a longer
total wait for a processor from one beat to the next."""
MOST_STARVED_S = 0.75 * BEAT_S
"""Most seconds of waiting for a processor that count from one beat to the next. So even on a very busy machine, the
server detects a lost node at most four times as late."""
DATED = RunCreated | NodeOperation | NodeBlamed
"""Facts that record the server's incarnation in which they happened, and the wall-clock time."""
SCHEDULER_STATISTICS = "/proc/thread-self/schedstat"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Clock:
    """Clock of the server in seconds, based on the event loop's monotonic clock.

    `wall_s`: function that returns the wall clock in seconds since 1970, for times that people see.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self.incarnation = Incarnation()
        self._beat_at = float("inf")
        self._wall_ahead_s = float("inf")
        """Difference between the wall clock and the server's time when it was last set."""
        self._still_s = self._silent_s = 0.0
        """Result of the next call of `held_up`."""
        self._late_s = 0.0
        """Seconds since the last beat that are already counted as a standstill."""
        self._starved_s = 0.0
        """Value of `starved_s` at the last beat."""
        self.noticed: Callable[[], None] = lambda: None
        """Callback that is called when a hold-up is over, so that the caller asks `held_up` soon."""
        self._timer: asyncio.TimerHandle | None = None
        self._scheduler: FairScheduler | None = None

    def start(self, records: Sequence[Record]) -> None:
        """Continue from the incarnation of the server that wrote these records, and begin to detect hold-ups."""
        self._scheduler = scheduler()
        self.incarnation = _incarnation(records, _boot_id(), self._loop_s(), self._wall_s())
        self._starved_s = starved_s()
        self._beat()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def now(self) -> float:
        return self._loop_s() + self.incarnation.offset_s

    def wall_clock_set(self) -> float | None:
        """Return the wall-clock time in seconds since 1970, at the first call or if it was just set; else None."""
        wall_s = self._wall_s()
        ahead_s = wall_s - self.now()
        if abs(ahead_s - self._wall_ahead_s) <= WALL_CLOCK_SLACK_S:
            return None
        self._wall_ahead_s = ahead_s
        return wall_s

    def held_up(self) -> HoldUp | None:
        """Return the trouble that has held the server up since the last call; None if there was none."""
        self._look()
        still_s, silent_s = self._still_s, max(self._still_s, self._silent_s)
        self._still_s = self._silent_s = 0.0
        return HoldUp(still_s, silent_s) if silent_s > SLACK_S else None

    def unread_since(self) -> float:
        """Return the arrival of the oldest message that still waits to be read; infinite if there is none."""
        return self._scheduler.unread_since() + self.incarnation.offset_s if self._scheduler else float("inf")

    def answered_nobody(self, still_s: float = 0.0) -> None:
        """Note that until now, for `still_s` seconds, the server was not running for agents or refused all of them."""
        self._still_s += still_s
        self._silent_s = float("inf")
        self.noticed()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note how long agents get no answer because the block takes so much time."""
        began = self._loop_s()
        yield
        self._silent_s = max(self._silent_s, self._loop_s() - began)

    def _beat(self) -> None:
        self._look()
        before, self._starved_s = self._starved_s, starved_s()
        starved = self._starved_s - before
        if starved - self._late_s > SLACK_S:
            self._still_s += min(starved - self._late_s, MOST_STARVED_S)
        self._late_s = 0.0
        self._beat_at = self._loop_s() + BEAT_S
        if self._still_s:
            self.noticed()
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _look(self) -> None:
        """If the beat is late, count the time since it was due as a standstill, and expect the next one."""
        now = self._loop_s()
        if now > self._beat_at + SLACK_S:
            self._still_s += now - self._beat_at
            self._late_s += now - self._beat_at
        if now > self._beat_at:
            self._beat_at = now + BEAT_S

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()


def _incarnation(records: Sequence[Record], boot_id: str, monotonic_s: float, wall_s: float) -> Incarnation:
    """Return the incarnation that follows those of the records and continues their time."""
    if not records:
        return Incarnation(boot_id, 0.0)
    last_at = max(record.at for record in records)
    created = [(record.at, record.fact) for record in records if isinstance(record.fact, DATED)]
    same_boot = [fact.incarnation.offset_s for _, fact in created if boot_id and fact.incarnation.boot_id == boot_id]
    away_s = 0.0
    if same_boot:
        away_s = monotonic_s + same_boot[-1] - last_at
    elif known := [(at, fact.wall_at) for at, fact in created if fact.wall_at is not None]:
        at, wall_at = known[-1]
        away_s = wall_s - wall_at - (last_at - at)
    return Incarnation(boot_id, last_at + max(0.0, away_s) - monotonic_s)


def starved_s() -> float:
    """Return the seconds for which this thread has ever waited for a processor; 0 if the system does not report it."""
    try:
        with open(SCHEDULER_STATISTICS) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _boot_id() -> str:
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
