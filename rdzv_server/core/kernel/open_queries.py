"""Container of the open queries of one run; the functions of `queries` ask, answer and end them."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.queries import MOST_QUERIES, Query

NUMBERS_PER_S = 1_000
"""Query numbers for each second. A number is the query's time in these units, or the next free one. So no number
repeats one of an earlier server, whose answers may still arrive."""

Closed = Callable[..., None]
"""Callback for the end of a query: it gets kernel, agent, query, answer (None if it is too late) and now."""


_NOTHING: dict[int, "OpenQuery"] = {}


class OpenQuery(Struct, frozen=True):
    query: Query
    until: float
    """Time by the server's clock after which nothing waits for the answer."""
    closed: Closed


class Queries:
    """The open queries of one run, by agent and number. Times are the server's, in seconds."""

    def __init__(self) -> None:
        self.by_agent: dict[str, dict[int, OpenQuery]] = {}
        self._last = 0
        self._due: list[tuple[float, str, int]] = []
        """Heap of the ends of all open queries, with stale entries of closed ones. The first is never stale."""

    def add(self, agent_id: str, number: int, opened: OpenQuery) -> None:
        self.by_agent.setdefault(agent_id, {})[number] = opened
        heappush(self._due, (opened.until, agent_id, number))

    def take_number(self, now: float) -> int:
        """Return a unique number for a new query."""
        self._last = max(self._last + 1, int(now * NUMBERS_PER_S))
        return self._last

    def of(self, agent_id: str, now: float) -> tuple[Query, ...]:
        """Return the open queries of the agent that fit into a reply, with the seconds that are left for each."""
        asked = self.by_agent.get(agent_id)
        if not asked:
            return ()
        sent = islice(asked.values(), MOST_QUERIES)
        return tuple(replace(each.query, remaining_s=max(0.0, each.until - now)) for each in sent)

    def has_changed(self, agent_id: str, known: Iterable[int]) -> bool:
        """Return whether a reply to the agent would have queries other than those with the `known` numbers."""
        asked = self.by_agent.get(agent_id)
        return asked is not None and not set(islice(asked, MOST_QUERIES)) <= set(known)

    def makes_room(self, agent_id: str) -> bool:
        """Return whether the query of the agent that has just been closed makes room in a reply for another one."""
        return len(self.by_agent.get(agent_id, _NOTHING)) >= MOST_QUERIES

    def take(self, agent_id: str, number: int) -> OpenQuery | None:
        """Remove and return the query; None if it is not open."""
        asked = self.by_agent.get(agent_id, {})
        opened = asked.pop(number, None)
        if opened and not asked:
            del self.by_agent[agent_id]
        while self._due and self._due[0][2] not in self.by_agent.get(self._due[0][1], _NOTHING):
            heappop(self._due)
        return opened

    def expired(self, now: float) -> tuple[str, int] | None:
        """Return agent and number of a query whose time is over; None if there is none."""
        at = self.next_deadline()
        return self._due[0][1:] if at is not None and now >= at else None

    def next_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None
