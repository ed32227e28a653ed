"""Open queries: questions to a run's agents beside their directives, for whom, and until when.

They are signs, not facts: nothing of them is recorded, and whatever is concluded from an answer is a fact of its own.
Each ends once, and whoever asked is told: with the agent's answer, with `Refused` if the agent is gone or the run has
ended, or with None when its time is over.
"""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.errors import QueryRefused, RunEnded, TooManyRequests, UnknownRank
from rdzv_protocol.queries import Query, QueryAnswer, Refused, TailLog

from rdzv_server.core import events
from rdzv_server.core.effects import QueryClosed
from rdzv_server.words import queries as words

if TYPE_CHECKING:
    from rdzv_server.core.policy import Kernel
    from rdzv_server.core.run import Agent, Run, Seat

MOST_OPEN = 8
"""Most open questions of operators to one agent."""
NUMBERS_PER_S = 1_000
"""Query numbers a second: a number is the query's time in these units, or the next free one. So no number repeats one
of a server before, whose answers may still be under way."""

Closed = Callable[["Kernel", "Agent", Query, QueryAnswer | None, float], None]
"""Callback for the end of a query: kernel, agent, query, answer (None: its time is over), now."""


_NOTHING: dict[int, "OpenQuery"] = {}


class OpenQuery(Struct, frozen=True):
    query: Query
    until: float
    """Time by the server's clock after which nobody waits for the answer."""
    closed: Closed


class Queries:
    """The open queries of one run, by agent and number. Times are the server's, in seconds."""

    def __init__(self) -> None:
        self.by_agent: dict[str, dict[int, OpenQuery]] = {}
        self._last = 0
        self._due: list[tuple[float, str, int]] = []
        """Heap of the ends of all open queries, with stale entries of closed ones."""

    def add(self, agent_id: str, number: int, opened: OpenQuery) -> None:
        self.by_agent.setdefault(agent_id, {})[number] = opened
        heappush(self._due, (opened.until, agent_id, number))

    def next_number(self, now: float) -> int:
        self._last = max(self._last + 1, int(now * NUMBERS_PER_S))
        return self._last

    def of(self, agent_id: str, now: float) -> tuple[Query, ...]:
        """Open queries of the agent, with the seconds that are left."""
        asked = self.by_agent.get(agent_id)
        if not asked:
            return ()
        return tuple(replace(each.query, remaining_s=max(0.0, each.until - now)) for each in asked.values())

    def has_changed(self, agent_id: str, known: Iterable[int]) -> bool:
        """Whether the agent has open queries beside those with the `known` numbers."""
        return not self.by_agent.get(agent_id, _NOTHING).keys() <= set(known)

    def take(self, agent_id: str, number: int) -> OpenQuery | None:
        """Remove and return the query; None if it is not open."""
        asked = self.by_agent.get(agent_id, {})
        opened = asked.pop(number, None)
        if opened and not asked:
            del self.by_agent[agent_id]
        return opened

    def expired(self, now: float) -> tuple[str, int] | None:
        """Agent and number of a query whose time is over; None: there is none."""
        at = self.next_deadline()
        return self._due[0][1:] if at is not None and now >= at else None

    def next_deadline(self) -> float | None:
        while self._due and self._due[0][2] not in self.by_agent.get(self._due[0][1], ()):
            heappop(self._due)
        return self._due[0][0] if self._due else None


def knows(agent: "Agent", kind: type[Query]) -> bool:
    """Whether the agent said with its join that it knows queries of this kind."""
    return kind.__struct_config__.tag in agent.join.queries


def ask(
    kernel: "Kernel", agent: "Agent", kind: type[Query], within_s: float, closed: Closed, now: float, **fields: Any
) -> int:
    """Ask an agent that knows the kind about its last round; `closed` is called at the end, within `within_s` seconds.

    Returns the query's number.
    """
    queries = kernel.run.queries
    number = queries.next_number(now)
    query = kind(number=number, round=agent.round, remaining_s=within_s, **fields)
    queries.add(agent.agent_id, number, OpenQuery(query, now + within_s, closed))
    kernel.wake([agent])
    return number


def close(kernel: "Kernel", agent: "Agent", number: int, answer: QueryAnswer | None, now: float) -> None:
    """End the query, if it is open, and tell whoever asked."""
    if opened := kernel.run.queries.take(agent.agent_id, number):
        opened.closed(kernel, agent, opened.query, answer, now)


def close_all(kernel: "Kernel", agents: "Iterable[Agent]", reason: str, now: float) -> None:
    """End all queries of these agents, none of which will answer."""
    for agent in agents:
        for number in list(kernel.run.queries.by_agent.get(agent.agent_id, ())):
            close(kernel, agent, number, Refused(reason=reason), now)


def answered(kernel: "Kernel", event: events.QueryAnswered, now: float) -> None:
    """Take an agent's answer; ignore one that comes too late, again, or from an unknown agent."""
    if agent := kernel.run.agents.get(event.agent_id):
        close(kernel, agent, event.number, event.answer, now)


# Operators' questions.


def ask_for_log(kernel: "Kernel", event: events.LogAsked, now: float) -> None:
    """Ask the agent of a rank for the end of a worker's log.

    Raises `UnknownRank`, `RunEnded`, `QueryRefused` or `TooManyRequests`.
    """
    run = kernel.run
    if run.stage.is_end:
        raise RunEnded(words.run_over(run.run_id, run.stage))
    seat = seat_of_rank(run, event.rank)
    agent = run.agents.get(seat.agent_id)
    if agent is None:
        raise QueryRefused(words.agent_gone(seat.node_id, event.rank))
    if not knows(agent, TailLog):
        raise QueryRefused(words.agent_too_old(seat.node_id))
    asked = run.queries.by_agent.get(agent.agent_id, _NOTHING).values()
    if sum(isinstance(each.query, TailLog) for each in asked) >= MOST_OPEN:
        raise TooManyRequests(words.too_many_open(agent.node_id, MOST_OPEN))
    fields = {"rank": event.rank, "stream": event.stream, "lines": event.lines, "offset": event.offset}
    ask(kernel, agent, TailLog, event.within_s, partial(_answer_operator, event.token), now, **fields)


def _answer_operator(
    token: str, kernel: "Kernel", agent: "Agent", query: Query, answer: QueryAnswer | None, now: float
) -> None:
    kernel.emit(QueryClosed(token, agent.node_id, query.round, answer))


def seat_of_rank(run: "Run", rank: int) -> "Seat":
    """Seat that had the rank in the last round. Raises `UnknownRank`."""
    if run.membership is None:
        raise UnknownRank(words.no_ranks_yet(run.run_id))
    if seat := run.seat_of_rank(rank):
        return seat
    most = run.membership.world_size - 1
    raise UnknownRank(words.no_such_rank(run.run_id, rank, run.membership.round, most))
