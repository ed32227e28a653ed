"""Ended scripts: workers whose script an exception has ended, while something keeps their process alive.

This may be a thread that is not a daemon. The other workers then wait in a collective until its timeout. The agent has
seen the exception and the main thread's stack. The policy only tells people: the process may still save something.
"""

from typing import ClassVar

from msgspec import Struct, field
from rdzv_protocol.shell import quoted
from rdzv_protocol.text import printable

from rdzv_server.core.events import LeaseRenewed, PolicyFact
from rdzv_server.core.kernel.policy import Finding, NoSigns, Policy, Rule, Rules
from rdzv_server.core.kernel.run import Cause, PolicyState, Run, Stage
from rdzv_server.core.policies import words


class ScriptEnded(PolicyFact, frozen=True):
    """The script of this rank has ended with `error`. Without an error, its worker continues."""

    agent_id: str
    rank: int
    error: str = ""


class Ended(Struct, frozen=True):
    """One worker whose script has ended."""

    rank: int
    error: str
    at: float
    """Time at which the server has learned it."""


class EndedScriptsState(PolicyState):
    ended_scripts: dict[str, Ended] = field(default_factory=dict)
    """One such worker of each of these agents."""


class EndedScripts(Policy[EndedScriptsState, NoSigns]):
    name = "ended_scripts"
    State = EndedScriptsState

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> dict[str, str]:
        agent, ended = run.running.get(agent_id), cls.of(run).ended_scripts.get(agent_id)
        if agent is None or ended is None:
            return {}
        return {"raised": printable(words.script_ended(ended.rank, agent.node_id, ended.error))}

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        found = {agent_id: each for agent_id, each in cls.of(run).ended_scripts.items() if agent_id in run.running}
        if not found or run.stage is not Stage.RUNNING:
            return None
        agent_id = min(found, key=lambda each: found[each].at)
        first, run_id = found[agent_id], quoted(run.run_id)
        sentence = words.script_ended(first.rank, run.agents[agent_id].node_id, first.error)
        steps = (words.see_ended(first.rank, run_id), words.restart_ended(run_id))
        return Finding("stalled", printable(words.scripts_ended(sentence, len(found) - 1)), first.at, steps)

    def renewed(self, event: LeaseRenewed, now: float) -> ScriptEnded | None:
        told, known = event.ended_script, self.state.ended_scripts.get(event.agent_id)
        if told is None and known is None:
            return None
        if event.agent_id not in self.run.running or self.run.stage is not Stage.RUNNING:
            return None
        if told is None:
            return ScriptEnded(event.agent_id, known.rank) if known else None
        if told.round != self.run.round or (known and (known.rank, known.error) == (told.rank, told.error)):
            return None
        return ScriptEnded(event.agent_id, told.rank, told.error)

    def workers_succeeded(self, agent_id: str) -> None:
        self.state.ended_scripts.pop(agent_id, None)

    def round_opened(self, cause: Cause, now: float) -> None:
        self.state.ended_scripts.clear()

    def run_ended(self, now: float) -> None:
        self.state.ended_scripts.clear()

    def _changed(self, fact: ScriptEnded, now: float) -> None:
        node_id = self.run.agents[fact.agent_id].node_id
        if fact.error:
            self.state.ended_scripts[fact.agent_id] = Ended(fact.rank, fact.error, now)
            sentence = words.script_ended(fact.rank, node_id, fact.error)
        else:
            del self.state.ended_scripts[fact.agent_id]
            sentence = words.script_continues(fact.rank, node_id)
        self.kernel.record_event("warning", printable(sentence), now, node_id=node_id)

    rules: ClassVar[Rules] = {ScriptEnded: Rule(apply=_changed, may_end_round=False)}
