"""Effects of operators' actions: the fact that each one becomes, when it is refused, and what it changes.

`RULES` has one rule for each action of `rdzv_protocol.actions`; the machine's dispatch and the kinds of stored records
follow from it. A check returns the fact to record, or None for a request that was carried out before. One sentence
describes what a transition does: the event's sentence, which also answers the request, and a repetition of the request.

The messages of the actions are not imported here: a server without operators does not load them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace
from rdzv_protocol.errors import MalformedMessage, NoStandby, RunEnded
from rdzv_protocol.events import ActionKind
from rdzv_protocol.settings import RunSettings
from rdzv_protocol.text import clip, printable

from rdzv_server.core import events
from rdzv_server.core.events import EXCLUDER, Cordon
from rdzv_server.core.kernel import admission, completion, legal_sizes, notices
from rdzv_server.core.kernel.policy import Rule
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import END_DELIVERED_WITHIN_S, Agent, AgentState, Cause, Leaving, Run, Stage
from rdzv_server.words import operations as words

if TYPE_CHECKING:
    from rdzv_protocol.actions import ActionRequest, ResizeRequest

REASON_BYTES, EVIDENCE_BYTES = 128, 192
"""Most bytes of a cordon's reason: for an operator's, as there may be a thousand of them, and for the server's."""


class RunRestarted(events.Operation, frozen=True, kw_only=True):
    """An operator has restarted the workers of every node.

    `round`: round that the operator saw, None for any. If it is over, nothing changes.
    """

    round: int | None = None


class RunResized(events.Operation, frozen=True, kw_only=True):
    """An operator has changed the limits of the run's number of nodes."""

    min_nodes: int
    max_nodes: int


# Checks.


def check(machine: Machine, event: events.Operation, now: float) -> events.Fact | None:
    """Return the fact; None if it was carried out before. Raises `RunEnded` if the run is over."""
    run = machine.run
    if event.request_id in run.answers:
        return None
    if run.stage.is_end:
        raise RunEnded(words.run_over(run.run_id, run.stage, run.end_reason))
    return event


def check_size(wanted: "ResizeRequest") -> None:
    """Raise `MalformedMessage` if the minimum is above the maximum."""
    if wanted.min_nodes > wanted.max_nodes:
        raise MalformedMessage(words.min_above_max(wanted.min_nodes, wanted.max_nodes))


def check_resize(machine: Machine, event: RunResized, now: float) -> events.Fact | None:
    """Return the fact, as `check` does. Raises `MalformedMessage` if no legal size is within the limits."""
    settings = _resized(machine.run, event)
    if event.request_id not in machine.run.answers and not legal_sizes.largest(settings):
        raise MalformedMessage(words.no_legal_size(legal_sizes.none_of(settings), machine.run.run_id))
    return check(machine, event, now)


def _resized(run: Run, event: RunResized) -> RunSettings:
    return replace(run.settings, min_nodes=event.min_nodes, max_nodes=event.max_nodes)


def check_stop(machine: Machine, event: events.RunStopped, now: float) -> events.Fact | None:
    return None if machine.run.stage.is_end else check(machine, event, now)


def check_admission(machine: Machine, event: events.ArrivalsAdmitted, now: float) -> events.Fact | None:
    """Return the fact; None if it was carried out before. Raises `NoStandby` if there is no agent to admit."""
    run = machine.run
    if event.request_id in run.answers:
        return None
    if run.stage is not Stage.RUNNING or not run.waiting or admission.free_seats(run) <= 0:
        raise NoStandby(words.no_standby(run.run_id))
    return event


def check_node(machine: Machine, event: events.NodeOperation, now: float) -> events.Fact | None:
    """Return the fact; None if the run is over, or if the action was carried out before."""
    return None if machine.run.stage.is_end or event.request_id in machine.run.answers else event


def check_forgotten(machine: Machine, event: events.RunForgotten, now: float) -> events.Fact | None:
    """Return the fact; None if the run is already to be forgotten. The registry has checked that the run is over."""
    return None if machine.run.forget_at is not None else event


# Transitions.


def stop(machine: Machine, fact: events.RunStopped, now: float) -> None:
    sentence = words.stopped(fact.reason)
    _tell(machine, "run_stopped", fact, sentence, now)
    machine.end(Stage.FAILED, sentence, None, now)
    machine.run.is_stopped = True


def restart(machine: Machine, fact: RunRestarted, now: float) -> None:
    """Restart the running round. While a round forms, its workers have already stopped: then only a back-off ends."""
    if over := _restarts_over(machine.run, fact):
        machine.run.answer(fact, fact.idle or over)
        return
    is_running = machine.run.stage is Stage.RUNNING
    sentence = words.restarted(fact.reason) if is_running else words.backoff_ended(fact.reason)
    _tell(machine, "run_restarted", fact, sentence, now)
    if is_running:
        machine.open_round(Cause.RUN_RESTARTED, sentence, now)
    machine.run.opening.backoff_until = None


def _restarts_over(run: Run, fact: RunRestarted) -> str:
    """Return the sentence that the round to restart is over; empty if it is not."""
    return "" if fact.round in (None, run.round) else words.round_over(run.run_id, fact.round, run.round)


def restarts_nothing(run: Run, fact: RunRestarted) -> str:
    if over := _restarts_over(run, fact):
        return over
    is_idle = run.stage is Stage.FORMING and run.opening.backoff_until is None
    return words.nothing_to_restart(run.run_id) if is_idle else ""


def resizes_nothing(run: Run, fact: RunResized) -> str:
    has_size = (run.settings.min_nodes, run.settings.max_nodes) == (fact.min_nodes, fact.max_nodes)
    return words.has_size(run.run_id, fact.min_nodes, fact.max_nodes) if has_size else ""


def admit(machine: Machine, fact: events.ArrivalsAdmitted, now: float) -> None:
    sentence = completion.arrivals(machine.run)
    if fact.by:
        _tell(machine, "nodes_admitted", fact, words.admitted(sentence, fact.reason), now)
    machine.open_round(Cause.NODE_ARRIVED, sentence, now)


def resize(machine: Machine, fact: RunResized, now: float) -> None:
    """Set the limits.

    If there are too many participants, a new round opens at once, unless some workers have finished.
    """
    run = machine.run
    run.settings = _resized(run, fact)
    run.is_resized = True
    sentence = words.resized(fact.min_nodes, fact.max_nodes, fact.reason)
    _tell(machine, "run_resized", fact, sentence, now)
    if run.stage is Stage.RUNNING and len(run.running) > legal_sizes.largest(run.settings) and not run.succeeded:
        machine.open_round(Cause.RUN_RESIZED, sentence, now)


def forget(machine: Machine, fact: events.RunForgotten, now: float) -> None:
    """Have the run forgotten once every live agent has heard of its end: otherwise one might form it again."""
    run = machine.run
    assert run.ended_at is not None
    run.forget_at = max(now, run.ended_at + min(run.settings.lease_s, END_DELIVERED_WITHIN_S))
    run.answer(fact, words.forgotten(run.run_id, run.forget_at - now, fact.reason))


def cordon(machine: Machine, fact: events.NodeCordoned, now: float) -> None:
    keep_out(machine, cordon_of(fact, now))
    _tell(machine, "node_cordoned", fact, cordoned(fact), now, node_id=fact.node_id)


def keep_out(machine: Machine, cordon: Cordon) -> None:
    """Cordon the node: its waiting agents get no seat, nor do agents that join later."""
    run = machine.run
    run.cordons[cordon.node_id] = cordon
    kept_out = [agent for agent in run.agents_of(cordon.node_id) if agent.state is AgentState.WAITING]
    _move(machine, kept_out, AgentState.CORDONED)


def uncordon(machine: Machine, fact: events.NodeUncordoned, now: float) -> None:
    run = machine.run
    run.cordons.pop(fact.node_id, None)
    let_in = [agent for agent in run.agents_of(fact.node_id) if agent.state is AgentState.CORDONED]
    _move(machine, let_in, AgentState.WAITING)
    run.opening.joined_at = now if let_in else run.opening.joined_at
    _tell(machine, "node_uncordoned", fact, uncordoned(fact), now, node_id=fact.node_id)


def next_uncordoning(run: Run) -> events.Cordon | None:
    """Return the run's own cordon that ends first; None if no cordon of its own ends."""
    own = [cordon for cordon in run.cordons.values() if cordon.is_of_run and cordon.until is not None]
    return min(own, key=lambda cordon: cordon.until or 0.0, default=None)


def drain(machine: Machine, fact: events.NodeDrained, now: float) -> None:
    """Cordon the node, and tell its agents to leave.

    Agents that do not know `drain` are fenced; they rejoin and get no seat.
    """
    run, sentence = machine.run, drained(fact)
    keep_out(machine, cordon_of(fact, now))
    _tell(machine, "node_drained", fact, sentence, now, node_id=fact.node_id)
    for agent in run.agents_of(fact.node_id):
        if agent.join.drains and notices.is_given_for_drain(run, agent):
            notice_s = min(run.settings.notice_timeout_s or 0.0, fact.deadline_s * notices.DRAIN_SHARE)
            leaving = Leaving(now + notice_s, now + fact.deadline_s, Cause.NODE_DRAINED, sentence)
            notices.leaves(machine, agent, leaving, now)
        elif agent.join.drains:
            until = now + fact.deadline_s
            if agent.state is not AgentState.DRAINING or until < agent.drain_until:
                machine.drain(agent, until, Cause.NODE_DRAINED, sentence, now)
        else:
            machine.wake([agent])
            machine.depart(agent, Cause.NODE_DRAINED, words.DRAINED, now)


def _move(machine: Machine, agents: list[Agent], state: AgentState) -> None:
    for agent in agents:
        machine.run.move(agent, state)
    if agents:
        machine.direct(agents, None)


# Sentences.


def cordon_of(fact: events.NodeCordoned, now: float) -> Cordon:
    """Return the cordon that follows from an action at this time."""
    return Cordon(
        node_id=fact.node_id,
        reason=clip(fact.reason, EVIDENCE_BYTES if fact.by == EXCLUDER else REASON_BYTES),
        by=fact.by,
        until=None if fact.for_s is None else now + fact.for_s,
        request_id=fact.request_id,
        wall_at=fact.wall_at,
        wall_until=fact.wall_until or _wall_until(fact),
        drain_s=fact.deadline_s if isinstance(fact, events.NodeDrained) else None,
        general=fact.general,
        is_of_run=fact.is_of_run,
        condition=fact.condition,
        is_followed=fact.is_followed,
    )


def _wall_until(fact: events.NodeCordoned) -> float | None:
    return None if fact.for_s is None or fact.wall_at is None else fact.wall_at + fact.for_s


def cordoned(fact: events.NodeCordoned) -> str:
    if fact.by == EXCLUDER:
        return words.excluded(fact.node_id, fact.for_s, fact.reason)
    return words.cordoned(fact.node_id, fact.for_s, fact.reason, fact.waits)


def uncordoned(fact: events.NodeUncordoned) -> str:
    return words.uncordoned(fact.node_id, fact.reason, by_operator=bool(fact.by))


def drained(fact: events.NodeDrained) -> str:
    return words.drained(fact.node_id, fact.reason, fact.waits)


def _tell(
    machine: Machine,
    kind: ActionKind,
    fact: events.Operation,
    sentence: str,
    now: float,
    node_id: str | None = None,
) -> None:
    """Record the action as the answer to its request and, if it changes something, as an event."""
    machine.run.answer(fact, sentence)
    if not fact.idle:
        machine.record_event(kind, sentence, now, by=fact.by, request_id=fact.request_id or None, node_id=node_id)


# The table.


class ActionRule(Struct, frozen=True):
    """Effect of an action: the fact that is recorded, and what this fact does."""

    fact: type[events.Operation]
    """Fact that is recorded. Its fields have the names of the message's fields that it needs."""
    rule: Rule
    """Check and transition in each run that the action is about."""
    says: Callable[[Any], str] = lambda fact: ""
    """Sentence about an action on a node. It answers the request whether or not a run has the node."""
    refuse: Callable[[Any], None] = lambda wanted: None
    """Check of the message itself. Raises `MalformedMessage`."""
    idle: Callable[[Run, Any], str] = lambda run, fact: ""
    """Sentence about why the action changes nothing in the run; empty if it changes something."""


RULES: Mapping[str, ActionRule] = {
    "stop": ActionRule(events.RunStopped, Rule(check_stop, stop)),
    "restart": ActionRule(RunRestarted, Rule(check, restart), idle=restarts_nothing),
    "resize": ActionRule(RunResized, Rule(check_resize, resize), refuse=check_size, idle=resizes_nothing),
    "admit": ActionRule(events.ArrivalsAdmitted, Rule(check_admission, admit)),
    "forget": ActionRule(events.RunForgotten, Rule(check_forgotten, forget)),
    "drain": ActionRule(events.NodeDrained, Rule(check_node, drain), drained),
    "cordon": ActionRule(events.NodeCordoned, Rule(check_node, cordon), cordoned),
    "uncordon": ActionRule(events.NodeUncordoned, Rule(check_node, uncordon), uncordoned),
}
"""Rules of all actions, by their names in `rdzv_protocol.actions`."""
BY_FACT = {action.fact: action for action in RULES.values()}


def fact_of(
    name: str, wanted: "ActionRequest", by: str, request_id: str, wall_at: float, idle: str = ""
) -> events.Operation:
    """Return the fact for an operator's message, for the action of this name. `wall_at`: current wall-clock time.

    Raises `MalformedMessage`.
    """
    action = RULES[name]
    action.refuse(wanted)
    more = {"reason": printable(wanted.reason), "by": by, "request_id": request_id, "wall_at": wall_at, "idle": idle}
    given = asdict(wanted) | more
    return action.fact(**{name: given[name] for name in action.fact.__struct_fields__ if name in given})
