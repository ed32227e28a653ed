"""Open queries to the agents of a run, beside their directives. Each is for one agent and has a deadline.

Queries are signs, not facts: the server does not record them, and what it concludes from an answer is a fact of its
own. Each query ends once. Its callback gets the agent's answer, or `Refused` if the agent is gone or the run has ended,
or None if its time is over.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from rdzv_protocol.errors import QueryRefused, RunEnded, TooManyRequests, UnknownNode, UnknownRank
from rdzv_protocol.queries import Describe, Query, QueryAnswer, Refused, TailLog

from rdzv_server.core import events
from rdzv_server.core.effects import CloseQuery
from rdzv_server.core.kernel.open_queries import Closed, OpenQuery
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.run import Agent, Run, Seat
from rdzv_server.words import queries as words

MOST_OPEN = 8
"""Most open queries of operators to one agent. As many of the server's own fit into a reply beside them."""
OPERATORS = (TailLog, Describe)


def knows(agent: Agent, kind: type[Query]) -> bool:
    """Return whether the agent's join names this kind of queries as known."""
    return kind.__struct_config__.tag in agent.join.queries


def ask(
    kernel: Kernel, agent: Agent, kind: type[Query], within_s: float, closed: Closed, now: float, **fields: Any
) -> int:
    """Ask an agent that knows the kind about its last round. `closed` is called at the end, within `within_s` seconds.

    Returns the query's number.
    """
    queries = kernel.run.queries
    number = queries.take_number(now)
    query = kind(number=number, round=agent.round, remaining_s=within_s, **fields)
    queries.add(agent.agent_id, number, OpenQuery(query, now + within_s, closed))
    kernel.wake([agent])
    return number


def close(kernel: Kernel, agent: Agent, number: int, answer: QueryAnswer | None, now: float) -> None:
    """End the query, if it is open, and call its callback."""
    queries = kernel.run.queries
    if opened := queries.take(agent.agent_id, number):
        if queries.makes_room(agent.agent_id):
            kernel.wake([agent])
        opened.closed(kernel, agent, opened.query, answer, now)


def close_all(kernel: Kernel, agents: Iterable[Agent], reason: str, now: float) -> None:
    """End all queries of these agents, which cannot answer them any more."""
    for agent in agents:
        for number in list(kernel.run.queries.by_agent.get(agent.agent_id, ())):
            close(kernel, agent, number, Refused(reason=reason), now)


def answered(kernel: Kernel, event: events.QueryAnswered, now: float) -> None:
    """Handle an agent's answer; ignore one that is late, repeated, or from an unknown agent."""
    if agent := kernel.run.agents.get(event.agent_id):
        close(kernel, agent, event.number, event.answer, now)


# Operators' queries.


def check_log(kernel: Kernel, event: events.LogAsked, now: float) -> None:
    """Check whether the agent of a rank can be asked for a worker's log.

    Raises `UnknownRank`, `RunEnded`, `QueryRefused` or `TooManyRequests`.
    """
    _check_can_be_asked(kernel.run, _agent_of_rank(kernel.run, event.rank), TailLog)


def ask_for_log(kernel: Kernel, event: events.LogAsked, now: float) -> None:
    """Ask the agent of a rank for the end of a worker's log."""
    fields = {"rank": event.rank, "stream": event.stream, "lines": event.lines, "offset": event.offset}
    _ask_for_operator(kernel, _agent_of_rank(kernel.run, event.rank), TailLog, event, now, **fields)


def check_description(kernel: Kernel, event: events.DescriptionAsked, now: float) -> None:
    """Check whether the agent of a node can be asked for its description.

    Raises `RunEnded`, `UnknownNode`, `QueryRefused` or `TooManyRequests`.
    """
    _check_can_be_asked(kernel.run, _agent_of_node(kernel.run, event.node_id), Describe)


def ask_for_description(kernel: Kernel, event: events.DescriptionAsked, now: float) -> None:
    """Ask the agent of a node for its description."""
    _ask_for_operator(kernel, _agent_of_node(kernel.run, event.node_id), Describe, event, now)


def _agent_of_rank(run: Run, rank: int) -> Agent:
    """Return the agent that had the rank in the last round. Raises `RunEnded`, `UnknownRank` or `QueryRefused`."""
    _check_lasts(run)
    seat = seat_of_rank(run, rank)
    if agent := run.agents.get(seat.agent_id):
        return agent
    raise QueryRefused(words.agent_gone(seat.node_id, rank))


def _agent_of_node(run: Run, node_id: str) -> Agent:
    """Return the node's agent, if possible one with a seat. Raises `RunEnded` or `UnknownNode`."""
    _check_lasts(run)
    if agents := run.agents_of(node_id):
        return min(agents, key=lambda agent: agent.agent_id not in run.seats)
    raise UnknownNode(words.no_agent_of_node(run.run_id, node_id))


def _check_lasts(run: Run) -> None:
    if run.stage.is_end:
        raise RunEnded(words.run_over(run.run_id, run.stage))


def _check_can_be_asked(run: Run, agent: Agent, kind: type[Query]) -> None:
    if not knows(agent, kind):
        raise QueryRefused(words.agent_too_old(agent.node_id))
    opened = run.queries.by_agent.get(agent.agent_id, {}).values()
    if sum(isinstance(each.query, OPERATORS) for each in opened) >= MOST_OPEN:
        raise TooManyRequests(words.too_many_open(agent.node_id, MOST_OPEN))


def _ask_for_operator(
    kernel: Kernel,
    agent: Agent,
    kind: type[Query],
    event: events.LogAsked | events.DescriptionAsked,
    now: float,
    **fields: Any,
) -> None:
    ask(kernel, agent, kind, event.within_s, partial(_answer_operator, event.token), now, **fields)


def _answer_operator(
    token: str, kernel: Kernel, agent: Agent, query: Query, answer: QueryAnswer | None, now: float
) -> None:
    kernel.emit(CloseQuery(token, agent.node_id, query.round, answer))


def seat_of_rank(run: Run, rank: int) -> Seat:
    """Return the seat that had the rank in the last round. Raises `UnknownRank`."""
    if run.membership is None:
        raise UnknownRank(words.no_ranks_yet(run.run_id))
    if seat := run.seat_of_rank(rank):
        return seat
    most = run.membership.world_size - 1
    raise UnknownRank(words.no_such_rank(run.run_id, rank, run.membership.round, most))
