"""Queries to an agent: sent once, in time, and only if the agent can answer them."""

import pytest
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError, QueryRefused, RunEnded, TooManyRequests, UnknownNode, UnknownRank
from rdzv_protocol.messages import Reply, Wait
from rdzv_protocol.queries import (
    MOST_QUERIES,
    CauseSought,
    Describe,
    Description,
    FindCause,
    LogTail,
    Refused,
    TailLog,
)

from rdzv_server.core.effects import CloseQuery, Record
from rdzv_server.core.events import DescriptionAsked, LogAsked, QueryAnswered, RunStopped
from rdzv_server.core.kernel.queries import MOST_OPEN, ask
from rdzv_server.core.kernel.run import Stage
from rdzv_server.words import losses, operations, runs
from rdzv_server.words import queries as words
from tests.support.message_search import pattern
from tests.support.scenario import Scenario, running

TAIL = LogTail(path="/logs/0/stderr.log", text="Boom\n", offset=5)
WITHIN_S = 5.0
DESCRIPTION = Description(versions=(), system="Linux", cpus=2, variables=())


def asks(run: Scenario, rank: int = 0, token: str = "t") -> None:
    run.handle(LogAsked(token, rank, "stderr", 10, None, WITHIN_S))


def asked(run: Scenario, name: str) -> tuple[TailLog, ...]:
    return run.run.queries.of(name, run.now)


def closed(run: Scenario) -> list[CloseQuery]:
    return [effect for effect in run.effects if isinstance(effect, CloseQuery)]


def test_the_agent_that_has_the_rank_is_woken_and_asked_until_it_answers():
    run = running("2", "a", "b")
    asks(run, rank=1)
    assert run.woken() == ["b"] and asked(run, "a") == ()
    (query,) = asked(run, "b")
    assert (query.rank, query.round, query.remaining_s) == (1, 1, WITHIN_S)
    run.passes(2.0)
    assert asked(run, "b")[0].remaining_s == WITHIN_S - 2.0
    run.handle(QueryAnswered("b", query.number, TAIL))
    assert closed(run) == [CloseQuery("t", "b", 1, TAIL)]
    assert asked(run, "b") == ()
    assert not [effect for effect in run.effects if isinstance(effect, Record)]


def test_an_answer_counts_once_and_only_from_the_agent_that_was_asked():
    run = running("2", "a", "b")
    asks(run, rank=1)
    (query,) = asked(run, "b")
    for stray in (QueryAnswered("a", query.number, TAIL), QueryAnswered("b", query.number + 1, TAIL)):
        run.handle(stray)
        assert closed(run) == []
    run.handle(QueryAnswered("b", query.number, TAIL))
    run.handle(QueryAnswered("b", query.number, TAIL))
    assert closed(run) == []


def test_numbers_rise_also_within_an_instant_and_over_a_restart_of_the_server():
    run = running("1", "a")
    for token in ("1", "2"):
        asks(run, token=token)
    before = [query.number for query in asked(run, "a")]
    run.passes(0.01)
    run.restarts()
    assert asked(run, "a") == ()
    asks(run)
    assert before[0] < before[1] < asked(run, "a")[0].number


def test_an_agent_has_news_until_its_poll_lists_the_known_query_numbers():
    run = running("1", "a")
    queries = run.run.queries
    assert not queries.has_changed("a", ())
    asks(run)
    (query,) = asked(run, "a")
    assert queries.has_changed("a", ()) and not queries.has_changed("a", (query.number,))


def test_a_query_whose_time_is_over_ends_without_an_answer():
    run = running("1", "a")
    asks(run)
    run.passes(WITHIN_S)
    assert closed(run) == [CloseQuery("t", "a", 1, None)]
    assert asked(run, "a") == () and run.stage is Stage.RUNNING


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (lambda run: run.leaves("b"), losses.cannot_answer("b", "SIGTERM")),
        (lambda run: run.is_lost("b"), losses.cannot_answer("b", losses.not_back(1))),
        (
            lambda run: run.handle(RunStopped("enough", "me", "1")),
            runs.ended("run", Stage.FAILED, operations.stopped("enough")),
        ),
    ],
    ids=["leaves", "lost", "run ends"],
)
def test_an_open_question_ends_at_once_when_no_agent_can_answer_any_more(ending, reason):
    run = running("2", "a", "b")
    asks(run, rank=1)
    ending(run)
    (end,) = closed(run)
    assert isinstance(end.answer, Refused) and end.answer.reason == reason


def test_while_the_next_round_forms_the_last_one_is_asked_about():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b")
    run.join("b")
    asks(run, rank=1)
    assert asked(run, "b")[0].round == 1
    run.join("a")
    run.handle(QueryAnswered("b", asked(run, "b")[0].number, TAIL))
    assert closed(run) == [CloseQuery("t", "b", 1, TAIL)]


@pytest.mark.parametrize(
    ("before", "rank", "refusal", "why"),
    [
        (lambda: Scenario("2"), 0, UnknownRank, words.no_ranks_yet("run")),
        (lambda: running("2", "a", "b"), 2, UnknownRank, words.no_such_rank("run", 2, round_=1, last=1)),
        (lambda: _ended(), 0, RunEnded, words.run_over("run", Stage.SUCCEEDED)),
        (lambda: _without("b"), 1, QueryRefused, words.agent_gone("b", 1)),
        (lambda: _old("a"), 0, QueryRefused, words.agent_too_old("a")),
        (lambda: _busy(), 0, TooManyRequests, words.too_many_open("a", MOST_OPEN)),
    ],
    ids=["no round yet", "no such rank", "ended", "gone", "old agent", "too many"],
)
def test_an_impossible_query_is_refused_with_the_reason_before_any_agent_is_asked(before, rank, refusal, why):
    run = before()
    open_before = sum(map(len, run.run.queries.by_agent.values()))
    with pytest.raises(refusal, match=pattern(why)) as raised:
        asks(run, rank)
    assert isinstance(raised.value, ProtocolError)
    assert sum(map(len, run.run.queries.by_agent.values())) == open_before


def _ended() -> Scenario:
    run = running("1", "a")
    run.succeeds("a")
    return run


def _without(name: str) -> Scenario:
    run = running("2", "a", "b")
    run.leaves(name)
    return run


def _old(name: str) -> Scenario:
    run = Scenario("1")
    run.join(name, queries=())
    run.ends_last_call()
    return run


def _busy() -> Scenario:
    run = running("1", "a")
    for token in range(MOST_OPEN):
        asks(run, token=str(token))
    return run


def test_a_reply_has_no_more_queries_than_an_agent_can_read_and_the_others_follow() -> None:
    run = running("1", "a")
    agent, queries = run.run.agents["a"], run.run.queries
    closings: list[int] = []
    for _ in range(MOST_QUERIES + 1):
        ask(
            run.machine,
            agent,
            FindCause,
            WITHIN_S,
            lambda _k, _a, query, _r, _n: closings.append(query.number),
            run.now,
        )
    numbers = list(queries.by_agent["a"])
    run.passes(0.1)
    run.handle(QueryAnswered("a", 0, CauseSought(found=False)))  # carries out what the questions asked for
    reply = Reply(epoch="1", revision=1, lease_s=9.0, directive=Wait(reason=""), queries=queries.of("a", run.now))
    assert [each.number for each in decode(Reply, encode(reply)).queries] == numbers[:-1]
    assert not queries.has_changed("a", numbers[:-1]), "a poll that knows these is parked"
    run.handle(QueryAnswered("a", numbers[0], CauseSought(found=False)))
    assert closings == [numbers[0]] and run.woken() == ["a"]
    assert queries.has_changed("a", numbers[:-1])
    assert [each.number for each in queries.of("a", run.now)] == numbers[1:]
    run.handle(QueryAnswered("a", numbers[-1], CauseSought(found=False)))
    assert run.woken() == [], "all of the others have been sent"


def test_operators_questions_of_all_kinds_leave_room_for_the_servers_own() -> None:
    run = Scenario("1")
    run.join("a", queries=("describe", "tail_log"))
    for token in range(MOST_OPEN):
        asks(run, token=str(token))
    with pytest.raises(TooManyRequests):
        run.handle(DescriptionAsked("t", "a", WITHIN_S))
    assert 2 * MOST_OPEN <= MOST_QUERIES


# Reports of an agent about its machine.


def test_a_seated_agent_of_the_node_is_asked_what_it_runs_on() -> None:
    run = Scenario("1")
    run.join("a", queries=("describe",))
    run.join("spare", node="a", queries=("describe",))
    run.handle(DescriptionAsked("t", "a", WITHIN_S))
    (query,) = run.asked(Describe).values()
    assert [*run.asked(Describe)] == ["a"] and query.remaining_s == WITHIN_S
    run.handle(QueryAnswered("a", query.number, DESCRIPTION))
    assert closed(run) == [CloseQuery("t", "a", 1, DESCRIPTION)]


def test_a_refusal_quotes_the_run_in_its_command_for_a_shell() -> None:
    assert "rdzvctl nodes 'my run; ls' " in words.no_agent_of_node("my run; ls", "a")


@pytest.mark.parametrize(
    ("known", "node", "refusal"),
    [("describe", "z", UnknownNode), ("tail_log", "a", QueryRefused)],
)
def test_an_agent_that_cannot_describe_its_machine_is_not_asked(
    known: str, node: str, refusal: type[ProtocolError]
) -> None:
    run = Scenario("1")
    run.join("a", queries=(known,))
    with pytest.raises(refusal):
        run.handle(DescriptionAsked("t", node, WITHIN_S))
    assert not run.asked(Describe)
    run.is_stopped()
    with pytest.raises(RunEnded):
        run.handle(DescriptionAsked("t", "a", WITHIN_S))
