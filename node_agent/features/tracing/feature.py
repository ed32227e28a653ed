"""`--otel`: exports this node's start of each round as spans: join, wait, spawn, first output."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial

from rdzv_protocol import VERSION
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Reply
from rdzv_protocol.tracing import Attributes, Part, SpanExport, TracedRound, node_part

from node_agent.features import tracing
from node_agent.kernel.config import PROGRAM
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.threads import in_thread


class RoundTrace(Feature):
    """Trace of a node's start of a round. Records each step, and exports all once the round's trace is known."""

    def __init__(self, kernel: Kernel, options: tracing.Tracing) -> None:
        super().__init__(kernel)
        self._run_id, self._node_id = kernel.config.join.run_id, kernel.config.join.node_id
        about: Attributes = {"service.version": VERSION, "host.name": self._node_id, "process.pid": os.getpid()}
        self._spans = SpanExport(PROGRAM, about, kernel.console.log)
        self._joined_at = self._answered_at = self._began_at = self._spawned_at = 0.0
        self._assignment: Assignment | None = None

    def joining(self) -> None:
        self._joined_at, self._answered_at = time.time(), 0.0

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply):  # the server knows the node
            self._answered_at = self._answered_at or time.time()

    def starting(self, assignment: Assignment) -> None:
        self._began_at = time.time()
        self._assignment = assignment
        self._step("join", self._joined_at, self._answered_at)
        self._step("wait", self._answered_at, self._began_at)

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        self._spawned_at = time.time()
        self._step("spawn", self._began_at, self._spawned_at)

    def sinks(self, local_rank: int, *, is_shown: bool) -> list[Sink]:
        return [_FirstOutput(partial(self._first_output, self._assignment))] if is_shown else []

    def _first_output(self, assignment: Assignment | None) -> None:
        if assignment and assignment is self._assignment:
            self._step("first_output", self._spawned_at, time.time())
            self._assignment = None

    async def close(self) -> None:
        await in_thread(self._spans.close)  # this may block

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


class _FirstOutput(Sink):
    """Calls back when the worker writes for the first time."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell: Callable[[], None] | None = tell

    def take(self, chunk: bytes) -> None:
        if self._tell:
            tell, self._tell = self._tell, None
            tell()
