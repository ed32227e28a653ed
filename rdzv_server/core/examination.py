"""Examination of a run that seems to hang: all participants are asked what their workers do, all at once.

Like every query it is a sign: nothing of it is recorded, and after a failover whoever wants to know asks again. It ends
once, within the time that it is given, whoever answers; a node that does not answer is part of what is found.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.errors import TooManyRequests
from rdzv_protocol.evidence import Evidence
from rdzv_protocol.queries import Examine, Query, QueryAnswer, Refused

from rdzv_server.core import queries
from rdzv_server.core.stack_summary import StackSummary, summarise

if TYPE_CHECKING:
    from rdzv_server.core.machine import RunMachine
    from rdzv_server.core.run import Agent

EXAMINED_WITHIN_S = 10.0
"""Time that the nodes have to answer."""

Done = Callable[["RunMachine", StackSummary, float], None]
"""Is told what was found, once: machine, summary, now."""


class Examination(Struct):
    """Findings of an examination so far."""

    done: Done
    ranks: dict[str, range]
    """Ranks of the agents that were asked, by agent: one node may have several."""
    left: int
    """Nodes that have not answered."""
    evidence: dict[str, Evidence]
    """By node, as is `silent`."""
    silent: dict[str, list[int]]


def begin(machine: "RunMachine", reason: str, within_s: float, done: Done, now: float) -> None:
    """Ask the participants of the running round; `done` is told the summary, at once if nobody can be asked."""
    run = machine.run
    seats = list(run.membership.seats.values()) if run.membership else []
    asked = Examination(done=done, ranks={}, left=0, evidence={}, silent={})
    for seat in seats:
        agent = run.agents.get(seat.agent_id)
        if agent is None or not queries.knows(agent, Examine):
            continue
        try:
            queries.ask(machine, agent, Examine, within_s, partial(_closed, asked), now, reason=reason)
        except TooManyRequests:
            continue
        asked.left += 1
        asked.ranks[agent.agent_id] = range(seat.first_rank, seat.first_rank + seat.local_world_size)
    if not asked.left:
        done(machine, StackSummary(sentence="no agent of this run can be asked for stacks"), now)


def _closed(
    asked: Examination, machine: "RunMachine", agent: "Agent", query: Query, answer: QueryAnswer | None, now: float
) -> None:
    """Take a node's answer; the last one ends the examination."""
    asked.left -= 1
    match answer:
        case None:
            asked.silent.setdefault(agent.node_id, []).extend(asked.ranks[agent.agent_id])
        case Evidence():
            own = _own(answer, asked.ranks[agent.agent_id])
            asked.evidence[agent.node_id] = _merged(asked.evidence.get(agent.node_id), own)
        case Refused():
            pass  # its workers have ended, or it has left: both are told otherwise
    if not asked.left:
        asked.done(machine, summarise(asked.evidence, asked.silent), now)


def _merged(evidence: Evidence | None, more: Evidence) -> Evidence:
    """The evidence of two agents of one node."""
    if evidence is None:
        return more
    return replace(
        evidence,
        groups=evidence.groups + more.groups,
        folder=evidence.folder or more.folder,
        problems=evidence.problems + more.problems,
        flight_recorder=evidence.flight_recorder or more.flight_recorder,
    )


def _own(evidence: Evidence, ranks: range) -> Evidence:
    """The evidence, if it is about the node's own ranks: no node can blame another's."""
    is_own = all(rank in ranks for group in evidence.groups for rank in group.ranks)
    return evidence if is_own else Evidence(groups=(), problems=("it told of ranks of other nodes",))
