"""Parked long polls: one for each agent. A wake-up, the end of its hold time, or a newer poll releases it."""

import asyncio
from collections.abc import Iterable
from functools import partial

from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.timeouts import Timeouts, release

AgentKey = tuple[str, str]
"""Key of an agent: its run id and agent id."""
Parked = asyncio.Future[None]


class LongPolls:
    """Parked polls, at most one for each agent."""

    def __init__(self) -> None:
        self._parked: dict[AgentKey, Parked] = {}
        self._holds: dict[float, Timeouts[Parked]] = {}

    async def park(self, key: AgentKey, hold_s: float) -> None:
        """Return when the agent is woken, when `hold_s` has passed, or when a newer poll of the agent parks."""
        self.wake(key)
        released = self._parked[key] = asyncio.get_running_loop().create_future()
        holds = self._ensure_holds(hold_s)
        holds.start(released)
        try:
            await released
        finally:
            holds.stop(released)
            self._drop_if_unused(hold_s)
            if self._parked.get(key) is released:
                del self._parked[key]

    def wake(self, key: AgentKey) -> None:
        """Release the agent's poll, if one is parked, in the next turn of its run."""
        if released := self._parked.pop(key, None):
            scheduler().ask(key[0], partial(release, released))

    def wake_each(self, run_id: str, agent_ids: Iterable[str]) -> None:
        """Release the polls of these agents that are parked, each in a later turn of their run."""
        pop, keys = self._parked.pop, [(run_id, agent_id) for agent_id in agent_ids]
        scheduler().ask_each(run_id, [partial(release, released) for key in keys if (released := pop(key, None))])

    def wake_all(self) -> None:
        for key in list(self._parked):
            self.wake(key)

    def __len__(self) -> int:
        return len(self._parked)

    def _ensure_holds(self, hold_s: float) -> Timeouts[Parked]:
        """Return the timeouts of polls that are held for `hold_s` seconds; make them if there are none."""
        if hold_s not in self._holds:
            self._holds[hold_s] = Timeouts(hold_s, release)
        return self._holds[hold_s]

    def _drop_if_unused(self, hold_s: float) -> None:
        holds = self._holds.get(hold_s)
        if holds is not None and not holds:
            holds.cancel()
            del self._holds[hold_s]
