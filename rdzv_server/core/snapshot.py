"""The state of a run as it stands, as a few facts in place of all those that led to it.

`take` gives them and `restore` applies them, one by one and in their order, after the `RunCreated` of the attempt: a
`RunSnapshot`, then the other parts, then `SnapshotCompleted`. Only what has been written down to `SnapshotCompleted`
counts (see `record_codec.settled`). Leases are no part of it: after a restart every agent gets a fresh one. Nor are
runs that have ended.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.messages import JoinRequest, Start, Stop

from rdzv_server.core.run import (
    Agent,
    AgentState,
    Cause,
    Departure,
    FailureRecord,
    Membership,
    Opening,
    Restart,
    Run,
    Seat,
    Stage,
    Terms,
)

CHUNK = 256
"""Names that one fact holds."""


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """Facts of the run itself; agents and the last round have parts of their own."""

    stage: Stage
    round: int
    opening: Opening
    membership_round: int
    """0: no round has completed."""
    started_at: float
    scale_up_at: float | None
    verdict_at: float | None
    revision: int
    restart_count: int
    ledger: tuple[Restart, ...]
    terms: Terms | None = None
    """Of the last completed round."""
    command_of: str = ""


class SeatSnapshot(Struct, frozen=True, kw_only=True):
    """A participant of the last completed round, gone or not, and what it reported."""

    seat: Seat
    succeeded: bool
    failed: bool


class AgentSnapshot(Struct, frozen=True, kw_only=True):
    """An agent of the run. Those of one state come in the order in which they got into it."""

    join: JoinRequest
    server_addr: str
    state: AgentState
    round: int
    start: Start | None
    stop: Stop | None
    """Its directive, if it is one of these and not what its state implies."""
    revision: int


class FailureSnapshot(Struct, frozen=True, kw_only=True):
    record: FailureRecord
    is_listed: bool
    is_first: bool
    is_first_charged: bool
    is_of_round: bool


class DepartureSnapshot(Struct, frozen=True, kw_only=True):
    departure: Departure


class DepartedSnapshot(Struct, frozen=True, kw_only=True):
    """Some of the agents that were part of the run."""

    agent_ids: tuple[str, ...]


class Tally(Struct, frozen=True, kw_only=True):
    """So many of something."""

    of: str
    count: int


class TalliesSnapshot(Struct, frozen=True, kw_only=True):
    """Some of the counts: restarts by cause, or failures by node."""

    restarts: tuple[Tally, ...] = ()
    failures: tuple[Tally, ...] = ()


class SnapshotCompleted(Struct, frozen=True, kw_only=True):
    """The snapshot is complete."""


SnapshotPart = (
    RunSnapshot
    | SeatSnapshot
    | AgentSnapshot
    | FailureSnapshot
    | DepartureSnapshot
    | DepartedSnapshot
    | TalliesSnapshot
    | SnapshotCompleted
)


def take(run: Run) -> Iterator[SnapshotPart]:
    """The facts that `restore` makes the run of, which has not ended."""
    yield RunSnapshot(
        stage=run.stage,
        round=run.round,
        opening=replace(run.opening),
        membership_round=run.membership.round if run.membership else 0,
        started_at=run.started_at,
        scale_up_at=run.scale_up_at,
        verdict_at=run.verdict_at,
        revision=run.revision,
        restart_count=run.restart_count,
        ledger=tuple(run.ledger),
        terms=run.membership.terms if run.membership else None,
        command_of=run.command_of,
    )
    for seat in run.membership.seats.values() if run.membership else ():
        yield SeatSnapshot(seat=seat, succeeded=seat.agent_id in run.succeeded, failed=seat.agent_id in run.failed)
    yield from _agents(run)
    yield from _failures(run)
    for departure in run.departures:
        yield DepartureSnapshot(departure=departure)
    for agent_ids in _chunks(sorted(run.departed_ids)):
        yield DepartedSnapshot(agent_ids=agent_ids)
    yield TalliesSnapshot(restarts=tuple(Tally(of=cause.value, count=count) for cause, count in run.restarts.items()))
    for node_ids in _chunks(run.failures_by_node):
        yield TalliesSnapshot(failures=tuple(Tally(of=node, count=run.failures_by_node[node]) for node in node_ids))
    yield SnapshotCompleted()


def restore(run: Run, kept: SnapshotPart) -> None:
    """Apply a fact that `take` gave of another run to this one, which is as `RunCreated` left it."""
    match kept:
        case RunSnapshot():
            _restore_run(run, kept)
        case SeatSnapshot(seat=seat):
            assert run.membership
            run.membership.seats[seat.agent_id] = seat
            run.succeeded.update((seat.agent_id,) * kept.succeeded)
            run.failed.update((seat.agent_id,) * kept.failed)
        case AgentSnapshot():
            agent = Agent(kept.join, kept.server_addr, kept.state, kept.round, kept.start or kept.stop, kept.revision)
            run.move(agent, kept.state)
            run.survivors += run.seat_of(agent.agent_id) is not None
        case FailureSnapshot():
            _restore_failure(run, kept)
        case DepartureSnapshot(departure=departure):
            run.departures.append(departure)
        case DepartedSnapshot(agent_ids=agent_ids):
            run.departed_ids.update(agent_ids)
        case TalliesSnapshot(restarts=restarts, failures=failures):
            run.restarts.update({Cause(tally.of): tally.count for tally in restarts})
            run.failures_by_node.update({tally.of: tally.count for tally in failures})
        case SnapshotCompleted():
            pass


def _restore_run(run: Run, kept: RunSnapshot) -> None:
    run.stage, run.round, run.opening = kept.stage, kept.round, replace(kept.opening)
    run.membership = Membership(kept.membership_round, {}, kept.terms) if kept.membership_round else None
    run.started_at, run.scale_up_at, run.verdict_at = kept.started_at, kept.scale_up_at, kept.verdict_at
    run.revision, run.restart_count, run.command_of = kept.revision, kept.restart_count, kept.command_of
    run.ledger.extend(kept.ledger)


def _restore_failure(run: Run, kept: FailureSnapshot) -> None:
    record = kept.record
    if kept.is_listed:
        run.failures.append(record)
    run.first_failure = record if kept.is_first else run.first_failure
    run.first_charged = record if kept.is_first_charged else run.first_charged
    run.first_of_round = record if kept.is_of_round else run.first_of_round


def _agents(run: Run) -> Iterator[AgentSnapshot]:
    for agents in run.by_state.values():
        for agent in agents.values():
            yield AgentSnapshot(
                join=agent.join,
                server_addr=agent.server_addr,
                state=agent.state,
                round=agent.round,
                start=agent.directive if isinstance(agent.directive, Start) else None,
                stop=agent.directive if isinstance(agent.directive, Stop) else None,
                revision=agent.revision,
            )


def _failures(run: Run) -> Iterator[FailureSnapshot]:
    """Each record once: that it is the same one in several places means something."""
    special = (run.first_failure, run.first_charged, run.first_of_round)
    listed = {id(record) for record in run.failures}
    unlisted = {id(record): record for record in special if record and id(record) not in listed}
    for record in (*unlisted.values(), *run.failures):
        yield FailureSnapshot(
            record=record,
            is_listed=id(record) in listed,
            is_first=record is run.first_failure,
            is_first_charged=record is run.first_charged,
            is_of_round=record is run.first_of_round,
        )


def _chunks(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    listed = tuple(names)
    for begin in range(0, len(listed), CHUNK):
        yield listed[begin : begin + CHUNK]
