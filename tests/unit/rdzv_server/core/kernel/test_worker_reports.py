"""Reports of failures: an agent reports only its own workers, and claims about its node are marked as such."""

import pytest
from rdzv_protocol.errors import MalformedMessage
from rdzv_protocol.messages import ReportedError
from rdzv_protocol.words import run as told

from rdzv_server.core.events import NodeJoined, NodeLeft, WorkersFailed, WorkersSucceeded
from rdzv_server.core.kernel.worker_reports import MOST_DOUBTS
from rdzv_server.words import completion, operations, runs
from rdzv_server.words import failures as words
from tests.support.message_search import pattern
from tests.support.scenario import SERVER_ADDR, Scenario, a_failure, a_join, running, snapshot


@pytest.mark.parametrize(
    ("node", "rank", "why"),
    [
        ("a", 2, words.other_node("b", "a")),
        ("b", 1, words.foreign_rank(1, "b", 2, 3)),
        ("b", 4, words.foreign_rank(4, "b", 2, 3)),
    ],
)
def test_an_agent_reports_failures_of_its_own_workers_only(node: str, rank: int, why: str) -> None:
    run = Scenario("2", max_restarts=3)
    run.join("a", "b", local_world_size=2)
    before = snapshot(run.run)
    with pytest.raises(MalformedMessage, match=pattern(why)):
        run.handle(WorkersFailed("b", 1, a_failure(node, rank=rank)))
    assert snapshot(run.run) == before
    run.handle(WorkersFailed("b", 1, a_failure("b", rank=3)))
    assert run.run.failures_by_node == {"b": 1}


def test_a_node_of_stock_torchrun_reports_ranks_that_only_torchrun_knows() -> None:
    run = running("2", "a", "b", max_restarts=3)
    run.handle(WorkersFailed("b", 1, a_failure("b", rank=13)))
    assert run.run.failures[0].failure.rank == 13


def error(rank: int, text: str = "ValueError: boom") -> ReportedError:
    return ReportedError(rank=rank, error=text)


def test_a_run_whose_workers_report_errors_and_exit_0_succeeds_with_a_warning() -> None:
    run = Scenario("2")
    run.join("a", "b", local_world_size=2)
    run.handle(WorkersSucceeded("b", 1, (error(2), error(3, "KeyError: 7"))))
    run.succeeds("a")
    found = [(event.node_id, event.reason) for event in run.events if event.kind == "warning"]
    assert found == [
        ("b", told.exited_0_with_error(2, "ValueError: boom")),
        ("b", told.exited_0_with_error(3, "KeyError: 7")),
    ]
    assert run.run.end_reason == runs.succeeded(2, told.reported_error(2, "ValueError: boom"), 1)
    assert run.run.end_reason != runs.succeeded(2)


def test_errors_of_workers_that_a_restart_has_replaced_are_no_doubt() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.handle(WorkersSucceeded("a", 1, (error(0),)))
    run.fails("b")
    run.join("a", "b")
    run.succeeds("a", "b")
    assert run.run.end_reason == runs.succeeded(2)


def test_many_nodes_with_such_errors_cost_few_events() -> None:
    names = [f"n{number}" for number in range(MOST_DOUBTS + 3)]
    run = running(str(len(names)), *names)
    for rank, name in enumerate(names):
        run.handle(WorkersSucceeded(name, 1, (error(rank, "x\n\x1b" + "y" * 5_000),)))
    warnings = [event.reason for event in run.events if event.kind == "warning"]
    assert len(warnings) == MOST_DOUBTS
    assert all(len(text) < 1_000 and text.isprintable() for text in [*warnings, run.run.end_reason])
    assert run.run.doubts == len(names)


def test_an_agent_reports_errors_of_its_own_workers_only() -> None:
    run = Scenario("2")
    run.join("a", "b", local_world_size=2)
    before = snapshot(run.run)
    with pytest.raises(MalformedMessage, match=pattern(words.foreign_rank(1, "b", 2, 3))):
        run.handle(WorkersSucceeded("b", 1, (error(2), error(1))))
    assert snapshot(run.run) == before


FORGED = operations.drained("b", "maintenance")


@pytest.mark.parametrize("is_join", [True, False], ids=["before it joins", "when it leaves"])
def test_evidence_against_a_node_is_a_sentence_about_this_node(is_join: bool) -> None:
    run: Scenario = running("1:2", "a", "b", max_restarts=3)
    if is_join:
        run.handle(NodeJoined(a_join("c", unfit=f"{FORGED}\n"), SERVER_ADDR))
    else:
        run.handle(NodeLeft("a", f"{FORGED}\n", unfit=True))
    node = "c" if is_join else "a"
    said = completion.unfit(node, f"{FORGED} ")
    assert run.run.unfit == {node: said}
    assert [event.reason for event in run.events if event.kind == "node_unfit"] == [said] * is_join
