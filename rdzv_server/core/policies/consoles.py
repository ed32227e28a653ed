"""Consoles: nodes whose agent's console does not take output, such as a stopped terminal, so that their workers wait.

Agents do not count such time as a hang, so the run may stand still forever. Its health tells people why.
"""

from typing import ClassVar

from msgspec import field
from rdzv_protocol.text import printable

from rdzv_server.core.events import LeaseRenewed, PolicyFact
from rdzv_server.core.kernel.policy import Finding, NoSigns, Policy, Rule, Rules
from rdzv_server.core.kernel.run import Cause, PolicyState, Run, Stage
from rdzv_server.core.policies import words


class ConsoleHeld(PolicyFact, frozen=True):
    """An agent's console has taken no output for `held_s` seconds; None if it takes some again."""

    agent_id: str
    held_s: float | None = None


class ConsolesState(PolicyState):
    held_consoles: dict[str, float] = field(default_factory=dict)
    """Time since which the console of each of these agents has not taken output."""


class Consoles(Policy[ConsolesState, NoSigns]):
    name = "consoles"
    State = ConsolesState

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> dict[str, str]:
        agent = run.running.get(agent_id)
        if agent is None or agent_id not in cls.of(run).held_consoles:
            return {}
        return {"held": printable(words.console_held(agent.node_id))}

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        held = {agent_id: at for agent_id, at in cls.of(run).held_consoles.items() if agent_id in run.running}
        if not held or run.stage is not Stage.RUNNING:
            return None
        node_id = run.agents[min(held, key=held.__getitem__)].node_id
        sentence = words.consoles_held(words.console_held(node_id), len(held) - 1)
        return Finding("stalled", printable(sentence), min(held.values()), (printable(words.free_console(node_id)),))

    def renewed(self, event: LeaseRenewed, now: float) -> ConsoleHeld | None:
        if event.console_held_s is None and not self.state.held_consoles:
            return None
        is_held, was_held = event.console_held_s is not None, event.agent_id in self.state.held_consoles
        if is_held == was_held or event.agent_id not in self.run.running or self.run.stage is not Stage.RUNNING:
            return None
        return ConsoleHeld(event.agent_id, event.console_held_s)

    def workers_succeeded(self, agent_id: str) -> None:
        self.state.held_consoles.pop(agent_id, None)

    def round_opened(self, cause: Cause, now: float) -> None:
        self.state.held_consoles.clear()

    def run_ended(self, now: float) -> None:
        self.state.held_consoles.clear()

    def _changed(self, fact: ConsoleHeld, now: float) -> None:
        node_id = self.run.agents[fact.agent_id].node_id
        if fact.held_s is None:
            del self.state.held_consoles[fact.agent_id]
            sentence = words.console_continues(node_id)
        else:
            self.state.held_consoles[fact.agent_id] = now - fact.held_s
            sentence = words.console_held(node_id)
        self.kernel.record_event("warning", printable(sentence), now, node_id=node_id)

    rules: ClassVar[Rules] = {ConsoleHeld: Rule(apply=_changed, may_end_round=False)}
