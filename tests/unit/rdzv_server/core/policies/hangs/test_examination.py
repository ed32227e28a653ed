"""All participants are asked what their workers do. Their answers become one summary."""

import pytest
from rdzv_protocol.errors import ProtocolError, QueryRefused, RunEnded, TooManyRequests, UnknownRank
from rdzv_protocol.evidence import Evidence, LastError, ProcessState, StackGroup, frame
from rdzv_protocol.queries import LogTail, QueryAnswer, Refused

from rdzv_server.core.effects import CloseQuery
from rdzv_server.core.events import QueryAnswered, RunStopped
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.examination import OPERATORS_PAUSE_S, StacksAsked
from rdzv_server.core.policies.hangs.hang_policy import SETTLE_S
from rdzv_server.core.policies.hangs.stack_summary import Culprit, StackSummary
from tests.support.message_search import pattern
from tests.support.scenario import HUNG, Scenario, running

WITHIN_S = 5.0
BY = "admin 10.0.0.7"
ALIVE = ProcessState.ALIVE
WAITING = (
    frame("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1),
    frame("step", "/home/a/train.py", 88),
)
LOADING = (frame("load", "/home/a/data.py", 31),)


def wait(*ranks: int, of: int = 3) -> str:
    """Return the part of a summary about ranks that wait for others."""
    return words.ranks_at(ranks, of, words.place("all_reduce", "train.py", 88), ALIVE)


def load(rank: int) -> str:
    return words.ranks_at([rank], 3, words.place("load", "data.py", 31), ALIVE)


def parts(*of_summary: str) -> str:
    return "; ".join(of_summary)


def evidence(rank: int, frames: tuple = WAITING, **more: object) -> Evidence:
    return Evidence(groups=(StackGroup(ranks=(rank,), frames=frames),), **more)


def asks(run: Scenario, rank: int | None = None, token: str = "t") -> None:
    run.handle(StacksAsked(token=token, rank=rank, reason="slow since noon", by=BY, within_s=WITHIN_S))


def answers(run: Scenario, **given: QueryAnswer) -> None:
    for name, answer in given.items():
        run.handle(QueryAnswered(name, run.examined()[name].number, answer))


def found(run: Scenario) -> StackSummary:
    """Return the summary with which the latest event has ended the examination."""
    (closed,) = [effect for effect in run.effects if isinstance(effect, CloseQuery)]
    assert isinstance(closed.answer, StackSummary) and closed.token == "t"
    return closed.answer


def three() -> Scenario:
    """Return a run of three nodes that are asked what their workers do."""
    run = running("3", "a", "b", "c", max_restarts=1)
    asks(run)
    return run


def test_the_last_answer_ends_an_examination() -> None:
    run = three()
    answers(run, a=evidence(0), b=evidence(1, LOADING, folder="/logs/evidence_1", problems=("no py-spy",)))
    assert not [effect for effect in run.effects if isinstance(effect, CloseQuery)]
    answers(run, c=evidence(2))
    summary = found(run)
    assert summary.sentence == parts(wait(0, 2), load(1))
    assert summary.culprits == (Culprit(1, "b"),)
    assert (summary.folder, summary.folder_node, summary.problems) == ("/logs/evidence_1", "b", ("no py-spy",))


def test_a_silent_node_is_part_of_the_finding() -> None:
    run = three()
    answers(run, a=evidence(0), b=evidence(1))
    run.passes(WITHIN_S)
    assert found(run).sentence == parts(wait(0, 1), words.no_answer_from([2], 3, "c"))
    assert found(run).culprits == (Culprit(2, "c"),)


def test_a_node_that_has_not_started_its_workers_is_part_of_the_finding() -> None:
    run = three()
    answers(run, a=evidence(0), b=evidence(1), c=Refused(reason="no workers yet"))
    assert found(run).sentence == parts(wait(0, 1), words.no_answer_from([2], 3, "c"))
    assert (found(run).culprits, found(run).problems) == ((Culprit(2, "c"),), ("no workers yet",))


def test_a_node_that_leaves_meanwhile_is_waited_for_no_longer_and_not_to_blame() -> None:
    run = three()
    answers(run, a=evidence(0), b=evidence(1))
    run.leaves("c")
    assert found(run).culprits == ()


def test_a_node_reports_only_its_own_ranks() -> None:
    run = three()
    answers(run, a=evidence(2, LOADING), b=evidence(1), c=evidence(2))
    assert found(run).sentence.startswith(wait(1, 2, of=2))
    assert found(run).problems == (words.FOREIGN_RANKS,)


def test_two_agents_of_one_node_each_report_their_own_ranks() -> None:
    run = Scenario("3")
    for name, node in (("a", "n"), ("b", "n"), ("c", "m")):
        run.join(name, node=node)
    asks(run)
    answers(run, a=evidence(0, LOADING, problems=("a",)), b=evidence(1, problems=("b",)), c=evidence(2))
    assert found(run).sentence == parts(wait(1, 2), load(0))
    assert found(run).culprits == (Culprit(0, "n"),)
    assert set(found(run).problems) == {"a", "b"}


def test_an_answer_to_another_question_says_nothing() -> None:
    run = three()
    answers(run, **dict.fromkeys("abc", LogTail(path="", text="", offset=0)))
    assert found(run).sentence == words.NO_EVIDENCE


def test_a_run_that_ends_ends_it() -> None:
    run = three()
    run.is_stopped()
    assert found(run).sentence == words.NO_EVIDENCE


def test_a_hang_is_judged_by_the_suspicions_if_agents_cannot_answer() -> None:
    run = Scenario("1", max_restarts=1)
    run.join("a", queries=("tail_log",))
    run.suspects("a", 0)
    assert not run.examined()
    run.judges()
    failure = run.run.failures[-1].failure
    assert failure.cause == words.hang(HUNG)


def test_the_summary_says_what_is_unknown_from_agents_that_cannot_be_asked() -> None:
    run = Scenario("3", max_restarts=1)
    run.join("a", "b", queries=("tail_log",))
    run.join("c")
    run.suspects("a", 0)
    answers(run, c=evidence(2, LOADING))
    run.passes(SETTLE_S)
    summary = parts(load(2), words.no_answer_from([0, 1], 3, "a", 1), words.CULPRIT_UNKNOWN)
    assert run.run.failures[-1].failure.cause == words.hang(HUNG, summary)


def test_an_examination_shows_the_operator_all_ranks_and_names_the_operator_in_the_run():
    run = running("2", "a", "b")
    asks(run)
    (event,) = [event for event in run.events if event.kind == "stacks_asked"]
    assert (event.reason, event.by) == (words.operator_examines(None, "slow since noon"), BY)
    why = words.operator_asks(BY, "slow since noon")
    assert {name: query.reason for name, query in run.examined().items()} == dict.fromkeys("ab", why)
    answers(run, a=evidence(0, folder="/logs/evidence_1"), b=evidence(1, LOADING))
    assert found(run).sentence.startswith(parts(wait(0), load(1)))
    assert found(run).stack == ('  File "/home/a/data.py", line 31, in load',)
    run.restarts()
    assert len(run.reasons("stacks_asked")) == 1 and not run.examined()


@pytest.mark.parametrize("age_s", [None, 0.4, 30.0], ids=["unknown", "it continues", "it stalls"])
def test_the_summary_of_a_run_that_does_not_hang_says_what_its_workers_do(age_s: float | None) -> None:
    run = running("2", "a", "b")
    for name in "ab" if age_s else ():
        run.tells(name, lowest_step=7, highest_step=7, step_s=0.5, age_s=age_s)
    asks(run)
    answers(run, a=evidence(0), b=evidence(1))
    assert found(run).sentence == wait(0, 1, of=2)
    run.passes(OPERATORS_PAUSE_S)
    for name in "ab" if age_s else ():
        run.tells(name, lowest_step=9, highest_step=9, step_s=0.5, age_s=age_s)
    asks(run)
    answers(run, a=evidence(0), b=evidence(1, LOADING))
    is_nobody_stuck = age_s == 0.4
    assert found(run).culprits == (() if is_nobody_stuck else (Culprit(1, "b"),))


def test_the_summary_of_a_run_that_hangs_names_the_rank_that_the_others_wait_for() -> None:
    run = running("2", "a", "b")
    run.suspects("a", 0, source="silence")
    asks(run)
    answers(run, a=evidence(0), b=evidence(1))
    assert found(run).sentence.endswith(f"; {words.CULPRIT_UNKNOWN}")


def test_a_single_rank_can_be_examined_with_its_stack() -> None:
    run = running("2", "a", "b")
    asks(run, rank=1)
    assert run.examined().keys() == {"b"}
    answers(run, b=evidence(1, LOADING))
    assert found(run).sentence == load(1)
    assert found(run).stack == ('  File "/home/a/data.py", line 31, in load',)


def test_one_worker_of_a_node_can_be_reported_separately() -> None:
    run = Scenario("1")
    run.join("a", local_world_size=2)
    asks(run, rank=1)
    both = (StackGroup(ranks=(0,), frames=WAITING), StackGroup(ranks=(1,), frames=LOADING))
    errors = (LastError(rank=0, error="ValueError: of rank 0", is_uncaught=True),)
    answers(run, a=Evidence(groups=both, folder="/logs/evidence_1", errors=errors))
    assert found(run).sentence == load(1)
    assert (found(run).problems, found(run).error, found(run).folder) == ((), "", "/logs/evidence_1")


def test_one_of_many_workers_at_the_same_place_can_be_reported_separately() -> None:
    run = Scenario("1")
    run.join("a", local_world_size=2)
    asks(run, rank=1)
    answers(run, a=Evidence(groups=(StackGroup(ranks=(0, 1), frames=WAITING),)))
    assert found(run).sentence == wait(1)


def test_only_the_requested_rank_of_a_silent_node_is_missing() -> None:
    run = Scenario("1")
    run.join("a", local_world_size=2)
    asks(run, rank=1)
    run.passes(WITHIN_S)
    assert found(run).sentence.endswith(words.no_answer_from([1], 1, "a")) and not found(run).has_stacks


def test_examinations_for_operators_are_limited_and_do_not_delay_that_of_a_hang():
    run = running("1", "a", max_restarts=1)
    asks(run)
    with pytest.raises(TooManyRequests, match=pattern(words.examined_just_now, run_id="run", again_in_s=10.0)):
        asks(run, token="again")
    run.suspects("a", 0)
    assert len(run.run.queries.of("a", run.now)) == 2
    run.suspects("a")
    assert run.examined()["a"].reason == words.operator_asks(BY, "slow since noon"), "that continues"
    run.passes(OPERATORS_PAUSE_S)
    asks(run, token="again")


@pytest.mark.parametrize(
    ("before", "rank", "refusal", "why"),
    [
        (lambda run: None, 2, UnknownRank, "run run has no rank 2: round 1 has ranks 0 to 1"),
        (lambda run: run.fails("a"), None, QueryRefused, words.no_workers("run")),
        (lambda run: run.handle(RunStopped("enough", "me", "1")), None, RunEnded, words.run_is_over("run", "failed")),
    ],
)
def test_no_agent_is_asked_if_there_are_no_workers_to_examine(
    before, rank: int, refusal: type[ProtocolError], why: str
):
    run = running("2", "a", "b", max_restarts=1)
    before(run)
    events = len(run.events)
    with pytest.raises(refusal, match=why):
        asks(run, rank)
    assert not run.examined() and len(run.events) == events
