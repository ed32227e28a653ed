"""View of a run for clients that watch it. It has points in time instead of ages, so that nothing changes by itself.

The words are those of the status. Fields that do not apply are left out. So differences are JSON merge patches (RFC
7386), in which null means that a member is gone.
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import to_builtins
from msgspec.structs import asdict, replace
from rdzv_protocol.timing import hold_s

from rdzv_server.core.events import Cordon
from rdzv_server.core.kernel import finishing, restart_budget
from rdzv_server.core.kernel.run import Agent, FailureRecord, Run
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.network_check import network_status
from rdzv_server.core.views import health, run_view

Clock = Callable[[float], float]
"""Function that converts a time of the run to wall-clock time, in seconds since 1970."""
Document = dict[str, Any]
Quiet = Literal["", "silent", "disconnected"]
"""Why the server does not hear an agent; empty if it does, or if the run has ended."""

QUIET_SLACK_S = 1.0
"""Seconds that a poll may be late before its node counts as quiet."""
MOST_QUIET = 256
MOST_MISSING = 256


def summary(run: Run, now: float, clock: Clock) -> Document:
    """Return the summary of the run: its line in the list of all runs. `ending`: what happens at `deadline_at`."""
    reason, ending, deadline = run_view.outlook(run, now)
    return known(
        run_id=run.run_id,
        attempt=run.attempt,
        phase=run_view.phase(run),
        reason=reason,
        health=_health(run, now, clock),
        ending=ending,
        deadline_at=None if deadline is None else clock(deadline),
        round=run.round,
        nodes=run_view.present(run),
        standbys=run_view.standbys(run) or None,
        min_nodes=run.settings.min_nodes,
        max_nodes=run.settings.max_nodes,
        restart_count=run.restart_count,
        max_restarts=run.settings.max_restarts,
        restarts_used=restart_budget.used(run, now),
        own_budgets={cause.value: to_builtins(each) for cause, each in restart_budget.own_budgets(run).items()} or None,
        created_at=clock(run.created_at),
        since=clock(run.stage_since),
        ended_at=clock(run.ended_at) if run.has_ended and run.ended_at is not None else None,
        finished_at=None if (at := finishing.finished_at(run)) is None else clock(at),  # when the last worker finished
    )


def view(run: Run, now: float, clock: Clock) -> Document:
    """Return the view of the run without its nodes. Its size does not depend on their number."""
    silence = run_view.no_progress(run)
    return summary(run, now, clock) | known(
        world_size=run_view.world_size(run),
        lease_s=run.settings.lease_s,
        disconnect_grace_s=run.settings.disconnect_grace_s,
        quiet_after_s=quiet_after_s(run),
        can_be_forgotten=run.can_be_forgotten or None,
        restarts={cause.value: times for cause, times in run.restarts.items()} or None,
        event_number=run.event_number,
        time_s={word: round(seconds, 1) for word, seconds in time_ledger.entered(run, now).items()} or None,
        time_in=time_ledger.present(run),  # the time after `time_since` is added to this one
        time_since=clock(time_ledger.since(run)),
        no_progress=silence and str(silence),
        no_progress_command=silence and silence.command,
        restarts_took=run_view.restart_sentence(run) or None,
        missing=_missing(run, clock) or None,
        broken_links=list(map(asdict, network_status.view(run))) or None,
        first_failure=_failure(run.first_failure, clock),
        last_failure=_without_evidence(run_view.last_failure(run), clock),
        failed_rounds=run_view.failed_rounds(run) or None,
        end_failure=_failure(run_view.end_failure(run), clock),
    )


def _health(run: Run, now: float, clock: Clock) -> Document | None:
    """Return the health of the run; None if nothing is wrong with it."""
    found = health.findings(run, now)
    if not found:
        return None
    worst, *others = found
    steps = health.next_steps(found)
    return known(
        state=worst.state,
        sentence=worst.sentence,
        since=clock(worst.since),
        next=[*map(str, steps)],
        commands=[*map(health.command_of, steps)],  # at the ends of the steps
        others=[each.state for each in others] or None,
        is_trouble=any(each.is_trouble for each in found) or None,
    )


def unreadable(run: Run, clock: Clock, why: str) -> Document:
    """Return the view, and the summary, of a run for which nothing can be computed."""
    created_at = clock(run.created_at)
    return known(
        run_id=run.run_id, attempt=run.attempt, phase=run.stage.value, reason=why, round=run.round,
        nodes=len(run.agents), min_nodes=run.settings.min_nodes, max_nodes=run.settings.max_nodes,
        restart_count=run.restart_count, max_restarts=run.settings.max_restarts,
        restarts_used=min(run.restart_count, run.settings.max_restarts), created_at=created_at,
        since=created_at, ended_at=None if run.ended_at is None else clock(run.ended_at), world_size=0,
        lease_s=run.settings.lease_s, disconnect_grace_s=run.settings.disconnect_grace_s,
        quiet_after_s=quiet_after_s(run), can_be_forgotten=run.can_be_forgotten or None, event_number=run.event_number,
        time_in="running", time_since=created_at,
    )  # fmt: skip


def node(run: Run, agent: Agent) -> Document:
    """Return the view of one agent of the run."""
    remarks = run_view.node_remarks(run, agent.agent_id)
    seat = run.seat_of(agent.agent_id)
    return known(
        node_id=agent.node_id,
        agent_id=run_view.short(agent.agent_id),
        state=run_view.state(run, agent),
        addr=agent.join.addr,
        role=agent.join.role,
        place=run_view.place(agent) or None,
        local_world_size=agent.join.local_world_size,
        group_rank=seat.group_rank if seat else None,
        node_rank=agent.join.node_rank,
        first_rank=seat.first_rank if seat else None,
        cordon=_cordon(run.cordons[agent.node_id]) if agent.node_id in run.cordons else None,
        slow=remarks.get("slow"),
        remarks=remarks or None,
        failures=run.failures_by_node.get(agent.node_id) or None,
    )


def _cordon(given: Cordon) -> Document:
    return known(by=given.by, reason=given.reason or None, until=given.wall_until, excluded=given.excludes or None)


def quiet(run: Run, now: float, clock: Clock) -> dict[str, Document]:
    """Return views of agents that are absent or unusually silent, the longest first: at most `MOST_QUIET`.

    `since`: when the connection closed or, for a silent agent, when it was last heard. `limit_s`: seconds from then
    after which the agent is lost; absent while the run waits for its agents.
    """
    found: dict[str, Document] = {}
    renewed = run.leases.renewed_at
    for agent_id, since in run.leases.absent_since.items():
        if len(found) == MOST_QUIET:
            break
        found[agent_id] = _quiet(run, agent_id, "disconnected", since, clock)
    for agent_id, renewed_at in renewed.items():  # in the order of renewal
        if len(found) == MOST_QUIET or not _is_silent(run, renewed_at, now):
            break
        if agent_id not in found:
            found[agent_id] = _quiet(run, agent_id, "silent", renewed_at, clock)
    return found


def quiet_word(run: Run, agent_id: str, now: float) -> Quiet:
    """Return why the agent is in `quiet`; empty if it is not."""
    renewed_at = run.leases.renewed_at.get(agent_id)
    if run.stage.is_end or renewed_at is None:
        return ""
    if agent_id in run.leases.absent_since:
        return "disconnected"
    return "silent" if _is_silent(run, renewed_at, now) else ""


def _is_silent(run: Run, renewed_at: float, now: float) -> bool:
    return now - renewed_at >= quiet_after_s(run)


def _quiet(run: Run, agent_id: str, why: str, since: float, clock: Clock) -> Document:
    lost_at, heard_at = run_view.lost_at(run, agent_id), run.leases.renewed_at[agent_id]
    limit_s = None if lost_at is None else round(max(0.0, lost_at - since), 3)
    return known(why=why, since=clock(since), heard_at=clock(heard_at), limit_s=limit_s)


def quiet_after_s(run: Run) -> float:
    """Return the longest time in seconds between two signs of life of a healthy agent."""
    return hold_s(run.settings.lease_s) + QUIET_SLACK_S


def known(**fields: Any) -> Document:
    """Return a document with these fields, without those that do not apply."""
    return {name: value for name, value in fields.items() if value is not None}


def _missing(run: Run, clock: Clock) -> Document:
    """Return the missing seats of a forming round by group rank; if there are many, only the latest."""
    found = run_view.missing(run)
    return {
        str(gone.group_rank): {"node_id": gone.node_id, "cause": gone.cause, "at": clock(gone.at)}
        for gone in (found.vacated[-MOST_MISSING:] if found else ())
    }


def _failure(record: FailureRecord | None, clock: Clock) -> Document | None:
    if record is None:
        return None
    failure = record.failure
    return {
        "round": record.round, "at": clock(record.at), "sentence": failure.sentence, "failure": to_builtins(failure)
    }  # fmt: skip


def _without_evidence(record: FailureRecord | None, clock: Clock) -> Document | None:
    return _failure(record and replace(record, failure=replace(record.failure, traceback=(), stderr_tail=())), clock)


# Differences.


def difference(old: Document, new: Document) -> Document:
    """Return the JSON merge patch that turns `old` into `new`; empty if they are equal. Neither may contain a null."""
    patch: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if value != before:
            if isinstance(before, dict) and isinstance(value, dict):
                value = difference(before, value)
            patch[name] = value
    return patch


def merge(document: Document, patch: Document) -> None:
    """Apply a JSON merge patch. The document may share the patch's values afterwards."""
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(document.get(name), dict):
                document[name] = {}
            merge(document[name], value)
        else:
            document[name] = value
