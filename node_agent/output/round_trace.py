"""`--otel`: this node's way into each round, as spans: join, wait, spawn, first output."""

import time
from collections.abc import Sequence

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Reply
from rdzv_protocol.tracing import Attributes, Part, SpanExport, TracedRound, node_part

from node_agent.config import AgentConfig
from node_agent.output.observer import Observer


class RoundTrace(Observer):
    """Trace of a node's way into a round: notes each step, and exports all of them once the round's trace is known."""

    def __init__(self, config: AgentConfig, spans: SpanExport) -> None:
        self._run_id = config.join.run_id
        self._node_id = config.join.node_id
        self._spans = spans
        self._joined_at = self._answered_at = self._began_at = self._spawned_at = 0.0
        self._assignment: Assignment | None = None

    def joining(self) -> None:
        self._joined_at, self._answered_at = time.time(), 0.0

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply):  # it knows of the node
            self._answered_at = self._answered_at or time.time()

    def starting(self, assignment: Assignment) -> None:
        self._began_at = time.time()
        self._assignment = assignment
        self._step("join", self._joined_at, self._answered_at)
        self._step("wait", self._answered_at, self._began_at)

    def started(self, assignment: Assignment, pids: Sequence[int]) -> None:
        self._spawned_at = time.time()
        self._step("spawn", self._began_at, self._spawned_at)

    def first_output(self, assignment: Assignment) -> None:
        if assignment is self._assignment:
            self._step("first_output", self._spawned_at, time.time())
            self._assignment = None

    def close(self) -> None:
        self._spans.close()

    def _step(self, name: str, began_at: float, ended_at: float) -> None:
        if (assignment := self._assignment) is None:
            return
        round_ = TracedRound(self._run_id, assignment.round, assignment.master_addr, assignment.master_port)
        node = node_part(assignment.group_rank)
        attributes: Attributes = {
            "rdzv.run.id": self._run_id,
            "rdzv.round": assignment.round,
            "rdzv.node.id": self._node_id,
            "rdzv.node.group_rank": assignment.group_rank,
            "rdzv.node.workers": assignment.local_world_size,
        }
        self._spans.add(Part(round_, f"rdzv.node.{name}", f"{node} {name}", node, began_at, ended_at, attributes))
