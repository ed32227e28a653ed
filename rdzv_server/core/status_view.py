"""What operators see of a run: plain values, ready for JSON. Durations are seconds; ages count from now."""

from typing import Any

from rdzv_protocol.messages import Failure
from rdzv_protocol.settings import RunSettings

from rdzv_server.core import completion
from rdzv_server.core.run import Agent, AgentState, Cause, FailureRecord, Run, Seat, Stage

View = dict[str, Any]
SHORT_ID, HIDDEN = 12, 8
"""Ids up to this length are shown whole; of longer ones so many characters at the end are not."""


def view(run: Run, now: float) -> View:
    """One attempt of a run: where it stands and why, its nodes, who is missing until when, its history."""
    return {
        "run_id": run.run_id,
        "attempt": run.attempt,
        "phase": phase(run),
        "reason": reason(run, now),
        "round": run.round,
        "world_size": _world_size(run),
        "min_nodes": run.settings.min_nodes,
        "max_nodes": run.settings.max_nodes,
        "restart_count": run.restart_count,
        "max_restarts": run.settings.max_restarts,
        "restarts": {cause.value: run.restarts.get(cause, 0) for cause in Cause if cause is not Cause.FIRST},
        "age_s": _round(now - run.founded_at),
        "deadline_s": _deadline_s(run, now),
        "missing": missing(run),
        "nodes": [_node(run, agent, now) for agent in sorted(run.agents.values(), key=lambda a: _position(run, a))],
        "first_failure": _failure(run.first_failure, now),
        "end_failure": _failure(run.first_of_round if run.end_failure else None, now),
        "failures": [_failure(record, now) for record in run.failures],
        "departures": [
            {
                "node_id": gone.node_id,
                "agent_id": _short(gone.agent_id),
                "round": gone.round,
                "group_rank": gone.group_rank,
                "left": gone.left,
                "cause": gone.cause,
                "age_s": _round(now - gone.at),
            }
            for gone in run.departures
        ],
        "history": [
            {
                "round": restart.round,
                "cause": restart.cause.value,
                "charged": restart.charged,
                "reason": restart.reason,
                "age_s": _round(now - restart.at),
            }
            for restart in run.ledger
        ],
        "settings": _settings(run.settings),
    }


def phase(run: Run) -> str:
    """The stage, told apart for people: a round that forms again is `restarting`, one that is half done `finishing`."""
    if run.stage is Stage.FORMING and run.membership:
        return "restarting"
    if run.stage is Stage.RUNNING and run.succeeded:
        return "finishing"
    return run.stage.value


def reason(run: Run, now: float) -> str:
    """The one sentence about the run as it stands."""
    if run.stage is Stage.FORMING:
        return completion.reason(run, now)
    if run.stage is Stage.RUNNING:
        return completion.running_reason(run)
    return run.end_reason


def missing(run: Run) -> View | None:
    """Whom a forming round waits for: those that stop their workers, those that are gone, and how many more."""
    if run.stage is not Stage.FORMING:
        return None
    return {
        "more_nodes": max(0, run.settings.min_nodes - len(run.waiting)),
        "stopping": [agent.node_id for agent in run.stopping.values()],
        "gone": [gone.node_id for gone in run.departures if completion.left_a_seat(run, gone)],
    }


def _deadline_s(run: Run, now: float) -> float | None:
    until = completion.deadline(run) if run.stage is Stage.FORMING else None
    return None if until is None else _round(max(0.0, until - now))


def _node(run: Run, agent: Agent, now: float) -> View:
    seat = run.seat_of(agent.agent_id)
    heard_at = run.leases.heard_at.get(agent.agent_id)
    absent_since = run.leases.absent_since.get(agent.agent_id)
    return {
        "node_id": agent.node_id,
        "agent_id": _short(agent.agent_id),
        "state": _state(run, agent),
        "connected": absent_since is None,
        "addr": agent.join.addr,
        "port": agent.join.port,
        "role": agent.join.role,
        "node_rank": agent.join.node_rank,
        "local_world_size": agent.join.local_world_size,
        "group_rank": seat.group_rank if seat else None,
        "ranks": _ranks(seat) if seat else [],
        "lease_age_s": None if heard_at is None else _round(now - heard_at),
        "lease_left_s": None if heard_at is None else _round(heard_at + run.settings.lease_s - now),
        "failures": run.failures_by_node.get(agent.node_id, 0),
    }


def _short(agent_id: str) -> str:
    """Enough of an id to tell agents apart, and too little to speak in an agent's name."""
    return agent_id if len(agent_id) <= SHORT_ID else agent_id[:-HIDDEN]


def _state(run: Run, agent: Agent) -> str:
    if run.stage.is_end:
        return run.stage.value
    standing_by = agent.state is AgentState.WAITING and run.stage is Stage.RUNNING
    return "standby" if standing_by else agent.state.value


def _position(run: Run, agent: Agent) -> tuple[int, str]:
    seat = run.seat_of(agent.agent_id)
    return (seat.group_rank if seat else len(run.agents), agent.node_id)


def _ranks(seat: Seat) -> list[int]:
    """First and last rank."""
    return [seat.first_rank, seat.first_rank + seat.local_world_size - 1]


def _world_size(run: Run) -> int:
    if run.stage is Stage.FORMING or run.membership is None:
        return 0
    return sum(seat.local_world_size for seat in run.membership.seats.values())


def _failure(record: FailureRecord | None, now: float) -> View | None:
    if record is None:
        return None
    failure: Failure = record.failure
    return {
        "round": record.round,
        "node_id": failure.node_id,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exit_code,
        "cause": failure.cause,
        "error": failure.error,
        "traceback": list(failure.traceback),
        "stderr_tail": list(failure.stderr_tail),
        "hint": failure.hint,
        "consequence": failure.consequence,
        "error_file": failure.error_file,
        "failed_at": failure.failed_at,
        "age_s": _round(now - record.at),
    }


def _settings(settings: RunSettings) -> View:
    return {name: getattr(settings, name) for name in RunSettings.__slots__}


def _round(seconds: float) -> float:
    return round(seconds, 3)
