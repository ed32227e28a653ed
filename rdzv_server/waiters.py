"""Parked long polls: one for each agent, released by a wake-up, by its hold time, or by a newer poll.

A round of 10,000 nodes wakes as many polls in one instant. They are released a few at a time, with the runs taking
turns, so that a small run beside a large one is answered at once.
"""

import asyncio
from collections import OrderedDict, deque

from rdzv_server.timeouts import Timeouts

Key = tuple[str, str]
"""run_id and agent_id."""
Parked = asyncio.Future[None]

RELEASED_AT_ONCE = 64
"""Polls that are answered before anything else in the process gets its turn."""


class Waiters:
    """The polls that are parked now."""

    def __init__(self) -> None:
        self._parked: dict[Key, Parked] = {}
        self._holds: dict[float, Timeouts[Parked]] = {}
        self._woken = OrderedDict[str, deque[Parked]]()

    async def park(self, key: Key, hold_s: float) -> None:
        """Return when the agent is woken, when `hold_s` has passed, or when a newer poll of the agent parks."""
        self.wake(key)
        released = self._parked[key] = asyncio.get_running_loop().create_future()
        holds = self._holds_of(hold_s)
        holds.start(released)
        try:
            await released
        finally:
            holds.stop(released)
            self._drop_if_unused(hold_s)
            if self._parked.get(key) is released:
                del self._parked[key]

    def wake(self, key: Key) -> None:
        """Release the agent's poll, if one is parked, when it is its run's turn."""
        released = self._parked.pop(key, None)
        if released is None:
            return
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._take_turns)
        self._woken.setdefault(key[0], deque()).append(released)

    def wake_all(self) -> None:
        for key in list(self._parked):
            self.wake(key)

    def __len__(self) -> int:
        return len(self._parked)

    def _take_turns(self) -> None:
        """Each run's longest woken poll, again and again."""
        for _ in range(RELEASED_AT_ONCE):
            run_id, woken = self._woken.popitem(last=False)
            _release(woken.popleft())
            if woken:
                self._woken[run_id] = woken
            elif not self._woken:
                return
        asyncio.get_running_loop().call_soon(self._take_turns)

    def _holds_of(self, hold_s: float) -> Timeouts[Parked]:
        if hold_s not in self._holds:
            self._holds[hold_s] = Timeouts(hold_s, _release)
        return self._holds[hold_s]

    def _drop_if_unused(self, hold_s: float) -> None:
        holds = self._holds.get(hold_s)
        if holds is not None and not holds:
            holds.cancel()
            del self._holds[hold_s]


def _release(released: Parked) -> None:
    if not released.done():
        released.set_result(None)
