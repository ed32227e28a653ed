"""Traces of rounds, for `--otel`: how each round formed, each node's way into it, and how long it ran.

The exporter is an observer of the service. It remembers only the joins for rounds that form, and the rounds that run. A
server that restarts, or that becomes the leader, exports what it has seen itself.
"""

import logging
import socket
from collections.abc import Set

import rdzv_protocol
from rdzv_protocol.events import RunEvent
from rdzv_protocol.tracing import ROUND, Attributes, Part, SpanExport, TracedRound, node_part

from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record
from rdzv_server.core.events import NodeJoined
from rdzv_server.core.kernel.run import Cause, Membership, Run
from rdzv_server.service.interface import Service

log = logging.getLogger("rdzv_server")

MOST_NODES = 512
"""Most nodes of a round for which the server adds spans: those with the lowest ranks."""
ENDS = ("round_opened", "run_succeeded", "run_failed")


class RoundTraces:
    """Exporter of the rounds of a service's runs, until it is closed."""

    def __init__(self, service: Service, port: int) -> None:
        """Export what happens from now on. `port`: port of the server."""
        about: Attributes = {
            "service.version": rdzv_protocol.VERSION,
            "host.name": socket.gethostname(),
            "server.port": port,
        }
        self._service = service
        self._spans = SpanExport("rdzv-server", about, log.warning)
        self._joined_at: dict[str, dict[str, float]] = {}
        """Time of each agent's latest join, by run and agent, by the run's clock."""
        self._running: dict[str, tuple[TracedRound, RunEvent]] = {}
        """Running round and the event of its start, by run."""
        service.observe(self._see)

    def close(self) -> None:
        """Send what is left, which may take seconds."""
        self._spans.close()

    def _see(self, effect: Effect) -> None:
        match effect:
            case Record(run_id=run_id, at=at, fact=NodeJoined(join)):
                self._joined_at.setdefault(run_id, {})[join.agent_id] = at
            case EmitEvent(event) if event.kind == "round_started":
                self._started(event)
            case EmitEvent(event) if event.kind in ENDS:
                self._ended(event)
            case ForgetRun(run_id=run_id):
                self._joined_at.pop(run_id, None)

    def _started(self, event: RunEvent) -> None:
        joined_at = self._joined_at.pop(event.run_id, {})
        runs = self._service.runs()
        self._forget_others({run.run_id for run in runs})
        run = next((run for run in runs if _is_of(event, run)), None)
        if run is None or run.membership is None or event.at is None:
            return  # the run has moved on since: its nodes are no longer known
        members = run.membership
        traced = TracedRound(event.run_id, event.round, members.master_addr, members.master_port)
        self._running[event.run_id] = traced, event
        began_at = event.at - (event.duration_s or 0.0)
        self._spans.add(Part(traced, ROUND, ROUND, "", began_at, event.at, _attributes(event)))
        self._add_nodes(run, members, traced, event, joined_at)

    def _forget_others(self, run_ids: Set[str]) -> None:
        """Forget the runs that another server leads by now."""
        for remembered in (self._joined_at, self._running):
            for run_id in remembered.keys() - run_ids:
                del remembered[run_id]

    def _add_nodes(
        self, run: Run, members: Membership, traced: TracedRound, event: RunEvent, joined_at: dict[str, float]
    ) -> None:
        for seat in list(members.seats.values())[:MOST_NODES]:
            at = run.wall_clock(joined_at[seat.agent_id]) if seat.agent_id in joined_at else None
            if at is not None and event.at is not None:
                attributes: Attributes = {
                    "rdzv.run.id": event.run_id,
                    "rdzv.round": event.round,
                    "rdzv.node.id": seat.node_id,
                    "rdzv.node.group_rank": seat.group_rank,
                    "rdzv.node.workers": seat.local_world_size,
                }
                name = node_part(seat.group_rank)
                self._spans.add(Part(traced, "rdzv.node", name, ROUND, at, event.at, attributes))

    def _ended(self, event: RunEvent) -> None:
        traced, started = self._running.pop(event.run_id, (None, None))
        if traced and started and started.at and event.at:
            is_failure = event.kind == "run_failed" or bool(event.cause and Cause(event.cause).is_failure)
            attributes = {**_attributes(started), "rdzv.round.ended_by": event.cause or event.kind}
            if is_failure:
                attributes["error.type"] = event.cause or event.kind
            error = event.reason if is_failure else ""
            self._spans.add(Part(traced, "rdzv.round.run", "run", ROUND, started.at, event.at, attributes, error))


def _is_of(event: RunEvent, run: Run) -> bool:
    is_same_round = run.membership is not None and run.membership.round == event.round
    return (run.run_id, run.attempt) == (event.run_id, event.attempt) and is_same_round


def _attributes(event: RunEvent) -> dict[str, str | int | float | bool]:
    return {
        "rdzv.run.id": event.run_id,
        "rdzv.run.attempt": event.attempt,
        "rdzv.round": event.round,
        "rdzv.round.cause": event.cause or "",
        "rdzv.round.charged": bool(event.charged),
        "rdzv.round.nodes": event.nodes or 0,
        "rdzv.round.world_size": event.world_size or 0,
        "rdzv.round.reason": event.reason,
    }
