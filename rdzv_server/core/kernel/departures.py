"""Departures: agents that are lost, leave, or are drained, and nodes that a check has found unfit.

If the running round loses a participant, the next round opens. If a forming round loses one, that may be why workers
failed before: then the restart is free (see `restart_budget`).
"""

from rdzv_protocol.messages import Drain, JoinRequest

from rdzv_server.core import events
from rdzv_server.core.kernel import completion, failed_rounds, notices, queries, restart_budget, worker_reports
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import Agent, AgentState, Cause, Departure, Stage, remember
from rdzv_server.core.node_history import LOST, UNFIT
from rdzv_server.words import losses


def check_leave(machine: Machine, event: events.NodeLeft, now: float) -> events.NodeLeft | None:
    """Return the fact; None if the agent has left before. Raises `AgentFenced`."""
    if machine.run.stage.is_end or event.agent_id in machine.run.departed_ids:
        return None
    machine.agent(event.agent_id)
    return event


def lost(machine: Machine, fact: events.NodeLost, now: float) -> None:
    agent, is_blameless, is_unheard = machine.agent(fact.agent_id), fact.is_blameless, fact.is_unheard
    depart(machine, agent, Cause.NODE_LOST, fact.cause, now, is_blameless=is_blameless, is_unheard=is_unheard)


def replaced(machine: Machine, fact: events.NodeJoined, agent: Agent, now: float) -> None:
    """Remove an agent whose place a new agent takes. If it has the same node, the old agent's process has ended."""
    depart(
        machine, agent, Cause.NODE_LOST, losses.REPLACED, now, is_blameless=agent.agent_id in fact.blameless,
        has_ended=agent.node_id == fact.join.node_id, is_unheard=agent.agent_id in fact.unheard,
    )  # fmt: skip


def left(machine: Machine, fact: events.NodeLeft, now: float) -> None:
    agent = machine.agent(fact.agent_id)
    if fact.retracts_success:
        worker_reports.take_back(machine.run, agent)
    depart(machine, agent, Cause.NODE_LEFT, fact.reason, now)
    if fact.unfit:
        note_unfit(machine, agent.node_id, completion.unfit_reason(agent.node_id, fact.reason))


def note_unfit(machine: Machine, node_id: str, reason: str) -> None:
    """Remember that a check has found this node unfit: it leaves, has left, or does not join."""
    machine.blame(node_id, UNFIT, reason)
    completion.note_unfit(machine.run, node_id, reason)


def refuse_unfit(machine: Machine, join: JoinRequest, now: float) -> None:
    """Remember a node that does not take part, because its own check found it unfit before it joined."""
    why = completion.unfit_reason(join.node_id, join.unfit)
    machine.run.note_departed(join.agent_id)
    note_unfit(machine, join.node_id, why)
    machine.record_event("node_unfit", why, now, node_id=join.node_id)


def depart(
    machine: Machine,
    agent: Agent,
    cause: Cause,
    detail: str,
    now: float,
    *,
    is_blameless: bool = False,
    has_ended: bool = False,
    is_unheard: bool = False,
) -> None:
    """Remove an agent that is lost or leaves. `has_ended`: whether a lost agent's process has ended for certain.

    `is_unheard`: whether the server has not heard it since the server restarted: the outage may have ended it.
    """
    run, agent_id, node_id, was = machine.run, agent.agent_id, agent.node_id, agent.state
    was_leaving = was is AgentState.DRAINING or agent_id in run.leaving  # its host may be gone before its leave
    seat = run.seat_of(agent_id)
    has_left = cause is not Cause.NODE_LOST
    reason = (losses.left if has_left else losses.lost)(node_id, detail)
    run.remove(agent)
    queries.close_all(machine, [agent], losses.cannot_answer(node_id, detail), now)
    group_rank = seat.group_rank if seat else None
    gone = Departure(node_id, agent_id, agent.round, group_rank, has_left, detail, now, agent.join.log_dir)
    remember(run.departures, gone)
    machine.record_event("node_left" if has_left else "node_lost", reason, now, node_id=node_id, group_rank=group_rank)
    if not (has_left or is_blameless or was_leaving):
        machine.blame(node_id, LOST, reason)
    root = run.first_of_round
    is_own_failure = root is not None and not root.failure.consequence
    is_drained = cause is Cause.NODE_DRAINED or (was is AgentState.DRAINING and (has_left or is_own_failure))
    _left_its_place(machine, agent, was, cause, reason, now, explains=not is_drained)
    if not (has_left or was_leaving or is_unheard) and (has_ended or not is_blameless or len(run.seats) == 1):
        failed_rounds.note_lost(run, agent)


def drain(
    machine: Machine, agent: Agent, until: float, cause: Cause, reason: str, now: float, *, unfit: bool = False
) -> None:
    """Tell an agent to leave: its workers are gone by `until`, and no later round counts on it."""
    was, was_leaving = agent.state, agent.agent_id in machine.run.leaving
    machine.run.drain(agent, until)
    machine.direct([agent], Drain(reason=reason, remaining_s=max(0.0, until - now), unfit=unfit))
    explains = cause is not Cause.NODE_DRAINED or was_leaving
    _left_its_place(machine, agent, was, cause, reason, now, explains=explains)


def _left_its_place(
    machine: Machine, agent: Agent, was: AgentState, cause: Cause, reason: str, now: float, *, explains: bool
) -> None:
    """Decide what follows for the round from an agent that is gone or leaves. `was`: its state before.

    `explains`: whether this may be why workers failed before. An operator's drain that came later is not. Nor is the
    loss of a drained node, unless the failure shows that a worker was lost.
    """
    run = machine.run
    if was is AgentState.RUNNING or notices.has_lost_its_reason(run):
        machine.open_round(cause, reason, now)
        run.opening.lost_at = now
    elif run.stage is Stage.FORMING and run.seat_of(agent.agent_id):
        if explains or not run.opening.cause.is_failure:
            restart_budget.reclassify(run.opening, cause, reason)
        run.opening.lost_at = now
