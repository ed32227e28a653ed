"""Shutdown of a server that has nothing left to do, for `--exit-when-idle`.

The server exits at once when every run has ended, every agent knows that, and every connection is closed. It also exits
at once when the last agent has left a run. If a node was lost on the way, it exits a moment later. A command on that
node may wait for the run's end (`node-agent --exit-with-run`). Otherwise it exits when no agent has been connected for
a while: lost agents may come back until then.

If every run has ended, the server waits at most `ENDED_S` for an agent that does not know it. Its node may be dead, and
a scheduler may wait for the server's verdict.

A server that was started again also waits for a while. If a scheduler has evicted all nodes of a run, it starts the
server and the agents again, and the server may be the first.
"""

import asyncio
from collections.abc import Callable

from rdzv_protocol.messages import Directive, Finish

from rdzv_server.core.effects import Effect, EmitEvent
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.service.long_polls import AgentKey
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.words import service as words

ENDED_S = 600.0
"""Seconds after which an agent without workers no longer waits for the server: twice the agent's default."""
LINGER_S = 3.0
"""Seconds after the end of a run in which an agent may ask how it ended, if a node was lost."""


class IdleWatch:
    """Watch that calls `idle` with the reason each time the server becomes idle."""

    def __init__(self, rendezvous: Rendezvous, limit_s: float, idle: Callable[[str], None]) -> None:
        self._rendezvous = rendezvous
        self._limit_s = limit_s
        self._idle = idle
        self._told: set[AgentKey] = set()
        self._failed: set[str] = set()
        """Ids of the runs whose last attempt has failed. The server itself forgets runs after a while."""
        self._has_ended = False
        """Whether a run has ended."""
        self._has_served = False
        """Whether an agent has connected since the server was started."""
        self._timer: asyncio.TimerHandle | None = None
        rendezvous.replied = self._replied
        rendezvous.connections.changed = self._look
        rendezvous.observe(self._observe)
        self._look(0)

    @property
    def has_succeeded(self) -> bool:
        """Whether there were runs, and the last attempt of each has succeeded, also of those that are forgotten."""
        runs = {run.run_id: run for run in self._rendezvous.runs()}  # the last attempt comes last
        forgotten = self._failed - runs.keys()
        have_succeeded = all(run.stage is Stage.SUCCEEDED for run in runs.values())
        return (bool(runs) or self._has_ended) and have_succeeded and not forgotten

    @property
    def has_verdict(self) -> bool:
        """Whether every run has ended."""
        return all(run.stage.is_end for run in self._rendezvous.runs())

    def _observe(self, effect: Effect) -> None:
        if isinstance(effect, EmitEvent) and effect.event.kind in ("run_succeeded", "run_failed"):
            self._has_ended = True
            note = self._failed.add if effect.event.kind == "run_failed" else self._failed.discard
            note(effect.event.run_id)

    def _replied(self, key: AgentKey, directive: Directive) -> None:
        if isinstance(directive, Finish):
            self._told.add(key)

    def _look(self, connections: int) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if connections:
            self._has_served = True
            return
        runs = self._rendezvous.runs()
        if not (runs and self._has_served and all(map(self._is_over, runs))):
            limit_s = min(ENDED_S, self._limit_s) if runs and self.has_verdict else self._limit_s
            self._call_later(limit_s, words.no_agents(limit_s))
        elif any(map(_is_missing_nodes, runs)):
            self._call_later(min(LINGER_S, self._limit_s), words.ALL_RUNS_OVER)
        else:
            left = next((run.run_id for run in runs if not run.stage.is_end), "")
            self._idle(words.last_agent_left(left) if left else words.ALL_RUNS_OVER)

    def _call_later(self, delay_s: float, reason: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._idle, reason)

    def _is_over(self, run: Run) -> bool:
        if run.stage.is_end:
            return all((run.run_id, agent_id) in self._told for agent_id in run.agents)
        return not run.agents and bool(run.departures) and run.departures[-1].left


def _is_missing_nodes(run: Run) -> bool:
    """Return whether the run has ended without a node that was lost."""
    nodes = {agent.node_id for agent in run.agents.values()}
    return run.stage.is_end and any(not gone.left and gone.node_id not in nodes for gone in run.departures)
