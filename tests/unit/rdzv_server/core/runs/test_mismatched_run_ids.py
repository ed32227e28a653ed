"""Runs whose nodes gave different run ids although they may be one."""

from typing import Any

import pytest

from rdzv_server.core.runs.mismatched_run_ids import MOST_COMPARED, WAITED_S, warning
from rdzv_server.words import runs as words
from tests.support.scenario import Scenario


def waiting(run_id: str, nodes: str = "2", *names: str, for_s: float = WAITED_S, **changes: Any) -> Scenario:
    run = Scenario(nodes)
    run.run.run_id = run_id
    run.join(*names or ("a",), **({"command": "00000001"} | changes))
    run.passes(for_s)
    return run


def warned(one: Scenario, other: Scenario) -> str:
    return warning(one.run, [other.run, one.run], one.now)


def test_two_runs_that_wait_with_the_same_command_may_be_one():
    one, other = waiting("1"), waiting("2")
    assert (warned(one, other), warned(other, one)) == (words.may_be_one("1", "2"), words.may_be_one("2", "1"))
    assert warning(one.run, [one.run], one.now) == ""
    one.join("b", command="00000001")
    assert warned(one, other) == warned(other, one) == "", "it has begun"


@pytest.mark.parametrize(
    "other",
    [
        waiting("2", command="00000002"), waiting("2", command=""), waiting("2", "3"),
        waiting("2", "1:2"),
    ],
    ids=["another command", "an unknown command", "another size", "it has enough nodes"],
)  # fmt: skip
def test_unrelated_runs_do_not_cause_a_warning(other: Scenario):
    assert warned(waiting("1"), other) == ""


def test_runs_whose_nodes_may_still_come_are_not_compared():
    one, other = waiting("1", for_s=WAITED_S - 0.1), waiting("2")
    assert warned(one, other) == ""


def test_runs_with_too_many_nodes_together_are_two():
    assert warned(waiting("1", "3", "a", "b"), waiting("2", "3", "c", "d")) == ""
    assert warned(waiting("1", "3", "a", "b"), waiting("2", "3", "c")) == words.may_be_one("1", "2")


def test_a_run_is_compared_with_some_of_the_newest_runs_and_only_while_it_lacks_nodes():
    one, others = waiting("1"), [waiting("2", command="00000002").run] * 10_000
    newest = iter([*others[: MOST_COMPARED - 1], waiting("3").run, *others])
    assert warning(one.run, newest, one.now) == words.may_be_one("1", "3")
    newest = iter([*others[:MOST_COMPARED], waiting("3").run])
    assert warning(one.run, newest, one.now) == "" and next(newest).run_id == "3"
    one.join("b", command="00000001")
    newest = iter(others)
    assert warning(one.run, newest, one.now) == "" and len(list(newest)) == 10_000


def test_an_agent_with_a_token_for_some_runs_does_not_learn_of_other_runs():
    one, other = waiting("1"), waiting("2")
    other.run.is_scoped = True
    assert warned(one, other) == warned(other, one) == ""
