"""Answers to the server's queries: a feature that fails to answer does not end workers."""

import asyncio

import pytest
from rdzv_protocol.queries import Describe, Description, Query, QueryAnswer, Refused

from node_agent import words
from node_agent.features.enabled import MOST_OF_ERROR, Features, Queries
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature
from tests.support.message_search import message_fields

NODE = "a"
QUERY = Describe(number=7, round=1, remaining_s=5.0)


class Log:
    """The part of a console that takes lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Level]] = []

    def log(self, text: str, level: Level = Level.ROUTINE, event: str = "") -> None:
        self.lines.append((text, level))


class Only(Features):
    """Features of which one answers, or cannot be loaded."""

    def __init__(self, feature: Feature | Exception) -> None:
        self._only = feature

    def answering(self, kind: type[Query]) -> Feature | None:
        if isinstance(self._only, Exception):
            raise self._only
        return self._only


class Broken(Feature):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def answer(self, query: Query) -> QueryAnswer:
        raise self._error


@pytest.mark.parametrize("loads", [True, False])
async def test_a_feature_that_raises_refuses_its_query_and_logs_why(loads):
    error = AttributeError(f"'WorkerSpec' object has no attribute\n{'x' * 9_999}")
    answer, log = await _answer(Broken(error) if loads else error)
    assert isinstance(answer, Refused)
    found = message_fields(answer.reason, words.agent.query_failed, node_id=NODE)
    assert found["kind"] == "AttributeError" and len(found["error"]) <= MOST_OF_ERROR and "\n" not in answer.reason
    ((text, level),) = log.lines
    assert level is Level.ERROR and "Traceback" in text


async def test_a_module_that_is_gone_refuses_its_query():
    answer, _ = await _answer(ModuleNotFoundError("No module named 'node_agent.features.description'"))
    assert isinstance(answer, Refused)


async def test_an_answer_is_passed_on():
    class Describes(Feature):
        def __init__(self) -> None: ...

        async def answer(self, query: Query) -> QueryAnswer:
            return Refused(reason="not here")

    answer, log = await _answer(Describes())
    assert answer == Refused(reason="not here") and not log.lines


async def _answer(feature: Feature | Exception) -> tuple[QueryAnswer | Description, Log]:
    answered: asyncio.Future[tuple[int, QueryAnswer]] = asyncio.get_running_loop().create_future()
    log = Log()
    queries = Queries(NODE, Only(feature), log, lambda *answer: answered.set_result(answer))
    queries.ask(QUERY)
    number, answer = await answered
    assert number == QUERY.number
    return answer, log
