"""Examination of a run that seems to hang: the server asks all participants at the same time what their workers do.

Like every query, an examination is a sign: nothing of it is recorded, and after a failover it has to be asked again. It
ends once, within its time limit. A node that does not answer is part of the findings.
"""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.errors import QueryRefused, RunEnded, TooManyRequests
from rdzv_protocol.evidence import Evidence
from rdzv_protocol.queries import Examine, Query, QueryAnswer, Refused
from rdzv_protocol.text import clip, printable

from rdzv_server.core.effects import CloseQuery
from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import queries
from rdzv_server.core.kernel.progress import STALLED
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.run import Agent, Run, Stage
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.stack_summary import StackSummary, summarize

REASON_BYTES = 240
EXAMINED_WITHIN_S = 10.0
"""Seconds that the nodes have to answer."""

OPERATORS_PAUSE_S = 10.0
"""Least seconds between the starts of two examinations of one run's workers that operators ask for."""

Asked = tuple[str, int]
"""Id of an agent, and the number of its query."""
Done = Callable[[Kernel, StackSummary, float], None]
"""Callback that gets the findings, once: kernel, summary, now."""


class Examination(Struct):
    """Findings of an examination so far."""

    done: Done
    ranks: dict[str, range]
    """Ranks of each agent that is asked, by agent: one node may have several agents."""
    rank: int | None
    """The only rank that is examined; None if all are."""
    left: int
    """Number of agents that have not answered."""
    hangs: bool | None
    """Whether the run hangs; None if that is unknown."""
    evidence: dict[str, Evidence]
    """Evidence by node id. `silent`: ranks that did not answer or cannot be asked, also by node id."""
    silent: dict[str, list[int]]


def begin(
    kernel: Kernel,
    reason: str,
    within_s: float,
    done: Done,
    now: float,
    rank: int | None = None,
    *,
    hangs: bool | None = True,
) -> list[Asked]:
    """Ask the participants of the running round. `done` gets the summary, at once if no agent can be asked.

    `rank`: the only rank to examine; None for all. `hangs`: whether the run hangs; None if that is unknown. Returns the
    agents that were asked, each with its query's number.
    """
    run = kernel.run
    asked = Examination(done=done, ranks={}, rank=rank, left=0, hangs=hangs, evidence={}, silent={})
    opened = []
    for seat in run.seats.values():
        agent = run.agents.get(seat.agent_id)
        if agent is None or not (rank is None or rank in seat.ranks):
            continue
        asked.ranks[agent.agent_id] = seat.ranks
        if not queries.knows(agent, Examine):
            _note_silent(asked, agent)
            continue
        number = queries.ask(kernel, agent, Examine, within_s, partial(_closed, asked), now, reason=reason)
        asked.left += 1
        opened.append((agent.agent_id, number))
    if not asked.left:
        done(kernel, StackSummary(sentence=words.NO_AGENT_TO_ASK), now)
    return opened


def end(kernel: Kernel, opened: Iterable[Asked], reason: str, now: float) -> None:
    """End an examination without waiting for the agents that have not answered."""
    for agent_id, number in opened:
        if agent := kernel.run.agents.get(agent_id):
            queries.close(kernel, agent, number, Refused(reason=reason), now)


def _closed(
    asked: Examination, kernel: Kernel, agent: Agent, query: Query, answer: QueryAnswer | None, now: float
) -> None:
    """Handle a node's answer; the last one ends the examination."""
    asked.left -= 1
    match answer:
        case None:
            _note_silent(asked, agent)
        case Evidence():
            own = _only(_own(answer, asked.ranks[agent.agent_id]), asked.rank)
            asked.evidence[agent.node_id] = _merged(asked.evidence.get(agent.node_id), own)
        case Refused(reason=reason) if _runs(kernel.run, agent):  # it has not started its workers, or it is too slow
            _note_silent(asked, agent)
            why = Evidence(groups=(), problems=(clip(printable(reason), REASON_BYTES),))
            asked.evidence[agent.node_id] = _merged(asked.evidence.get(agent.node_id), why)
        case Refused():
            pass  # its workers have ended, or it has left: other messages report both
    if not asked.left:
        asked.done(kernel, summarize(asked.evidence, asked.silent, hangs=asked.hangs), now)


def _runs(run: Run, agent: Agent) -> bool:
    return run.stage is Stage.RUNNING and agent.agent_id in run.running


def _note_silent(asked: Examination, agent: Agent) -> None:
    ranks = asked.ranks[agent.agent_id] if asked.rank is None else (asked.rank,)
    asked.silent.setdefault(agent.node_id, []).extend(ranks)


def _merged(evidence: Evidence | None, more: Evidence) -> Evidence:
    """Merge the evidence of two agents of one node."""
    if evidence is None:
        return more
    return replace(
        evidence,
        groups=evidence.groups + more.groups,
        folder=evidence.folder or more.folder,
        problems=evidence.problems + more.problems,
        errors=evidence.errors + more.errors,
        flight_recorder=evidence.flight_recorder or more.flight_recorder,
        nccl=evidence.nccl or more.nccl,
    )


def _own(evidence: Evidence, ranks: range) -> Evidence:
    """Reduce evidence to the ranks of its own node: a node cannot blame the ranks of another."""
    told_of = [*(rank for group in evidence.groups for rank in group.ranks), *(error.rank for error in evidence.errors)]
    is_own = all(rank in ranks for rank in told_of)
    return evidence if is_own else Evidence(groups=(), problems=(words.FOREIGN_RANKS,))


def _only(evidence: Evidence, rank: int | None) -> Evidence:
    """Reduce evidence to one rank, since an agent reports all of its workers. If `rank` is None, keep all of it."""
    if rank is None:
        return evidence
    groups = tuple(replace(group, ranks=(rank,)) for group in evidence.groups if rank in group.ranks)
    return replace(evidence, groups=groups, errors=tuple(each for each in evidence.errors if each.rank == rank))


# Operators' queries.


class StacksAsked(PolicyFact, frozen=True, kw_only=True):
    """An operator asks what the workers of the running round do, or one of them: a fact, with the operator and the
    reason.

    `token` names the query in its `CloseQuery`, which comes within `within_s` seconds.
    """

    token: str
    rank: int | None
    reason: str
    by: str
    within_s: float


def check_stacks(run: Run, event: StacksAsked, again_at: float, now: float) -> StacksAsked:
    """Return the fact that an operator asks for an examination. It may begin at `again_at` or later.

    Raises `UnknownRank`, `RunEnded`, `QueryRefused` or `TooManyRequests`.
    """
    _check_can_be_asked(run, event.rank)
    if (left_s := again_at - now) > 0:
        raise TooManyRequests(words.examined_just_now(run.run_id, max(1.0, left_s)))
    return replace(event, token="")


def begin_for_operator(kernel: Kernel, event: StacksAsked, now: float, *, is_suspected: bool) -> None:
    """Begin the examination that an operator asks for. `is_suspected`: whether the workers seem to hang."""
    run = kernel.run
    reason = words.operator_asks(event.by, event.reason)
    hangs = True if is_suspected else False if _makes_progress(run) else None
    done = partial(_answer_operator, event.token, run.round)
    begin(kernel, reason, event.within_s, done, now, event.rank, hangs=hangs)


def _makes_progress(run: Run) -> bool:
    """Return whether the workers of all nodes report steps, and the latest step of each is not overdue."""
    reports = [run.progress[agent_id].progress for agent_id in run.running if agent_id in run.progress]
    are_stepping = [each.step_s is not None and each.age_s <= STALLED * each.step_s for each in reports]
    return bool(are_stepping) and len(reports) == len(run.running) and all(are_stepping)


def _check_can_be_asked(run: Run, rank: int | None) -> None:
    if run.stage.is_end:
        raise RunEnded(words.run_is_over(run.run_id, run.stage))
    seats = list(run.seats.values()) if rank is None else [queries.seat_of_rank(run, rank)]
    if run.stage is not Stage.RUNNING:
        raise QueryRefused(words.no_workers(run.run_id))
    agents = [agent for seat in seats if (agent := run.agents.get(seat.agent_id))]
    if not agents:
        raise QueryRefused(words.WORKERS_GONE)
    if not any(queries.knows(agent, Examine) for agent in agents):
        raise QueryRefused(words.agent_is_too_old(agents[0].node_id))


def _answer_operator(token: str, round_: int, kernel: Kernel, summary: StackSummary, now: float) -> None:
    kernel.emit(CloseQuery(token, summary.folder_node, round_, summary))


def asked_for(kernel: Kernel, fact: StacksAsked, now: float) -> None:
    """Emit the event that says which operator asked, and why."""
    why = clip(printable(fact.reason), REASON_BYTES)
    kernel.record_event("stacks_asked", words.operator_examines(fact.rank, why), now, by=fact.by)
