"""Queries of the server, and the report of an agent that was suspended."""

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
)
from rdzv_protocol.messages import AnswerRequest
from rdzv_protocol.queries import LogTail, TailLog

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.effects import (
    Ask,
    Log,
)
from node_agent.kernel.core.events import (
    Answer,
    Answered,
    ConnectionFailed,
)
from tests.unit.node_agent.story import (
    Story,
    finish,
    poll,
    start,
)


def queries(*numbers: int) -> tuple[TailLog, ...]:
    return tuple(TailLog(number=n, round=1, remaining_s=5.0, rank=2, stream="stderr", lines=9) for n in numbers)


TAIL = LogTail(path="/stderr.log", text="Boom", offset=4)


def test_a_query_in_every_reply_is_answered_once_and_acknowledged_in_polls():
    agent = Story()
    agent.is_told(start(), queries=queries(7))
    assert Ask(*queries(7)) in agent.effects
    assert replace(poll(), asked=(7,)) in agent.effects
    agent.is_told(start(), queries=queries(7, 8))
    assert [effect for effect in agent.effects if isinstance(effect, Ask)] == [Ask(*queries(8))]
    assert replace(poll(revision=2), asked=(7, 8)) in agent.effects


def test_a_query_is_answered_beside_the_poll_unless_its_caller_has_gone():
    agent = Story()
    agent.is_told(start(), queries=queries(7, 8))
    agent.handle(Answer(7, TAIL))
    assert agent.effects == [AnswerRequest(run_id="run", agent_id="a.1", number=7, answer=TAIL)]
    agent.is_told(start())
    agent.handle(Answer(8, TAIL))
    assert agent.effects == []


@pytest.mark.parametrize(("slept_s", "said_s"), [(7.0, 0.0), (60.0, 60.0)])
def test_a_fenced_agent_reports_that_it_was_suspended(slept_s, said_s):
    """An agent with a lease of 9 s stops waiting for a poll after a silence of 6.75 s."""
    agent = Story()
    agent.is_told(start())
    agent.now += slept_s
    agent.handle(Answered(AgentFenced("gone")))
    assert Log(words.leaving.rejoining("gone", said_s), event="fenced") in agent.effects


def test_an_agent_that_was_cut_off_does_not_say_that_it_did_not_run():
    agent = Story()
    agent.is_told(start())
    agent.now += 6.75
    agent.handle(ConnectionFailed(Unreachable("HTTP", words.connection.NO_ANSWER)))
    agent.now += 60.0
    agent.handle(Answered(AgentFenced("gone")))
    assert Log(words.leaving.rejoining("gone", 0.0), event="fenced") in agent.effects


def test_an_agent_that_ends_or_is_fenced_does_not_answer_earlier_queries():
    agent = Story()
    agent.is_told(start(), queries=queries(7))
    agent.handle(Answered(AgentFenced("it has left")))
    agent.handle(Answer(7, TAIL))
    assert agent.effects == []
    agent = Story()
    agent.is_told(finish(), queries=queries(7))
    assert not [effect for effect in agent.effects if isinstance(effect, Ask)]
