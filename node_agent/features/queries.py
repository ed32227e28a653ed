"""Answers to the server's queries: the end of a log, stacks of the workers, a notice to them.

Features find the answers in parallel with the agent's other work, each by its own deadline at the latest. If a feature
raises an exception, the server gets a refusal, and the run continues: a question ends no workers.
"""

import asyncio
from collections.abc import Callable

from rdzv_protocol.queries import Query, QueryAnswer, Refused
from rdzv_protocol.text import clip, printable

from node_agent import words
from node_agent.features.active import Features
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import Console
from node_agent.kernel.transport.base import spawn

MOST_OF_ERROR = 512
"""Most bytes of an error's text in an answer."""


class Queries:
    """Queries of the server to one agent. `answered` is called once for each query, with its number and the answer."""

    def __init__(
        self, node_id: str, features: Features, console: Console, answered: Callable[[int, QueryAnswer], None]
    ) -> None:
        self._node_id = node_id
        self._console = console
        self._features = features
        self._answered = answered
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, query: Query) -> None:
        """Start to find the answer to a query."""
        spawn(self._find_out(query), self._under_way)

    def _report(self, error: Exception) -> str:
        """Log the error of a feature. Return it in one line."""
        from traceback import format_exception

        why = words.agent.query_failed(self._node_id, type(error).__name__, clip(str(error), MOST_OF_ERROR))
        self._console.log("\n".join([why, *format_exception(error)]).rstrip(), Level.ERROR)
        return printable(why)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _find_out(self, query: Query) -> None:
        try:
            async with asyncio.timeout(query.remaining_s):
                feature = self._features.answering(type(query))
                if feature is None:
                    answer: QueryAnswer = Refused(reason=words.agent.query_unknown(self._node_id))
                else:
                    answer = await feature.answer(query)
        except TimeoutError:
            answer = Refused(reason=words.agent.query_too_slow(self._node_id))
        except Exception as error:
            answer = Refused(reason=self._report(error))
        self._answered(query.number, answer)
