"""Agents' reports of how their workers have ended: which reports are new, and what follows for the run."""

from msgspec.structs import replace
from rdzv_protocol import words as protocol_words
from rdzv_protocol.errors import MalformedMessage, StaleRound
from rdzv_protocol.messages import Failure, ReportedError
from rdzv_protocol.node_conditions import condition
from rdzv_protocol.queries import FindCause, Query, QueryAnswer
from rdzv_protocol.text import clip, printable

from rdzv_server.core import events
from rdzv_server.core.kernel import (
    failed_rounds,
    final_report,
    finishing,
    kept_failures,
    notices,
    queries,
    restart_budget,
)
from rdzv_server.core.kernel.protocols import Kernel, Machine
from rdzv_server.core.kernel.run import Agent, AgentState, Cause, FailureRecord, Run, Stage
from rdzv_server.core.node_history import FAILED, HARDWARE
from rdzv_server.words import failures as words

ERROR_BYTES = 512
"""Most bytes of a worker's error in a warning."""
MOST_DOUBTS = 8
"""Most warnings about errors of workers that have exited 0, in one round."""
HINT_BYTES = 240
"""Most bytes that are kept of an agent's hint if the server adds its own: both fit into the final report."""


def check_success(machine: Machine, event: events.WorkersSucceeded, now: float) -> events.WorkersSucceeded | None:
    """Return the success; None if it was reported before, or too late: the round that opened restarts its node, too."""
    if not _is_new(machine, event) or event.agent_id not in machine.run.running:
        return None
    for error in event.errors:
        _check_rank(machine.run, machine.agent(event.agent_id), error.rank)
    return event


def note_success(machine: Machine, event: events.WorkersSucceeded, now: float) -> None:
    """Renew the agent's lease if its report is new."""
    if _is_new(machine, event):
        machine.run.leases.renew(event.agent_id, now)


def check_failure(machine: Machine, event: events.WorkersFailed, now: float) -> events.WorkersFailed | None:
    """Return the failure; None if it is not new. Raises `MalformedMessage` if the workers are not the agent's own.

    Raises also what `_is_new` raises.
    """
    if not _is_new(machine, event):
        return None
    _check_own(machine.run, machine.agent(event.agent_id), event.failure)
    return event


def note_failure(machine: Machine, event: events.WorkersFailed, now: float) -> events.WorkersFailed | None:
    """Renew the agent's lease if its report is new; return the fact, which depends on which agents are absent then."""
    if not _is_new(machine, event):
        return None
    machine.run.leases.renew(event.agent_id, now)
    failure = kept_failures.bounded(event.failure)
    if failure.consequence and (gone := finishing.finished(machine.run)):
        failure = replace(failure, hint=words.exited_before(gone))
    return replace(event, failure=failure, awaits_loss=awaits_loss(machine.run, event.agent_id))


def _check_own(run: Run, agent: Agent, failure: Failure) -> None:
    """Check that the failure is one of the agent's workers. Raises `MalformedMessage` if not.

    Under stock torchrun an agent counts as one worker, and only torchrun knows the ranks of its workers.
    """
    if failure.node_id != agent.node_id:
        raise MalformedMessage(words.other_node(agent.node_id, failure.node_id))
    _check_rank(run, agent, failure.rank)


def _check_rank(run: Run, agent: Agent, rank: int) -> None:
    seat = run.seat_of(agent.agent_id)
    if seat and seat.local_world_size > 1 and rank not in seat.ranks:
        raise MalformedMessage(words.foreign_rank(rank, agent.node_id, seat.ranks[0], seat.ranks[-1]))


def awaits_loss(run: Run, reporter: str = "") -> bool:
    """Return whether a participant is missing whose loss would explain a failure of the `reporter`, or of any agent if
    "".

    After a restart of the server all of them are missing, until it hears them.
    """
    return any(
        agent_id != reporter and run.leases.is_missing(agent_id) and run.agents[agent_id].has_part
        for agent_id in run.leases.uncertain
    )


def decides_at(run: Run) -> float | None:
    """Return when a failure ends the run that waits for its cause; None while a loss may still be the cause.

    A participant that is missing may be lost. If workers have lost others, every other participant must have been heard
    since, because a dead one may not be missing yet. An agent that is heard again may be about to report the cause.
    """
    root = run.first_of_round
    if run.verdict_at is None or root is None or awaits_loss(run):
        return None
    if not restart_budget.awaits_cause(run, root):
        return run.verdict_at
    unheard = run.leases.unheard_since(root.at)
    if not notices.explains(run, root) and any(each in run.running and each not in run.failed for each in unheard):
        return None
    return max(run.verdict_at, run.leases.certain_at + restart_budget.CAUSE_WINDOW_S)


def _is_new(machine: Machine, report: events.WorkersSucceeded | events.WorkersFailed) -> bool:
    """Return whether a report is new. Raises `StaleRound` if it is about another round than the last one.

    A report is also new if the join that followed it has overtaken it. From a node that is being drained only a fatal
    failure counts: it came before its workers were told to stop.
    """
    run = machine.run
    if run.stage.is_end:
        return False
    agent = machine.agent(report.agent_id)
    if report.agent_id in run.failed or report.agent_id in run.succeeded:
        return False
    if agent.state is AgentState.DRAINING:
        is_fatal = isinstance(report, events.WorkersFailed) and restart_budget.is_fatal(run, report.failure)
        return is_fatal and agent.round == report.round
    is_last = not agent.has_joined or (run.stage is Stage.FORMING and run.seat_of(report.agent_id) is not None)
    if agent.round != report.round or not is_last:
        raise StaleRound(words.round_over(report.round, run.run_id, agent.node_id))
    return True


def succeeded(machine: Machine, fact: events.WorkersSucceeded, now: float) -> None:
    run = machine.run
    run.move(machine.agent(fact.agent_id), AgentState.SUCCEEDED)
    machine.workers_succeeded(fact.agent_id)
    run.succeeded.add(fact.agent_id)
    run.succeeded_at[fact.agent_id] = now
    run.still_running = ""
    for error in fact.errors:
        _doubt(machine, fact.agent_id, error, now)
    _name_exited(run)


def _name_exited(run: Run) -> None:
    """Name the workers that have exited 0 in the failure that waits for its cause: its worker may have lost them."""
    root = run.first_of_round
    if root is not None and root.failure.consequence:
        hint = words.exited_meanwhile(finishing.finished(run))
        kept_failures.exchange(run, root, replace(root, failure=replace(root.failure, hint=hint)))


def _doubt(machine: Machine, agent_id: str, error: ReportedError, now: float) -> None:
    """Warn of a worker's error, although it exited 0. The end of the run names the first one and counts the others."""
    run, node_id = machine.run, machine.agent(agent_id).node_id
    rank, text = error.rank, clip(printable(error.error), ERROR_BYTES)
    run.doubt, run.doubts = run.doubt or protocol_words.run.reported_error(rank, text), run.doubts + 1
    if run.doubts <= MOST_DOUBTS:
        machine.record_event("warning", protocol_words.run.exited_0_with_error(rank, text), now, node_id=node_id)


def take_back(run: Run, agent: Agent) -> None:
    """Take back the success that a leaving agent has reported in this round, if it has."""
    if agent.state is AgentState.SUCCEEDED:
        run.move(agent, AgentState.RUNNING)
        run.succeeded.discard(agent.agent_id)
        run.succeeded_at.pop(agent.agent_id, None)


def failed(machine: Machine, fact: events.WorkersFailed, now: float) -> None:
    run, agent = machine.run, machine.agent(fact.agent_id)
    failure = fact.failure
    if warning := _outlook(run, failure, now):
        machine.record_event("warning", warning, now, node_id=failure.node_id)
        failure = replace(failure, hint=words.hints(clip(failure.hint, HINT_BYTES), warning))
    record = FailureRecord(agent.round, agent.agent_id, now, failure, fact.ago_s)
    restart_budget.note(run, record)
    reason = failure.sentence
    _tell_of_failure(machine, record, reason, now)
    is_leaving = fact.agent_id in run.leaving
    is_gone_before = run.stage is Stage.FORMING and not run.opening.cause.is_failure
    is_explained = fact.awaits_loss or is_leaving or is_gone_before
    is_excused = failure.consequence or failure.blame == "program" or failure.verdict == "retry" or is_explained
    if run.first_of_round is record and not is_excused:
        is_broken = failure.blame == "node" and condition(failure.hint)[1] != "temporary"
        fault = HARDWARE if is_broken else FAILED
        machine.blame(agent.node_id, fault, words.with_hint(reason, failure.hint))
    verdict = restart_budget.verdict(run, failure, now)
    if restart_budget.is_fatal(run, failure):
        assert verdict
        machine.fail(failure, verdict, now)
    elif run.stage is Stage.FORMING:
        is_certain = verdict is None or not fact.awaits_loss
        if run.first_of_round is record and is_certain and run.opening.cause in (Cause.WORKER_FAILURE, Cause.RETRIED):
            _attribute_restart(machine, failure, verdict, now)
    elif is_leaving or (verdict is None and notices.explains(run, record)):
        notices.end_early(machine, now)
    elif verdict is None:
        machine.open_round(restart_budget.cause_of(failure), reason, now)
    elif fact.awaits_loss or restart_budget.awaits_cause(run, record):
        _wait_for_cause(machine, now if fact.awaits_loss else now + restart_budget.CAUSE_WINDOW_S)
    else:
        end_or_restart(machine, fact, now)


def _wait_for_cause(machine: Machine, until: float) -> None:
    """Let no failure end the run before `until`, nor while a participant may turn out to be lost.

    The others get an answer to their polls, so that the server hears those that are alive at once.
    """
    run = machine.run
    if run.verdict_at is None:
        machine.wake([agent for agent in run.running.values() if agent.agent_id not in run.failed])
    run.verdict_at = until if run.verdict_at is None else run.verdict_at
    run.scale_up_at = None


def seek_cause(machine: Machine, now: float) -> None:
    """Ask the other agents of the round, once, for the cause of a consequence that would end the run.

    A worker that an exception has ended may have left its process group, and not have exited yet.
    """
    run, root = machine.run, machine.run.first_of_round
    if run.cause_sought == run.round or root is None or not restart_budget.awaits_cause(run, root):
        return
    run.cause_sought = run.round
    for agent in run.running.values():
        if agent.agent_id not in run.failed and queries.knows(agent, FindCause):
            queries.ask(machine, agent, FindCause, restart_budget.CAUSE_WINDOW_S, _sought, now)


def _sought(machine: Kernel, agent: Agent, query: Query, answer: QueryAnswer | None, now: float) -> None:
    """Do nothing: an agent that has found the cause reports it as a failure."""


def _attribute_restart(machine: Machine, root: Failure, verdict: restart_budget.Verdict | None, now: float) -> None:
    """Attribute the current restart to its root failure, which was reported after a consequence."""
    opening = machine.run.opening
    if verdict:
        machine.fail(root, verdict, now)
    else:
        opening.cause, opening.reason = restart_budget.cause_of(root), root.sentence


def _outlook(run: Run, failure: Failure, now: float) -> str:
    """Return a warning that a restart does not help after this failure; empty if it may help, or is not to blame."""
    why = failed_rounds.restart_useless(run, failure.recurs, now)
    return words.restart_useless(why) if why is not None and restart_budget.is_to_blame(run, failure) else ""


def end_or_restart(machine: Machine, fact: events.WorkersFailed | events.CauseNotFound, now: float) -> None:
    """End the run over its round's root failure, unless a notice explains it or the budget can afford a restart again
    by now.
    """
    record = machine.run.first_of_round
    assert record
    root = record.failure
    if notices.explains(machine.run, record):
        notices.end_early(machine, now)
    elif verdict := restart_budget.verdict(machine.run, root, now):
        machine.fail(root, verdict, now)
    else:
        machine.open_round(restart_budget.cause_of(root), root.sentence, now)


def _tell_of_failure(machine: Machine, record: FailureRecord, reason: str, now: float) -> None:
    """Emit the event of a failure: with its evidence if the run remembers it, else as a summary."""
    run, failure = machine.run, record.failure
    is_remembered = bool(run.failures) and run.failures[-1] is record
    details = (final_report.details if is_remembered else final_report.summary)(failure)
    seat = run.seat_of(record.agent_id)
    group_rank = seat.group_rank if seat else None
    machine.record_event(
        "workers_failed",
        reason,
        now,
        round=record.round,
        node_id=failure.node_id,
        group_rank=group_rank,
        failure=details,
    )
