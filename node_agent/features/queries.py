"""Answers to the server's queries: the end of a log, stacks of the workers, a notice to them.

Features find the answers in parallel with the agent's other work, each by its own deadline at the latest.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from rdzv_protocol.queries import Query, QueryAnswer, Refused

from node_agent import words
from node_agent.features.active import Features
from node_agent.kernel.transport.base import spawn


class Queries:
    """Queries of the server to one agent. `answered` is called once for each query, with its number and the answer."""

    def __init__(self, node_id: str, features: Features, answered: Callable[[int, QueryAnswer], None]) -> None:
        self._node_id = node_id
        self._features = features
        self._answered = answered
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, query: Query) -> None:
        """Start to find the answer to a query."""
        spawn(self._find_out(query), self._under_way)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _find_out(self, query: Query) -> None:
        answer: QueryAnswer | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(query.remaining_s):
                feature = self._features.answering(type(query))
                if feature is None:
                    answer = Refused(reason=words.agent.query_unknown(self._node_id))
                else:
                    answer = await feature.answer(query)
        self._answered(query.number, answer or Refused(reason=words.agent.query_too_slow(self._node_id)))
