"""All participants are asked what their workers do; of what they answer one summary is made."""

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError, QueryRefused, RunEnded, TooManyRequests, UnknownRank
from rdzv_protocol.evidence import Evidence, StackGroup, frame
from rdzv_protocol.queries import Examine, LogTail, QueryAnswer

from rdzv_server.core import examination
from rdzv_server.core.effects import QueryClosed
from rdzv_server.core.events import QueryAnswered, RunStopped, StacksAsked
from rdzv_server.core.examination import OPERATORS_PAUSE_S
from rdzv_server.core.stack_summary import Culprit, StackSummary
from tests.support.scenario import Scenario, running

WITHIN_S = 5.0
WAITING = (
    frame("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1),
    frame("step", "/home/a/train.py", 88),
)
LOADING = (frame("load", "/home/a/data.py", 31),)


class Examined:
    """An examination of a run, and what became of it."""

    def __init__(self, run: Scenario) -> None:
        self.run = run
        self.found: list[StackSummary] = []
        examination.begin(run.machine, "rank 0 is silent", WITHIN_S, self._done, run.now)

    def _done(self, machine: object, summary: StackSummary, now: float) -> None:
        self.found.append(summary)

    def asked(self, name: str) -> tuple[Examine, ...]:
        return tuple(each for each in self.run.run.queries.of(name, self.run.now) if isinstance(each, Examine))

    def answers(self, name: str, answer: QueryAnswer) -> None:
        (query,) = self.asked(name)
        self.run.handle(QueryAnswered(name, query.number, answer))


def evidence(rank: int, frames: tuple = WAITING, **more: object) -> Evidence:
    return Evidence(groups=(StackGroup(ranks=(rank,), frames=frames),), **more)


def three() -> Examined:
    return Examined(running("3", "a", "b", "c"))


def test_everybody_is_asked_and_the_last_answer_ends_it():
    examined = three()
    assert [examined.asked(name)[0].reason for name in "abc"] == ["rank 0 is silent"] * 3
    examined.answers("a", evidence(0))
    examined.answers("b", evidence(1, LOADING, folder="/logs/evidence_1", problems=("no py-spy",)))
    assert examined.found == []
    examined.answers("c", evidence(2))
    (summary,) = examined.found
    assert summary.sentence == "ranks 0 and 2 in all_reduce at train.py:88; rank 1 in load at data.py:31"
    assert summary.culprits == (Culprit(1, "b"),)
    assert (summary.folder, summary.folder_node, summary.problems) == ("/logs/evidence_1", "b", ("no py-spy",))


def test_a_node_that_is_silent_is_part_of_what_is_found():
    examined = three()
    for name, rank in (("a", 0), ("b", 1)):
        examined.answers(name, evidence(rank))
    examined.run.passes(WITHIN_S)
    (summary,) = examined.found
    assert summary.sentence == "ranks 0 and 1 in all_reduce at train.py:88; nothing of rank 2 (node c)"
    assert summary.culprits == (Culprit(2, "c"),)


def test_a_node_that_leaves_meanwhile_is_waited_for_no_longer_and_not_to_blame():
    examined = three()
    for name, rank in (("a", 0), ("b", 1)):
        examined.answers(name, evidence(rank))
    examined.run.leaves("c")
    (summary,) = examined.found
    assert summary.culprits == ()


def test_a_node_tells_of_its_own_ranks_alone():
    examined = three()
    examined.answers("a", evidence(2, LOADING))
    examined.answers("b", evidence(1))
    examined.answers("c", evidence(2))
    (summary,) = examined.found
    assert summary.sentence.startswith("all 2 ranks in all_reduce at train.py:88")
    assert summary.problems == ("it told of ranks of other nodes",)


def test_two_agents_of_one_node_tell_of_their_own_ranks_each():
    run = Scenario("3")
    for name, node in (("a", "n"), ("b", "n"), ("c", "m")):
        run.join(name, node=node)
    examined = Examined(run)
    for name, rank in (("a", 0), ("b", 1), ("c", 2)):
        examined.answers(name, evidence(rank, LOADING if name == "a" else WAITING, problems=(name,)))
    (summary,) = examined.found
    assert summary.sentence == "ranks 1 and 2 in all_reduce at train.py:88; rank 0 in load at data.py:31"
    assert summary.culprits == (Culprit(0, "n"),)
    assert set(summary.problems) == {"a", "b", "c"}


def test_an_answer_to_another_question_says_nothing():
    examined = three()
    for name in "abc":
        examined.answers(name, LogTail(path="", text="", offset=0))
    assert [summary.sentence for summary in examined.found] == ["no stacks could be had"]


def test_agents_that_know_no_such_question_are_not_asked():
    run = running("1", "a")
    agent = run.run.agents["a"]
    agent.join = replace(agent.join, queries=("tail_log",))
    examined = Examined(run)
    assert examined.run.run.queries.by_agent == {}
    assert [summary.sentence for summary in examined.found] == ["no agent of this run can be asked for stacks"]


def test_what_agents_that_cannot_be_asked_leave_unknown_is_said():
    run = running("3", "a", "b", "c")
    for name in "ab":
        agent = run.run.agents[name]
        agent.join = replace(agent.join, queries=("tail_log",))
    examined = Examined(run)
    examined.answers("c", evidence(2, LOADING))
    (summary,) = examined.found
    assert summary.sentence == (
        "rank 2 in load at data.py:31; nothing of ranks 0 and 1 (node a and 1 more node); "
        "which rank the others wait for cannot be told"
    )


def test_a_run_that_ends_ends_it():
    examined = three()
    examined.run.handle(RunStopped("enough", "me", "1"))
    assert [summary.sentence for summary in examined.found] == ["no stacks could be had"]


# Operators' questions.


def asks(run: Scenario, rank: int | None = None, token: str = "t") -> None:
    run.handle(StacksAsked(token=token, rank=rank, reason="slow since noon", by="admin 10.0.0.7", within_s=WITHIN_S))


def asked(run: Scenario) -> list[tuple[str, Examine]]:
    return [(name, each) for name in run.run.agents for each in run.run.queries.of(name, run.now)]


def answers(run: Scenario, *given: Evidence) -> list[QueryClosed]:
    for (name, query), answer in zip(asked(run), given, strict=True):
        run.handle(QueryAnswered(name, query.number, answer))
    return [effect for effect in run.effects if isinstance(effect, QueryClosed)]


def test_an_operator_is_told_what_all_do_and_the_runs_people_who_asked():
    run = running("2", "a", "b")
    asks(run)
    (event,) = [event for event in run.events if event.kind == "stacks_asked"]
    assert (event.reason, event.by) == ("an operator looks at what the workers do: slow since noon", "admin 10.0.0.7")
    assert [(name, query.reason) for name, query in asked(run)] == [
        (name, "admin 10.0.0.7 asks: slow since noon") for name in "ab"
    ]
    (closed,) = answers(run, evidence(0, folder="/logs/evidence_1"), evidence(1, LOADING))
    assert closed.token == "t" and isinstance(closed.answer, StackSummary)
    assert closed.answer.sentence.startswith("rank 0 in all_reduce at train.py:88; rank 1 in load at data.py:31")
    assert closed.answer.stack == ('  File "/home/a/data.py", line 31, in load',)
    run.restarts()
    assert [event.kind for event in run.events].count("stacks_asked") == 1 and asked(run) == []


def test_of_a_run_that_goes_on_is_told_what_its_workers_do_and_of_one_that_hangs_whom_they_wait_for():
    def sentence(run: Scenario) -> str:
        asks(run)
        answer = answers(run, evidence(0), evidence(1))[-1].answer
        assert isinstance(answer, StackSummary)
        return answer.sentence

    nobody_knows, goes_on, stalls, hangs = (running("2", "a", "b") for _ in range(4))
    for run, age_s in ((goes_on, 0.4), (stalls, 30.0)):
        for name in "ab":
            run.tells(name, lowest_step=7, highest_step=7, step_s=0.5, age_s=age_s)
    hangs.suspects("a", 0, source="silence")
    for run in (nobody_knows, goes_on, stalls):
        assert sentence(run) == "all 2 ranks in all_reduce at train.py:88"
    cannot_be_told = "all 2 ranks in all_reduce at train.py:88; which rank the others wait for cannot be told"
    assert sentence(hangs) == cannot_be_told

    asks(goes_on := running("2", "a", "b"))
    assert answers(goes_on, evidence(0), evidence(1, LOADING))[-1].answer.culprits == (Culprit(1, "b"),)
    goes_on = running("2", "a", "b")
    for name in "ab":
        goes_on.tells(name, lowest_step=7, highest_step=7, step_s=0.5, age_s=0.1)
    asks(goes_on)
    assert answers(goes_on, evidence(0), evidence(1, LOADING))[-1].answer.culprits == (), (
        "it loads, and nobody is stuck"
    )


def test_one_rank_is_looked_at_alone_and_its_stack_is_told():
    run = running("2", "a", "b")
    asks(run, rank=1)
    ((name, _),) = asked(run)
    (closed,) = answers(run, evidence(1, LOADING))
    assert name == "b" and isinstance(closed.answer, StackSummary)
    assert closed.answer.sentence == "rank 1 in load at data.py:31"
    assert closed.answer.stack == ('  File "/home/a/data.py", line 31, in load',)


def test_what_a_silent_node_leaves_unknown_is_said_when_the_time_is_over():
    run = running("2", "a", "b")
    asks(run)
    run.passes(WITHIN_S)
    (closed,) = [effect for effect in run.effects if isinstance(effect, QueryClosed)]
    assert isinstance(closed.answer, StackSummary) and "nothing of all 2 ranks (node a" in closed.answer.sentence


def test_operators_have_the_workers_looked_at_once_in_a_while_and_a_hang_does_not_wait_for_that():
    run = running("1", "a", max_restarts=1)
    asks(run)
    with pytest.raises(TooManyRequests, match="run run were looked at just now: again in 10 s"):
        asks(run, token="again")
    run.suspects("a", 0)
    assert len(asked(run)) == 2
    run.suspects("a")
    assert [query.reason for _, query in asked(run)] == ["admin 10.0.0.7 asks: slow since noon"], "that goes on"
    run.passes(OPERATORS_PAUSE_S)
    asks(run, token="again")


@pytest.mark.parametrize(
    ("before", "rank", "refusal", "why"),
    [
        (lambda run: None, 2, UnknownRank, "run run has no rank 2: those of round 1 are 0 to 1"),
        (lambda run: run.fails("a"), None, QueryRefused, "run run has no workers at present: a round forms"),
        (lambda run: run.handle(RunStopped("enough", "me", "1")), None, RunEnded, "run run is over, it has failed"),
    ],
)
def test_nobody_is_asked_where_there_is_nothing_to_look_at(before, rank: int, refusal: type[ProtocolError], why: str):
    run = running("2", "a", "b", max_restarts=1)
    before(run)
    events = len(run.events)
    with pytest.raises(refusal, match=why):
        asks(run, rank)
    assert asked(run) == [] and len(run.events) == events
