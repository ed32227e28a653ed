"""Notices: the server tells the workers of a running round that it is about to end, so that they save their work first.

A round is about to end if a participant announces that it leaves (`LeaveAnnounced`), an operator drains a node, or a
node is replaced. With `--scale-up on-notice`, it is also about to end if a node has arrived. The reason and the
deadline are facts. The queries to the agents, and their answers, are signs: after a restart of the server it asks the
same agents again. `NoticeEnded` ends the round as soon as every listening worker has acknowledged, or else at the
deadline.

If workers of a leaving node fail meanwhile, the round ends at once, and the restart is free. A scheduler often signals
the workers along with their agent. During any notice a restart is also free if workers fail because others are gone,
and no other cause is reported. The others may have saved and exited.

A notice is never taken back, even if the leaving agent has meanwhile succeeded and is gone. A worker that has
acknowledged a notice may exit, and counts as interrupted.
"""

from functools import partial

from msgspec import Struct
from rdzv_protocol.queries import Notice, Noticed, Query, QueryAnswer
from rdzv_protocol.text import clip

from rdzv_server.core import events
from rdzv_server.core.kernel import completion, queries
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import (
    Agent,
    AgentState,
    Cause,
    FailureRecord,
    Leaving,
    OpenNotice,
    Replacement,
    Run,
    Stage,
)
from rdzv_server.core.node_history import Fault
from rdzv_server.words import notices as words

DRAIN_SHARE = 0.8
"""Largest part of a drain's time that a notice may take: the rest is for stopping the workers."""
SOONER_S = 1.0
"""Seconds by which a new deadline must be earlier than the one that the workers know, so that they get a new notice."""


class Pending(Struct, frozen=True):
    """Reason for which the running round ends soon, and the latest time at which it does."""

    until: float
    cause: Cause
    """Cause of the next round: `node_left`, `node_drained` or `node_arrived`."""
    node_id: str
    reason: str


def pending(run: Run) -> Pending | None:
    if run.stage is not Stage.RUNNING:
        return None
    if run.leaving:
        leaving = run.leaving[agent_id := run.first_to_leave()]
        return Pending(leaving.until, leaving.cause, run.agents[agent_id].node_id, leaving.reason)
    if replacement := run.replacement:
        return Pending(replacement.until, Cause.NODE_DRAINED, replacement.node_id, replacement.reason)
    if run.scale_up_at is not None and run.settings.scale_up == "on-notice":
        node_id = next((agent.node_id for agent in run.waiting.values()), "")
        return Pending(run.scale_up_at, Cause.NODE_ARRIVED, node_id, completion.arrivals(run))
    return None


def may_end(run: Run) -> bool:
    """Return whether anything is about to end the round: `ends_at` says when."""
    return bool(run.leaving) or run.replacement is not None or run.scale_up_at is not None


def has_lost_its_reason(run: Run) -> bool:
    """Return whether workers know that the running round ends, and nothing is about to end it any more."""
    is_given = run.stage is Stage.RUNNING and run.notice_since is not None
    return is_given and run.verdict_at is None and pending(run) is None


def ends_at(run: Run) -> float | None:
    """Return the time at which the round ends; None if nothing is about to end it."""
    soon = pending(run)
    if soon is None:
        return None
    answered_at = run.notice.answered_at if run.notice and run.notice.round == run.round else None
    return soon.until if answered_at is None else min(soon.until, answered_at)


def over(run: Run, now: float) -> events.NoticeEnded | None:
    """Return the fact that ends the round if its time has come, else None."""
    at = ends_at(run)
    return None if at is None or now < at else events.NoticeEnded(_ended(run, now))


# Facts.


def check(machine: Machine, event: events.LeaveAnnounced, now: float) -> events.Fact | None:
    """Return the fact; None if this leave was announced before. Raises `AgentFenced`."""
    run = machine.run
    if run.stage.is_end or event.agent_id in run.departed_ids:
        return None
    agent = machine.agent(event.agent_id)
    return None if agent.agent_id in run.leaving or agent.state is AgentState.DRAINING else event


def heard(machine: Machine, event: events.LeaveAnnounced, now: float) -> None:
    """Take the announcement as a sign of life."""
    if not machine.run.stage.is_end and event.agent_id in machine.run.agents:
        machine.run.leases.renew(event.agent_id, now)


def announced(machine: Machine, fact: events.LeaveAnnounced, now: float) -> None:
    agent = machine.agent(fact.agent_id)
    until, stop_until = now + min(fact.notice_s, fact.stop_s), now + fact.stop_s
    reason = words.leaves(agent.node_id, fact.reason)
    leaves(machine, agent, Leaving(until, stop_until, Cause.NODE_LEFT, reason), now)


def leaves(machine: Machine, agent: Agent, leaving: Leaving, now: float) -> None:
    """Note that the agent leaves, and give notice; an agent without workers leaves at once."""
    run = machine.run
    if before := run.leaving.get(agent.agent_id):
        leaving.until = min(leaving.until, before.until)
        leaving.stop_until = min(leaving.stop_until, before.stop_until)
    run.announce_leave(agent.agent_id, leaving)
    if run.stage is Stage.RUNNING and agent.state is AgentState.RUNNING:
        given(machine, leaving.reason, leaving.until - now, now, agent.node_id)
    else:
        _release(machine, agent, now)


def is_given_for_drain(run: Run, agent: Agent) -> bool:
    """Return whether workers get a notice before this agent of a drained node leaves."""
    is_running = run.stage is Stage.RUNNING and agent.state is AgentState.RUNNING
    return run.settings.notice_timeout_s is not None and is_running


def given(machine: Machine, reason: str, within_s: float, now: float, node_id: str | None = None) -> None:
    """Note that the workers have a notice; `settle` sends it."""
    run = machine.run
    run.notice_since = now if run.notice_since is None else run.notice_since
    machine.record_event("notice_given", words.given(reason, within_s), now, node_id=node_id)


def ended(machine: Machine, fact: events.NoticeEnded, now: float) -> None:
    """End the round: agents that announced it leave, and waiting ones are admitted."""
    run, soon = machine.run, pending(machine.run)
    run.notice_since = None
    machine.record_event("notice_ended", fact.reason, now)
    _end(machine, soon, now)


def explains(run: Run, root: FailureRecord) -> bool:
    """Return whether the root failure of the running round follows from a notice, or from a leave that an agent has
    announced.

    A scheduler that told the agent to leave may have told its workers as well. Workers of other nodes may have lost
    them, or workers that have acknowledged the notice and exited.
    """
    is_told = bool(run.leaving) or run.notice_since is not None
    return root.agent_id in run.leaving or (is_told and root.failure.consequence)


def end_early(machine: Machine, now: float) -> None:
    """End the round before its notice is over, as the notice would end it."""
    run = machine.run
    arrival = Pending(now, Cause.NODE_ARRIVED, "", completion.arrivals(run))  # its wait may be over
    _end(machine, pending(run) or arrival, now)


def _end(machine: Machine, soon: Pending | None, now: float) -> None:
    run = machine.run
    if (gives_way := run.replacement) and not run.leaving and completion.has_standby(run):
        machine.blame(gives_way.node_id, machine.fault(gives_way.fault), gives_way.why)
    release(machine, now)
    if run.stage is Stage.RUNNING and soon:  # no seat is free: a node arrived, or the leaving node had finished
        machine.open_round(soon.cause, soon.reason, now)


def replace_node(machine: Machine, node_id: str, fault: Fault, why: str, now: float) -> None:
    """Open a round without this node, which a waiting node replaces, after a notice if the run gives notices.

    The node is blamed when the round opens, so that the registry excludes it from that round.
    """
    run, notice_s = machine.run, machine.run.settings.notice_timeout_s
    replacement = Replacement(node_id, why, now + (notice_s or 0.0), fault.name)
    if notice_s is None:
        machine.blame(node_id, fault, why)
        machine.open_round(Cause.NODE_DRAINED, replacement.reason, now)
    else:
        run.replacement = replacement
        given(machine, replacement.reason, notice_s, now, node_id)


def release(machine: Machine, now: float) -> None:
    """Let all agents leave that have announced it."""
    for agent_id in list(machine.run.leaving):
        _release(machine, machine.run.agents[agent_id], now)


def _release(machine: Machine, agent: Agent, now: float) -> None:
    leaving = machine.run.leaving[agent.agent_id]
    machine.drain(agent, leaving.stop_until, leaving.cause, leaving.reason, now)


# Signs.


def settle(machine: Machine, now: float) -> None:
    """Send agents the notice, again if its deadline is now earlier; withdraw it when the round is over."""
    run, soon = machine.run, pending(machine.run)
    if run.notice and (soon is None or run.notice.round != run.round):
        _close(run, run.notice)
        run.notice = None
    if soon and (run.notice is None or soon.until < run.notice.until - SOONER_S):
        _give(machine, soon, now)


def _give(machine: Machine, soon: Pending, now: float) -> None:
    run = machine.run
    if run.notice:
        _close(run, run.notice)
    run.notice = notice = OpenNotice(run.round, soon.until)
    within_s = max(0.0, soon.until - now)
    fields = {"source": soon.cause.value, "node_id": soon.node_id, "reason": clip(soon.reason, 240)}
    for agent in run.running.values():
        if queries.knows(agent, Notice) and within_s:
            closed = partial(_answered, notice)
            number = queries.ask(machine, agent, Notice, within_s, closed, now, **fields)
            notice.asked[agent.agent_id] = number
    if not notice.asked:
        notice.answered_at = now


def _answered(
    notice: OpenNotice, machine: Machine, agent: Agent, query: Query, answer: QueryAnswer | None, now: float
) -> None:
    notice.answers[agent.agent_id] = answer if isinstance(answer, Noticed) else None
    if notice.answered_at is None and notice.asked.keys() <= notice.answers.keys():
        notice.answered_at = now


def _close(run: Run, notice: OpenNotice) -> None:
    for agent_id, number in notice.asked.items():
        run.queries.take(agent_id, number)


def _ended(run: Run, now: float) -> str:
    """Return the sentence about how the notice ended."""
    after_s = None if run.notice_since is None else now - run.notice_since
    notice = run.notice
    if notice is None or not notice.asked:
        return words.no_worker_notified(after_s)
    answers = [answer for answer in notice.answers.values() if answer]
    listening, acknowledged = (sum(getattr(each, name) for each in answers) for name in ("listening", "acknowledged"))
    late = [
        agent_id
        for agent_id in notice.asked
        if (answer := notice.answers.get(agent_id)) is None or answer.acknowledged < answer.listening
    ]
    if late:
        who = completion.names({each: run.agents[each] for each in late if each in run.agents})
        return words.not_acknowledged(who, after_s)
    return words.acknowledged(acknowledged, after_s) if listening else words.no_worker_listens(after_s)
