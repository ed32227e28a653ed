"""`--exit-when-idle`: when a server that was started for some runs has nothing left to do.

At once when every run has ended, every agent of it has been told and every connection is closed; or when the last agent
has left a run. Otherwise, when no agent has been connected for a while: who was lost may yet come back.
"""

import asyncio
from collections.abc import Callable

from rdzv_protocol.messages import Directive, Finish

from rdzv_server.core.run import Run
from rdzv_server.service.long_polls import Key
from rdzv_server.service.rendezvous import Rendezvous


class IdleWatch:
    """Calls `idle` with the reason, each time that it comes true."""

    def __init__(self, rendezvous: Rendezvous, limit_s: float, idle: Callable[[str], None]) -> None:
        self._rendezvous = rendezvous
        self._limit_s = limit_s
        self._idle = idle
        self._told: set[Key] = set()
        self._timer: asyncio.TimerHandle | None = None
        rendezvous.replied = self._replied
        rendezvous.connections.changed = self._look
        self._look(0)

    def _replied(self, key: Key, directive: Directive) -> None:
        if isinstance(directive, Finish):
            self._told.add(key)

    def _look(self, connections: int) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if connections:
            return
        runs = self._rendezvous.runs()
        if runs and all(self._is_over(run) for run in runs):
            self._idle("every run is over, and every agent has heard so")
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limit_s, self._idle, f"no agent for {self._limit_s:g} s")

    def _is_over(self, run: Run) -> bool:
        if run.stage.is_end:
            return all((run.run_id, agent_id) in self._told for agent_id in run.agents)
        return not run.agents and bool(run.departures) and run.departures[-1].left
