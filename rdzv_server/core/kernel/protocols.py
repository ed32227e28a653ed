"""Protocols of a run's machine: what policies may do to the run, and what else the kernel's own rules may do."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from rdzv_protocol.events import EventKind
from rdzv_protocol.messages import Directive, Failure
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.effects import Effect
from rdzv_server.core.kernel.restart_budget import Verdict
from rdzv_server.core.kernel.run import Agent, Cause, FailureRecord, Run, Stage
from rdzv_server.core.node_history import Fault


class Kernel(Protocol):
    """Everything that policies may do to the run."""

    @property
    def run(self) -> Run: ...

    def record_event(self, kind: EventKind, reason: str, now: float, **more: Any) -> None:
        """Emit an event of the run."""

    def wake(self, agents: Iterable[Agent]) -> None:
        """Answer the polls of these agents."""

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of the current event."""

    def open_round(self, cause: Cause, reason: str, now: float) -> None:
        """Open the next round: every participant stops its workers and joins again."""

    def replace_node(self, node_id: str, fault: Fault, why: str, now: float) -> None:
        """Replace this node with a node that stands by, after a notice to the workers if the run gives notices.

        `fault` and the sentence `why` say what the node is blamed for.
        """

    def hear(self, agent_id: str, now: float) -> None:
        """Take a sign of life of an agent."""

    def hold(self, why: str) -> None:
        """Keep the forming round from completing until `release`. `why` is a phrase about what it waits for."""

    def release(self) -> None:
        """Let the forming round complete."""

    def drain(self, agent: Agent, until: float, cause: Cause, reason: str, now: float, *, unfit: bool = False) -> None:
        """Tell an agent to leave: its workers are gone by `until`, and no later round counts on it."""

    def note_unfit(self, node_id: str, reason: str) -> None:
        """Remember that a leaving node was found unfit."""

    def note_root(self, record: FailureRecord) -> None:
        """Make a failure that the policy has found the root of the running round."""

    def note_training(self) -> None:
        """Note that workers of the running round have reported progress."""

    def note_steps(self, step: int | None, checkpoint_step: int | None, *, fall: bool) -> None:
        """Note the highest step and the highest checkpoint that workers of the running round have reported, or None.

        `fall`: whether the steps have fallen within the round.
        """

    def fail(self, failure: Failure, verdict: Verdict, now: float) -> None:
        """End the run over a failure that no restart can fix."""


class Machine(Kernel, Protocol):
    """Everything that the rules of the rendezvous may do to the run, which is more than policies may do."""

    agreed: RequestedSettings | None
    """Settings of the last new agent: nearly all agents have the same."""
    agreed_program: str

    def agent(self, agent_id: str) -> Agent:
        """Return the agent. Raises `AgentFenced` if it is not part of the run."""

    def direct(self, agents: Collection[Agent], directive: Directive | None) -> None:
        """Tell agents what to do; None if their state implies it."""

    def depart(self, agent: Agent, cause: Cause, detail: str, now: float, *, is_blameless: bool = False) -> None:
        """Remove an agent that is lost or leaves."""

    def blame(self, node_id: str, fault: Fault, reason: str) -> None:
        """Blame a node for what it has cost the run."""

    def fault(self, name: str) -> Fault:
        """Return the fault of this name that a policy has declared."""

    def workers_succeeded(self, agent_id: str) -> None:
        """Tell the policies that all workers of an agent have exited 0."""

    def end(self, stage: Stage, reason: str, failure: Failure | None, now: float) -> None:
        """End the run."""
