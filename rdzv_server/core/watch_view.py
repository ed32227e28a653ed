"""View of a run for those who watch it: times are points in time, no ages, so that nothing changes by itself.

The words are those of the status. Fields that do not apply are left out, so that differences are JSON merge patches
(RFC 7386), in which null means that a member is gone.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins
from rdzv_protocol.messages import Failure
from rdzv_protocol.timing import hold_s

from rdzv_server.core import completion, status_view, stragglers, time_ledger
from rdzv_server.core.events import Cordon
from rdzv_server.core.run import Agent, FailureRecord, Run, Stage
from rdzv_server.core.status_view import NodeState, Phase

Clock = Callable[[float], float]
"""Conversion of a time of the run to wall-clock time, seconds since 1970."""
At = Annotated[float, Meta(description="seconds since 1970")]
Document = dict[str, Any]

QUIET_SLACK_S = 1.0
"""Seconds that a poll may be late before its node is quiet."""
MOST_QUIET = 256
MOST_MISSING = 256


class RunSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of a run: its line in the list of all runs."""

    run_id: str
    attempt: int
    phase: Phase
    reason: str
    ending: str | None = None
    """Event at `deadline_at`: the round `starts`, the run `gives_up`, or the running round `ends`."""
    deadline_at: At | None = None
    round: int
    nodes: int
    """Participants of a running round; agents that have joined a forming one."""
    standbys: int = 0
    min_nodes: int
    max_nodes: int
    restart_count: int
    max_restarts: int
    created_at: At
    since: At
    """Beginning of the phase."""
    ended_at: At | None = None


class FailureView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's failure with its evidence."""

    round: int
    at: At
    sentence: str
    failure: Failure


class MissingView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A seat of the last round whose node is gone."""

    node_id: str
    cause: str
    at: At


class CordonView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cordon of a node: why it gets no seat in a new round, and until when."""

    by: str
    reason: str = ""
    until: At | None = None
    excluded: bool = False
    """Whether the cordon is the server's own, for what runs have blamed the node for."""


class NodeView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent of the run and the seat that it has, if any."""

    node_id: str
    agent_id: str
    state: NodeState
    addr: str
    role: str
    local_world_size: int
    group_rank: int | None = None
    node_rank: int | None = None
    first_rank: int | None = None
    cordon: CordonView | None = None
    slow: str = ""
    """Sentence about how much slower the node is than the others; empty: it is not."""
    failures: int = 0


class RunView(RunSummary, frozen=True, kw_only=True, omit_defaults=True):
    """Run without its nodes."""

    world_size: int
    lease_s: float
    disconnect_grace_s: float
    quiet_after_s: float
    """Seconds of silence after which a node is shown as quiet."""
    restarts: dict[str, int] = {}
    event_number: int
    """Number of the latest event."""
    time_s: dict[str, float] = {}
    """Seconds of the run until `time_since`, by what they went into."""
    time_in: str
    """Phase to which the run's time is counted since `time_since`."""
    time_since: At
    missing: dict[str, MissingView] = {}
    """Seats whose node is gone, by group rank."""
    first_failure: FailureView | None = None
    end_failure: FailureView | None = None


class QuietView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of which nothing was heard for longer than usual."""

    why: Literal["silent", "disconnected"]
    since: At
    """Time at which the connection closed; of a silent node, when it was heard last."""
    heard_at: At
    """Time at which the agent was heard last, and its lease began."""


def summary(run: Run, now: float, clock: Clock) -> Document:
    """Summary of the run, for the list of all runs."""
    return plain(RunSummary(**_summary(run, now, clock)))


def view(run: Run, now: float, clock: Clock) -> Document:
    """View of the run without its nodes. Its size does not depend on their number."""
    return plain(
        RunView(
            **_summary(run, now, clock),
            world_size=status_view.world_size(run),
            lease_s=run.settings.lease_s,
            disconnect_grace_s=run.settings.disconnect_grace_s,
            quiet_after_s=quiet_after_s(run),
            restarts={cause.value: times for cause, times in run.restarts.items()},
            event_number=run.event_number,
            time_s={word: round(seconds, 1) for word, seconds in time_ledger.entered(run, now).items()},
            time_in=run.time.phase,
            time_since=clock(run.time.since),
            missing=_missing(run, clock),
            first_failure=_failure(run.first_failure, clock),
            end_failure=_failure(run.first_of_round if run.end_failure else None, clock),
        )
    )


def node(run: Run, agent: Agent) -> Document:
    """View of one agent of the run."""
    seat = run.seat_of(agent.agent_id)
    return plain(
        NodeView(
            node_id=agent.node_id,
            agent_id=status_view.short(agent.agent_id),
            state=status_view.state(run, agent),
            addr=agent.join.addr,
            role=agent.join.role,
            local_world_size=agent.join.local_world_size,
            group_rank=seat.group_rank if seat else None,
            node_rank=agent.join.node_rank,
            first_rank=seat.first_rank if seat else None,
            cordon=_cordon(run.cordons[agent.node_id]) if agent.node_id in run.cordons else None,
            slow=stragglers.slow(run, agent.agent_id),
            failures=run.failures_by_node.get(agent.node_id, 0),
        )
    )


def _cordon(given: Cordon) -> CordonView:
    return CordonView(by=given.by, reason=given.reason, until=given.wall_until, excluded=given.excludes)


def quiet(run: Run, now: float, clock: Clock) -> dict[str, Document]:
    """Views of agents that are absent, or silent for longer than usual, the longest first: at most `MOST_QUIET`."""
    found: dict[str, Document] = {}
    renewed = run.leases.renewed_at
    for agent_id, since in run.leases.absent_since.items():
        if len(found) == MOST_QUIET:
            break
        found[agent_id] = plain(QuietView(why="disconnected", since=clock(since), heard_at=clock(renewed[agent_id])))
    after_s = quiet_after_s(run)
    for agent_id, renewed_at in renewed.items():  # in the order of renewal
        if len(found) == MOST_QUIET or now - renewed_at < after_s:
            break
        silent = QuietView(why="silent", since=clock(renewed_at), heard_at=clock(renewed_at))
        found.setdefault(agent_id, plain(silent))
    return found


def quiet_after_s(run: Run) -> float:
    """Longest time in seconds between two signs of life of an agent that is well."""
    return hold_s(run.settings.lease_s) + QUIET_SLACK_S


def plain(value: Struct) -> Document:
    """Convert a view to what JSON can hold, without fields that do not apply."""
    document: Document = to_builtins(value)
    return document


def _summary(run: Run, now: float, clock: Clock) -> dict[str, Any]:
    reason, ending, deadline = _reason(run, now)
    running = run.stage is Stage.RUNNING
    return {
        "run_id": run.run_id,
        "attempt": run.attempt,
        "phase": status_view.phase(run),
        "reason": reason,
        "ending": ending,
        "deadline_at": None if deadline is None else clock(deadline),
        "round": run.round,
        "nodes": _present(run),
        "standbys": len(run.waiting) if running else 0,
        "min_nodes": run.settings.min_nodes,
        "max_nodes": run.settings.max_nodes,
        "restart_count": run.restart_count,
        "max_restarts": run.settings.max_restarts,
        "created_at": clock(run.created_at),
        "since": clock(status_view.since(run)),
        "ended_at": None if run.ended_at is None else clock(run.ended_at),
    }


def _present(run: Run) -> int:
    if run.stage is Stage.FORMING:
        return len(run.waiting)
    return run.survivors if run.membership else 0


def _reason(run: Run, now: float) -> tuple[str, str | None, float | None]:
    """Sentence about the run without a countdown, the event at the countdown's end, and the time of that."""
    if run.stage is Stage.FORMING:
        wait = completion.wait(run, now)
        return wait.reason, wait.ending, completion.deadline(run)
    if run.stage is Stage.RUNNING and run.scale_up_at is not None:
        return status_view.reason(run, now), "ends", run.scale_up_at
    return status_view.reason(run, now), None, None


def _missing(run: Run, clock: Clock) -> dict[str, MissingView]:
    """Seats that are missing in a forming round, by group rank; of many the latest."""
    if run.stage is not Stage.FORMING:
        return {}
    return {
        str(gone.group_rank): MissingView(node_id=gone.node_id, cause=gone.cause, at=clock(gone.at))
        for gone in completion.vacated(run)[-MOST_MISSING:]
    }


def _failure(record: FailureRecord | None, clock: Clock) -> FailureView | None:
    if record is None:
        return None
    return FailureView(
        round=record.round, at=clock(record.at), sentence=record.failure.sentence, failure=record.failure
    )


# Differences.


def difference(old: Document, new: Document) -> Document:
    """The JSON merge patch that makes `new` of `old`; empty if they are the same. Neither may hold a null."""
    patch: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if value != before:
            if isinstance(before, dict) and isinstance(value, dict):
                value = difference(before, value)
            patch[name] = value
    return patch


def merge(document: Document, patch: Document) -> None:
    """Apply a JSON merge patch, whose values the document may go on to use."""
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(document.get(name), dict):
                document[name] = {}
            merge(document[name], value)
        else:
            document[name] = value
