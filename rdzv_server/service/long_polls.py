"""Parked long polls: one for each agent. A wake-up, the end of its hold time, or a newer poll releases it."""

import asyncio
from collections.abc import Iterable
from functools import partial

from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.timeouts import release

AgentKey = tuple[str, str]
"""Key of an agent: its run id and agent id."""
Parked = asyncio.Future[None]


class LongPolls:
    """Parked polls, at most one for each agent."""

    def __init__(self) -> None:
        self._parked: dict[AgentKey, Parked] = {}

    async def park(self, key: AgentKey, hold_s: float) -> None:
        """Return when the agent is woken, when `hold_s` has passed, or when a newer poll of the agent parks."""
        self.wake(key)
        loop = asyncio.get_running_loop()
        released = self._parked[key] = loop.create_future()
        hold = loop.call_later(hold_s, _release, key, released)
        try:
            await released
        finally:
            hold.cancel()
            if self._parked.get(key) is released:
                del self._parked[key]

    def wake(self, key: AgentKey) -> None:
        """Release the agent's poll, if one is parked, in the next turn of its run."""
        if released := self._parked.pop(key, None):
            _release(key, released)

    def wake_each(self, run_id: str, agent_ids: Iterable[str]) -> None:
        """Release the polls of these agents that are parked."""
        for agent_id in agent_ids:
            self.wake((run_id, agent_id))

    def wake_all(self) -> None:
        for key in list(self._parked):
            self.wake(key)

    def __len__(self) -> int:
        return len(self._parked)


def _release(key: AgentKey, released: Parked) -> None:
    """Release a poll in the next turn of its run."""
    scheduler().ask(key[0], partial(release, released))
