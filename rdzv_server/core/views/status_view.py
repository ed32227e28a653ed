"""Status of a run as operators see it. Durations are in seconds; ages count back from now."""

from collections.abc import Collection, Iterator
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, structs
from rdzv_protocol.constraints import (
    Address,
    Count,
    Duration,
    Id,
    NodeCount,
    Port,
    Rank,
    RoleName,
    Round,
    Step,
    WorkerCount,
)
from rdzv_protocol.messages import Failure, RestartCost, RestartCosts
from rdzv_protocol.settings import RunSettings
from rdzv_protocol.states import Health, Phase
from rdzv_protocol.text import printable

from rdzv_server.core.kernel import admission, finishing, legal_sizes, restart_budget
from rdzv_server.core.kernel.restart_budget import OwnBudget
from rdzv_server.core.kernel.run import (
    Agent,
    AgentState,
    Cause,
    Departure,
    FailureRecord,
    ProgressSign,
    Restart,
    Run,
    Seat,
    Stage,
)
from rdzv_server.core.nodes import cordons
from rdzv_server.core.nodes.cordons import CordonStatus
from rdzv_server.core.policies import restart_cost, time_ledger
from rdzv_server.core.policies.hangs import hang_status
from rdzv_server.core.policies.hangs.hang_status import HangStatus
from rdzv_server.core.policies.network_check import network_status
from rdzv_server.core.policies.network_check.network_status import BrokenLinkStatus
from rdzv_server.core.policies.time_ledger import TimeStatus
from rdzv_server.core.views import health, run_view, watch_view
from rdzv_server.core.views.run_view import NodeState
from rdzv_server.core.views.watch_view import Quiet

_DRAINING = AgentState.DRAINING  # a constant: to look up a member of an enumeration is slow

Status = TypeVar("Status", bound=Struct)


class ProgressStatus(Struct, frozen=True, kw_only=True):
    """Progress that workers have reported with `node_agent.progress`: of one node, or of the whole run."""

    lowest_step: Annotated[Step | None, Meta(description="step of the worker that is furthest behind")]
    highest_step: Step | None
    step_s: Annotated[float | None, Meta(description="current seconds per step, of the slowest worker")]
    age_s: Annotated[
        float, Meta(description="seconds since the last report of the worker that has been silent for longest")
    ]
    checkpoint_step: Annotated[Step | None, Meta(description="step of the last complete checkpoint in this round")]
    checkpoint_s: Annotated[float, Meta(description="seconds spent on checkpoints in this round")]


class NodeStatus(Struct, frozen=True, kw_only=True):
    """An agent of the run, and its seat if it has one."""

    node_id: Id
    agent_id: Id
    state: NodeState
    connected: bool
    addr: Address
    port: Port
    role: RoleName
    node_rank: Rank | None
    local_world_size: WorkerCount
    group_rank: Rank | None
    ranks: Annotated[list[int], Meta(description="first and last rank; empty without a seat")]
    lease_age_s: Duration | None
    lease_left_s: Duration | None
    lost_in_s: Annotated[
        Duration | None,
        Meta(
            description="seconds until the agent is lost if it stays silent; null: it is connected, or the run waits "
            "for it"
        ),
    ]
    quiet: Annotated[
        Quiet, Meta(description="why the server does not hear the agent; empty: it does, or the run has ended")
    ]
    failures: Count
    log_dir: Annotated[str, Meta(description="folder on the node with its workers' log files; empty: no files")]
    cordon: CordonStatus | None
    slow: Annotated[
        str, Meta(description="sentence that compares the slow node with the others; empty: the node is not slow")
    ]
    remarks: Annotated[dict[str, str], Meta(description="sentences about the node, each under a word such as `slow`")]
    drain_left_s: Annotated[float | None, Meta(description="seconds that the workers of a drained node have left")]
    progress: ProgressStatus | None


class FailureStatus(Failure, frozen=True, kw_only=True):
    """A worker's failure with its evidence, and the round that it belongs to."""

    round: Round
    age_s: Duration


class DepartureStatus(Struct, frozen=True, kw_only=True):
    """A participant that is gone."""

    node_id: Id
    agent_id: Id
    round: Round
    group_rank: Rank | None
    had_ranks: Annotated[
        list[int],
        Meta(description="first and last rank in the last round that had workers; empty: it had no seat there"),
    ]
    left: Annotated[bool, Meta(description="the agent announced that it leaves")]
    cause: str
    age_s: Duration
    log_dir: Annotated[str, Meta(description="folder on the node with its workers' log files; empty: no files")]


class MissingStatus(Struct, frozen=True, kw_only=True):
    """Nodes that a forming round waits for: nodes that stop their workers, nodes that are gone, and how many more."""

    more_nodes: Count
    stopping: list[str]
    gone: list[str]
    departures: Annotated[list[DepartureStatus], Meta(description="departures of the nodes that are gone")]
    more_gone: Annotated[Count, Meta(description="number of further nodes that are gone, without their names")]
    refused: Annotated[dict[str, str], Meta(description="nodes whose agents may not join, each with the reason")]


class RestartStatus(Struct, frozen=True, kw_only=True):
    """A line of the run's ledger: why a round was opened, and whether the restart was charged."""

    round: Round
    cause: Cause
    charged: bool
    reason: str
    age_s: Duration
    took_s: Annotated[
        Duration | None,
        Meta(description="seconds from the fault to the workers' next progress; null: not known, or not yet"),
    ]
    cost: Annotated[
        RestartCost | None,
        Meta(description="parts of that time that are known; null: its round has not started, or is too long ago"),
    ]


class FinishingStatus(Struct, frozen=True, kw_only=True):
    """A running round in which some workers have finished and others have not."""

    age_s: Annotated[float, Meta(ge=0, description="seconds since the last worker finished")]
    finished: Annotated[str, Meta(description="ranks that have finished, or the number of their nodes")]
    still_running: Annotated[str, Meta(description="ranks that are still running, with their nodes")]
    warned: Annotated[bool, Meta(description="the server has warned, because the wait is long")]


class EndingStatus(Struct, frozen=True, kw_only=True):
    """Announced end of the running round, before which the workers save their work."""

    reason: Annotated[str, Meta(description="which node leaves or arrives, and why")]
    ends_in_s: Annotated[float, Meta(ge=0, description="the most seconds until the round ends")]
    leaving: Annotated[list[str], Meta(description="nodes that leave when the round ends")]
    more_nodes: Annotated[
        int, Meta(ge=0, description="number of further nodes that the next round needs for its minimum")
    ]


class HealthStatus(Struct, frozen=True, kw_only=True):
    """Health of a run that has not ended: the worst finding, and what a person can do about all of them."""

    state: Health
    sentence: str
    age_s: Duration
    next: Annotated[list[str], Meta(description="steps that a person can take, with their commands")]
    others: Annotated[list[Health], Meta(description="further states that apply, the worst first")]
    is_trouble: Annotated[bool, Meta(description="a person should look at the run because of one of these states")]
    next_of: Annotated[dict[Health, list[str]], Meta(description="the same steps, by the state that they are about")]


class RunStatus(Struct, frozen=True, kw_only=True):
    """One attempt of a run: its state and the reason, its nodes, the missing nodes with a deadline, and its history."""

    run_id: Id
    attempt: Count
    phase: Phase
    reason: str
    round: Round
    health: Annotated[HealthStatus | None, Meta(description="null: the run has ended, or cannot be shown")]
    world_size: Annotated[int, Meta(ge=0)]
    present: Annotated[Count, Meta(description="nodes in the running round, or nodes that wait for the forming round")]
    standbys: Annotated[Count, Meta(description="standby nodes during a running round")]
    workers_round: Annotated[Round, Meta(description="round of the workers that started last; 0: none have started")]
    min_nodes: NodeCount
    max_nodes: NodeCount
    largest_size: Annotated[Count, Meta(description="largest legal size; further nodes stand by")]
    next_size: Annotated[
        NodeCount | None,
        Meta(description="next larger legal size, for which nodes are missing; null: none"),
    ]
    free_seats: Annotated[int, Meta(ge=0, description="seats that standby nodes would fill in a new round")]
    restart_count: Count
    max_restarts: Count
    restarts_left: Annotated[
        int, Meta(ge=0, description="charged restarts that are left before a failure ends the run")
    ]
    restarts_used: Annotated[Count, Meta(description="charged restarts that count against max_restarts now")]
    own_budgets: Annotated[
        dict[str, OwnBudget],
        Meta(description="budgets of the causes whose charged restarts do not count against max_restarts"),
    ]
    restarts: Annotated[dict[str, Count], Meta(description="number of restarts by cause")]
    age_s: Duration
    phase_age_s: Annotated[float, Meta(description="seconds since the run last began to form, began to run, or ended")]
    time_s: TimeStatus
    restart_costs: Annotated[RestartCosts, Meta(description="what all restarts took together")]
    deadline_s: Duration | None
    progress: ProgressStatus | None
    hang: HangStatus | None
    finishing: FinishingStatus | None
    ending: Annotated[EndingStatus | None, Meta(description="null: the workers have no notice that their round ends")]
    is_stopped: Annotated[bool, Meta(description="an operator has stopped the run")]
    unheard_s: Annotated[
        float | None,
        Meta(description="seconds since the server last heard any agent of the running round; null: it hears an agent"),
    ]
    waits_for_agents: Annotated[
        bool,
        Meta(description="the server does not hear from any agent of the running round and waits; no node is lost"),
    ]
    can_be_forgotten: Annotated[bool, Meta(description="an operator can have the server forget the run")]
    missing: MissingStatus | None
    broken_links: list[BrokenLinkStatus]
    nodes: list[NodeStatus]
    first_failure: FailureStatus | None
    last_failure: Annotated[
        FailureStatus | None,
        Meta(description="first failure of the last failed round, without evidence; null: the same as first_failure"),
    ]
    failed_rounds: Annotated[Count, Meta(description="rounds that a failure has ended or is ending")]
    end_failure: FailureStatus | None
    failures: list[FailureStatus]
    departures: list[DepartureStatus]
    history: list[RestartStatus]
    settings: RunSettings


def view(run: Run, now: float, *, has_nodes: bool = True) -> RunStatus:
    """Return the current status of a run. `has_nodes`: whether to include its nodes, however many there are."""
    return RunStatus(
        run_id=run.run_id,
        attempt=run.attempt,
        phase=run_view.phase(run),
        reason=run_view.reason(run, now),
        round=run.round,
        health=_health(run, now),
        world_size=run_view.world_size(run),
        present=run_view.present(run),
        standbys=run_view.standbys(run),
        workers_round=run_view.workers_round(run),
        min_nodes=run.settings.min_nodes,
        max_nodes=run.settings.max_nodes,
        largest_size=legal_sizes.largest(run.settings),
        next_size=legal_sizes.above(run.settings, len(run.running) + len(run.waiting)),
        free_seats=admission.free_seats(run) if run.stage is Stage.RUNNING else 0,
        restart_count=run.restart_count,
        max_restarts=run.settings.max_restarts,
        restarts_left=restart_budget.left(run, now),
        restarts_used=restart_budget.used(run, now),
        own_budgets={cause.value: budget for cause, budget in restart_budget.own_budgets(run).items()},
        restarts={cause.value: run.restarts.get(cause, 0) for cause in Cause if cause is not Cause.FIRST},
        age_s=_round(now - run.created_at),
        phase_age_s=_round(now - run.stage_since),
        time_s=time_ledger.view(run, now),
        restart_costs=restart_cost.total(run),
        deadline_s=_deadline_s(run, now),
        progress=_progress(run.progress.values(), now),
        hang=hang_status.view(run, now),
        finishing=_finishing(run, now),
        ending=_ending(run, now),
        is_stopped=run.is_stopped,
        unheard_s=None if (unheard_s := run_view.unheard_s(run, now)) is None else _round(unheard_s),
        waits_for_agents=run_view.waits_for_agents(run),
        can_be_forgotten=run.can_be_forgotten,
        missing=_missing(run, now),
        broken_links=network_status.view(run),
        nodes=list(nodes(run, now)) if has_nodes else [],
        first_failure=_failure(run.first_failure, now) if run.first_failure else None,
        last_failure=_without_evidence(last, now) if (last := run_view.last_failure(run)) else None,
        failed_rounds=run_view.failed_rounds(run),
        end_failure=_failure(ended, now) if (ended := run_view.end_failure(run)) else None,
        failures=[_failure(record, now) for record in run.failures],
        departures=[_departure(run, gone, now) for gone in run.departures],
        history=_history(run, now),
        settings=run.settings,
    )


def unreadable(run: Run, now: float, why: str) -> RunStatus:
    """Return the status of a run for which nothing can be computed: only its plain fields."""
    return RunStatus(
        run_id=run.run_id, attempt=run.attempt, phase=run.stage.value, reason=why, health=None, round=run.round,
        world_size=0, present=len(run.agents), standbys=0, workers_round=0,
        min_nodes=run.settings.min_nodes, max_nodes=run.settings.max_nodes, largest_size=run.settings.max_nodes,
        next_size=None, free_seats=0, restart_count=run.restart_count, max_restarts=run.settings.max_restarts,
        restarts_left=0, restarts_used=min(run.restart_count, run.settings.max_restarts), own_budgets={}, restarts={},
        age_s=_round(now - run.created_at), phase_age_s=0.0, time_s=time_ledger.NOTHING,
        restart_costs=RestartCosts(), deadline_s=None, progress=None, hang=None, finishing=None, ending=None,
        is_stopped=run.is_stopped, unheard_s=None,
        waits_for_agents=False, can_be_forgotten=run.can_be_forgotten, missing=None, broken_links=[],
        nodes=[], first_failure=None, last_failure=None, failed_rounds=0, end_failure=None, failures=[],
        departures=[], history=[], settings=run.settings,
    )  # fmt: skip


def nodes(run: Run, now: float) -> Iterator[NodeStatus]:
    """Yield the statuses of all agents in the order of `run_view.agents`. The run may change meanwhile."""
    return (node(run, agent, now) for agent in run_view.agents(run))


def _history(run: Run, now: float) -> list[RestartStatus]:
    costs = restart_cost.of_rounds(run)
    return [_restart(restart, costs.get(restart.round), now) for restart in run.ledger]


def _restart(restart: Restart, cost: RestartCost | None, now: float) -> RestartStatus:
    took_s = restart_cost.took_s(cost) if cost else None
    return _aged(RestartStatus, restart, now, took_s=took_s, cost=cost)


def _deadline_s(run: Run, now: float) -> float | None:
    until = run_view.forms_until(run)
    return None if until is None else _round(max(0.0, until - now))


def _missing(run: Run, now: float) -> MissingStatus | None:
    found = run_view.missing(run)
    return found and MissingStatus(
        more_nodes=found.more_nodes,
        stopping=found.stopping,
        gone=[gone.node_id for gone in found.vacated],
        departures=[_departure(run, gone, now) for gone in found.vacated],
        more_gone=found.more_gone,
        refused=dict(found.refused),
    )


def node(run: Run, agent: Agent, now: float) -> NodeStatus:
    """Return the status of one agent of the run."""
    join, agent_id, node_id = agent.join, agent.agent_id, agent.node_id
    seat = run.seat_of(agent_id)
    renewed_at, lease_until = run.leases.renewed_at.get(agent_id), run.leases.ends_at(agent_id)
    is_connected = run.leases.is_connected(agent_id)
    lost_at = None if is_connected else run_view.lost_at(run, agent_id)
    remarks = run_view.node_remarks(run, agent_id)
    return NodeStatus(
        node_id=node_id,
        agent_id=run_view.short(agent_id),
        state=run_view.state(run, agent),
        connected=is_connected,
        addr=join.addr,
        port=join.port,
        role=join.role,
        node_rank=join.node_rank,
        local_world_size=join.local_world_size,
        group_rank=seat.group_rank if seat else None,
        ranks=_ranks(seat),
        lease_age_s=None if renewed_at is None else _round(now - renewed_at),
        lease_left_s=None if lease_until is None else _round(max(0.0, lease_until - now)),
        lost_in_s=None if lost_at is None else _round(max(0.0, lost_at - now)),
        quiet=watch_view.quiet_word(run, agent_id, now),
        failures=run.failures_by_node.get(node_id, 0),
        log_dir=join.log_dir,
        cordon=cordons.status(run.cordons[node_id]) if node_id in run.cordons else None,
        slow=remarks.get("slow", ""),
        remarks=remarks,
        drain_left_s=_round(max(0.0, agent.drain_until - now)) if agent.state is _DRAINING else None,
        progress=_progress([sign] if (sign := run.progress.get(agent_id)) else [], now),
    )


def _health(run: Run, now: float) -> HealthStatus | None:
    if run.has_ended:
        return None
    found = health.of(run, now)
    worst, *others = found
    return HealthStatus(
        state=worst.state,
        sentence=worst.sentence,
        age_s=_round(max(0.0, now - worst.since)),
        next=[*map(str, health.next_steps(found))],
        others=[each.state for each in others],
        is_trouble=any(each.is_trouble for each in found),
        next_of={each.state: [*map(str, each.next)] for each in health.with_steps(found) if each.next},
    )


def _finishing(run: Run, now: float) -> FinishingStatus | None:
    found = finishing.view(run)
    if found is None:
        return None
    return FinishingStatus(
        age_s=_round(run_view.finishing_s(run, now) or 0.0),
        finished=found.finished,
        still_running=found.still_running,
        warned=bool(run.still_running),
    )


def _ending(run: Run, now: float) -> EndingStatus | None:
    found = run_view.ending(run)
    return found and EndingStatus(
        reason=printable(found.reason),
        ends_in_s=_round(max(0.0, found.at - now)),
        leaving=found.leaving,
        more_nodes=found.more_nodes,
    )


def _progress(signs: Collection[ProgressSign], now: float) -> ProgressStatus | None:
    if not signs:
        return None
    reports = [sign.progress for sign in signs]
    return ProgressStatus(
        lowest_step=min((each.lowest_step for each in reports if each.lowest_step is not None), default=None),
        highest_step=max((each.highest_step for each in reports if each.highest_step is not None), default=None),
        step_s=max((_round(each.step_s) for each in reports if each.step_s is not None), default=None),
        age_s=_round(max(now - sign.at + sign.progress.age_s for sign in signs)),
        checkpoint_step=max(
            (each.checkpoint_step for each in reports if each.checkpoint_step is not None), default=None
        ),
        checkpoint_s=_round(max(each.checkpoint_s for each in reports)),
    )


def _aged(
    kind: type[Status], record: Departure | Restart, now: float, **shown: str | float | list[int] | RestartCost | None
) -> Status:
    """Return the status of a departure or a restart, with its age in seconds in place of its time."""
    fields = structs.asdict(record)
    age_s = _round(now - fields.pop("at"))
    return kind(**(fields | shown), age_s=age_s)


def _departure(run: Run, gone: Departure, now: float) -> DepartureStatus:
    had = _ranks(run.seat_of(gone.agent_id))
    return _aged(DepartureStatus, gone, now, agent_id=run_view.short(gone.agent_id), had_ranks=had)


def _ranks(seat: Seat | None) -> list[int]:
    """Return the first and last rank of a seat; empty if there is none."""
    if seat is None or not seat.local_world_size:
        return []
    return [seat.first_rank, seat.first_rank + seat.local_world_size - 1]


def _failure(record: FailureRecord, now: float) -> FailureStatus:
    return FailureStatus(round=record.round, age_s=_round(now - record.at), **structs.asdict(record.failure))


def _without_evidence(record: FailureRecord, now: float) -> FailureStatus:
    return structs.replace(_failure(record, now), traceback=(), stderr_tail=())


def _round(seconds: float) -> float:
    return round(seconds, 3)
