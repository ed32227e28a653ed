"""Completion of runs that get no further nodes: they end once too few of theirs can be fit."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import Finish, Start

from rdzv_server.core.events import EXCLUDER, NodeCordoned, NodeJoined, NodeLeft
from rdzv_server.core.run import Stage
from tests.support.scenario import SERVER_ADDR, Scenario, a_join, durable, replayed, running


def fixed(nodes: str, names: str, number: int | None = None) -> Scenario:
    run = Scenario(nodes, fixed_nodes=number or len(names), max_restarts=3, join_timeout_s=600.0)
    run.join(*names)
    run.ends_last_call()
    return run


def leaves_unfit(run: Scenario, name: str) -> None:
    run.handle(NodeLeft(name, f"node {name} is unfit: no GPU 3", unfit=True))


def test_a_run_of_fixed_nodes_ends_when_too_few_of_them_can_be_fit():
    run = fixed("2:3", "abc")
    leaves_unfit(run, "c")
    run.join("a", "b")
    assert run.participants() == ["a", "b"]
    leaves_unfit(run, "b")
    assert run.stage is Stage.FAILED and run.told(Finish) == {"a"}
    why = "too few nodes are fit: 1 of the 3 that the run has, and it needs 2: "
    assert run.run.end_reason == why + "node c is unfit: no GPU 3; node b is unfit: no GPU 3"
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def test_a_node_that_is_lost_or_leaves_may_be_back_and_so_may_one_that_was_repaired():
    run = fixed("2", "ab", number=3)
    leaves_unfit(run, "a")
    run.is_lost("b")
    assert run.stage is Stage.FORMING, "the third node may come, and b may be back"
    run.join("a2", node="a")
    run.join("b2", node="b")
    assert run.told(Start) == {"a2", "b2"}
    run.leaves("b2")
    assert run.stage is Stage.FORMING, "a is fit again"


def test_nodes_beyond_the_given_number_count_while_they_are_there():
    run = fixed("2:2", "abc", number=2)
    leaves_unfit(run, "a")
    assert run.stage is Stage.FORMING
    run.join("b")
    assert run.participants() == ["b", "c"] or set(run.participants()) == {"b", "c"}


@pytest.mark.parametrize(("for_s", "by", "stage"), [
    (86_400.0, EXCLUDER, Stage.FAILED), (60.0, EXCLUDER, Stage.FORMING), (None, "an operator", Stage.FORMING),
])  # fmt: skip
def test_an_exclusion_counts_if_the_run_would_give_up_before_its_end(for_s, by, stage):
    run = fixed("2", "ab")
    run.handle(NodeCordoned("blamed 3 times", by, node_id="b", for_s=for_s))
    assert run.stage is Stage.RUNNING
    run.fails("b")
    run.join("a", "b")
    assert run.stage is stage
    if stage is Stage.FAILED:
        assert run.run.end_reason.endswith(
            "1 of the 2 that the run has, and it needs 2: node b is excluded: blamed 3 times"
        )


def test_without_a_fixed_number_the_run_waits():
    run = running("2", "a", "b")
    leaves_unfit(run, "b")
    assert run.stage is Stage.FORMING


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.sampled_from(["unfit", "lost", "left"]), max_size=8))
def test_it_never_ends_while_enough_of_its_nodes_may_be_fit(low: int, spare: int, ends: list[str]):
    names = "abcdefgh"[: low + spare]
    run = fixed(f"{low}:{low + spare}", names)
    unfit = 0
    for name, end in zip(names, ends, strict=False):
        if run.stage.is_end:
            break
        unfit += end == "unfit"
        {"unfit": leaves_unfit, "lost": Scenario.is_lost, "left": Scenario.leaves}[end](run, name)
        run.join(*list(run.run.stopping))
        assert (run.stage is Stage.FAILED) == (unfit > spare)


def comes_unfit(run: Scenario, name: str) -> None:
    """Let a node join that its own check has found unfit before."""
    with suppress(AgentFenced):
        run.handle(NodeJoined(a_join(name, unfit=f"node {name} is unfit: no GPU 3"), SERVER_ADDR))


def test_a_node_that_is_unfit_before_it_joins_is_out_and_the_run_says_so() -> None:
    run = Scenario("2", fixed_nodes=3)
    comes_unfit(run, "c")
    assert run.run.agents == {} and [event.kind for event in run.events][-1] == "node_unfit"
    assert [(blame.node_id, blame.fault) for blame in run.machine.blamed] == [("c", "unfit")]
    with pytest.raises(AgentFenced):
        run.directive("c")
    run.join("a")
    assert run.directive("a").reason.endswith("; node c is unfit: no GPU 3")
    comes_unfit(run, "b")
    assert run.stage is Stage.FAILED and run.told(Finish) == {"a"}
    assert run.run.end_reason.endswith("and it needs 2: node c is unfit: no GPU 3; node b is unfit: no GPU 3")


def test_a_run_does_not_end_before_all_that_it_has_been_given_can_hear_of_it() -> None:
    run = Scenario("3", fixed_nodes=3)
    comes_unfit(run, "c")
    run.join("a")
    assert run.stage is Stage.FORMING
    run.join("b")
    assert run.stage is Stage.FAILED and run.told(Finish) == {"a", "b"}


def test_an_unfit_node_that_comes_back_fit_is_part_of_the_run_and_all_of_it_outlives_the_server() -> None:
    run = Scenario("2", fixed_nodes=2)
    comes_unfit(run, "b")
    run.restarts()
    assert run.run.unfit == {"b": "node b is unfit: no GPU 3"}
    run.join("b2", node="b")
    run.join("a")
    assert run.stage is Stage.RUNNING and run.run.unfit == {}


def test_a_copy_of_an_unfit_join_says_nothing_new() -> None:
    run = Scenario("2")
    comes_unfit(run, "b")
    comes_unfit(run, "b")
    assert [event.kind for event in run.events].count("node_unfit") == 1
