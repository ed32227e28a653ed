"""Runs of many nodes without a network: cost of the server's core and of the encoding of its messages.

All times are CPU time, and the garbage collector has the server's settings. While one event is handled, the server's
other runs wait.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from msgspec.structs import replace
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.messages import Directive, Failure, JoinRequest, Reply
from rdzv_protocol.settings import RequestedSettings

from benchmarks.launchers import Plan
from benchmarks.results import Row
from rdzv_server.core.events import LeaseRenewed, NodeJoined, WorkersFailed
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.runs.registry import Registry
from rdzv_server.core.views import run_view, status_view
from rdzv_server.http.garbage_collection import COLLECT_AFTER
from rdzv_server.http.status_endpoint import NODES_AT_ONCE

NODES = (1_000, 10_000, 100_000)
REPEAT = 3
TOTAL_BAR_S = 2.0
"""Bar for 100,000 nodes."""
EVENT_BARS_MS = {10_000: 50.0}
GROWTH_BAR = 2.0
"""Growth of the cost per node from the fewest nodes to the most: only memory outside the caches is slower."""
RUN_ID, SERVER_ADDR = "benchmark", "10.0.0.1"


@dataclass(slots=True)
class Sample:
    """CPU seconds of one run: of whole stages, and of single events."""

    stages: dict[str, float] = field(default_factory=dict)
    events: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.stages[name] = time.process_time() - began_s

    def event(self, name: str, happen: Callable[[], Any]) -> Any:
        """Call `happen`, and keep the longest time of all events of this name."""
        began_s = time.process_time()
        result = happen()
        self.events[name] = max(self.events.get(name, 0.0), time.process_time() - began_s)
        return result


def measure(plan: Plan) -> list[Row]:
    """Measure the time of each stage, in total and per node, its growth, and the longest time of each kind of event."""
    with _collecting_as_the_server():
        _play(NODES[0])
        turns = [{nodes: _play(nodes) for nodes in NODES} for _ in range(min(plan.repeat, REPEAT))]
    samples = {nodes: [turn[nodes] for turn in turns] for nodes in NODES}
    rows = [row for nodes in NODES for row in _stage_rows(nodes, samples[nodes])]
    rows += _growth_rows(samples)
    return rows + [row for nodes in NODES[1:] for row in _event_rows(nodes, samples[nodes])]


def _stage_rows(nodes: int, samples: list[Sample]) -> Iterator[Row]:
    for stage in samples[0].stages:
        taken = [sample.stages[stage] for sample in samples]
        each = [1e6 * seconds / nodes for seconds in taken]
        bar = TOTAL_BAR_S if nodes == NODES[-1] else None
        yield Row(measurement=stage, subject=f"{nodes} nodes", unit="s", samples=taken, bar=bar)
        yield Row(measurement=f"{stage}, a node", subject=f"{nodes} nodes", unit="µs", samples=each)


def _growth_rows(samples: dict[int, list[Sample]]) -> Iterator[Row]:
    few, many = NODES[0], NODES[-1]
    for stage in samples[few][0].stages:
        base = median(sample.stages[stage] for sample in samples[few]) / few
        growth = [sample.stages[stage] / many / base for sample in samples[many]]
        yield Row(
            measurement=f"{stage}, growth", subject=f"{few} to {many}", unit="times", samples=growth, bar=GROWTH_BAR
        )


def _event_rows(nodes: int, samples: list[Sample]) -> Iterator[Row]:
    for event in samples[0].events:
        taken = [1e3 * sample.events[event] for sample in samples]
        bar = EVENT_BARS_MS.get(nodes)
        yield Row(measurement=f"one event: {event}", subject=f"{nodes} nodes", unit="ms", samples=taken, bar=bar)


def _play(nodes: int) -> Sample:
    """Play a run: it forms a round, restarts after a failure, is shown, and loses all nodes except one."""
    sample, registry = Sample(), Registry(retention_s=3_600.0)
    bodies = [encode(_join(number, nodes)) for number in range(nodes)]
    with sample.stage("codec: a join in"):
        joins = [decode(JoinRequest, body) for body in bodies]
    with sample.stage("core round"):
        _form(sample, registry, joins)
    again = [replace(join, after_round=1) for join in joins]
    with sample.stage("core restart"):
        sample.event("failure that stops all", lambda: registry.handle(RUN_ID, _failed(joins[0]), 2.0))
        for join in joins:
            _directive(registry, join, 2.0)
        told = _form(sample, registry, again)
    with sample.stage("codec: a start out"):
        for revision, directive in told:
            encode(_reply(revision, directive))
    return _later(sample, registry, joins)


def _later(sample: Sample, registry: Registry, joins: list[JoinRequest]) -> Sample:
    with sample.stage("core keep-alives"):
        for join in joins:
            registry.handle(RUN_ID, LeaseRenewed(join.agent_id), 4.0)
    (run,) = registry.runs()
    with sample.stage("core status"):
        _show(sample, run)
    with sample.stage("core snapshot"):
        sample.event("snapshot", lambda: registry.snapshot((RUN_ID, 1), 4.0))
    for part in (0.5, 0.9):  # the server concludes nothing while it hears from no agent
        registry.handle(RUN_ID, LeaseRenewed(joins[-1].agent_id), 4.0 + part * run.settings.lease_s)
    with sample.stage("core loss of all"):
        while len(run.agents) > 1:
            sample.event("loss of all", lambda: registry.pass_time(5.0 + run.settings.lease_s))
    return sample


def _show(sample: Sample, run: Run) -> None:
    """Make the run's status as the server does: its nodes a few at a time, and other runs in between."""
    agents = run_view.agents(run)
    sample.event("status", lambda: status_view.view(run, 4.0, has_nodes=False))
    for first in range(0, len(agents), NODES_AT_ONCE):
        those = agents[first : first + NODES_AT_ONCE]
        sample.event("status", lambda those=those: [status_view.node(run, agent, 4.0) for agent in those])


def _form(sample: Sample, registry: Registry, joins: list[JoinRequest]) -> list[tuple[int, Directive]]:
    """Have every agent join as at a server; return the directives to start."""
    registry.handle(RUN_ID, NodeJoined(joins[0], SERVER_ADDR), 1.0)
    for join in joins[1:-1]:
        _enter(registry, join)
    sample.event("join that completes a round", lambda: _enter(registry, joins[-1]))
    return [_directive(registry, join, 3.0) for join in joins]


def _enter(registry: Registry, join: JoinRequest) -> None:
    registry.handle(RUN_ID, NodeJoined(join, SERVER_ADDR), 1.0)


def _directive(registry: Registry, join: JoinRequest, now: float) -> tuple[int, Directive]:
    return registry.machine_of(RUN_ID, join.agent_id).directive_for(join.agent_id, now)


def _join(number: int, nodes: int) -> JoinRequest:
    return JoinRequest(
        run_id=RUN_ID,
        agent_id=f"agent-{number}",
        node_id=f"node-{number}",
        after_round=0,
        addr=f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}",
        port=29_500,
        local_world_size=8,
        settings=RequestedSettings(min_nodes=nodes, max_nodes=nodes, max_restarts=1),
    )


def _failed(join: JoinRequest) -> WorkersFailed:
    failure = Failure(node_id=join.node_id, rank=0, local_rank=0, pid=1, exit_code=1, cause="exit code 1")
    return WorkersFailed(join.agent_id, 1, failure)


def _reply(revision: int, directive: Directive) -> Reply:
    return Reply(epoch="0", revision=revision, lease_s=10.0, directive=directive)


@contextmanager
def _collecting_as_the_server() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
