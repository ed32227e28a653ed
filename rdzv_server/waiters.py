"""Parked long polls: one for each agent, released by a wake-up, by its hold time, or by a newer poll."""

import asyncio

Key = tuple[str, str]
"""run_id and agent_id."""


class Waiters:
    """The polls that are parked now."""

    def __init__(self) -> None:
        self._parked: dict[Key, asyncio.Future[None]] = {}

    async def park(self, key: Key, hold_s: float) -> None:
        """Return when the agent is woken, when `hold_s` has passed, or when a newer poll of the agent parks."""
        loop = asyncio.get_running_loop()
        self.wake(key)
        released = self._parked[key] = loop.create_future()
        timer = loop.call_later(hold_s, self._release, released)
        try:
            await released
        finally:
            timer.cancel()
            if self._parked.get(key) is released:
                del self._parked[key]

    def wake(self, key: Key) -> None:
        """Release the agent's poll, if one is parked."""
        if released := self._parked.pop(key, None):
            self._release(released)

    def wake_all(self) -> None:
        for key in list(self._parked):
            self.wake(key)

    def __len__(self) -> int:
        return len(self._parked)

    @staticmethod
    def _release(released: "asyncio.Future[None]") -> None:
        if not released.done():
            released.set_result(None)
