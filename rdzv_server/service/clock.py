"""The server's time. It stands still while the server is down, hangs, or waits for its store.

Agents are heard only while the server listens: what it was held up by (a stopped process, a paused machine, a slow
disk, more requests than it can read) must end no lease. A crash gives every agent a fresh lease; a hang takes none of
it away.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rdzv_server.service.fair_scheduler import SLACK_S, Turns, turns

BEAT_S = 2.0
"""How often the clock looks whether the process is held up: seldom, since the agent of `--standalone` wakes up for it.
What a hang lasts beyond the next look counts as a standstill, so that a lease should be well above this."""


class Clock:
    """Seconds, from the event loop's monotonic clock."""

    def __init__(self) -> None:
        self._behind_s = 0.0
        self._latest = float("-inf")
        self._beat_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._turns: Turns | None = None

    def start(self, at: float | None) -> None:
        """Begin to look out for hang-ups; the time goes on from `at`, the end of the server's life before."""
        self._turns = turns()
        if at is not None:
            self._behind_s = self._loop_s() - at
        self._beat()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def now(self) -> float:
        """For people, and for those who wait. It may go back by what turns out to have been a standstill."""
        return self._loop_s() - self._behind_s

    def tick(self) -> float:
        """For decisions: it never goes back."""
        loop_s = self._notice_hang()
        self._latest = max(self._latest, loop_s - self._behind_s)
        return self._latest

    @contextmanager
    def writing(self) -> Iterator[None]:
        """If what is done inside takes long, no time passes."""
        began = self.now()
        yield
        took_s = self.now() - began
        if took_s > SLACK_S:
            self._behind_s += took_s

    def _beat(self) -> None:
        self._notice_hang()
        self._beat_at = self._loop_s() + BEAT_S
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _notice_hang(self) -> float:
        """The event loop's time, of which a hang has been taken away."""
        loop_s = self._loop_s()
        late_s = loop_s - self._beat_at
        if late_s > SLACK_S:
            self._behind_s += late_s
            self._beat_at += late_s
        return loop_s

    def _loop_s(self) -> float:
        """The event loop's time, without that in which agents that had spoken were not heard for lack of a turn."""
        held_up_s = self._turns.held_up_s() if self._turns else 0.0
        return asyncio.get_running_loop().time() - held_up_s
