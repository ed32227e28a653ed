"""Operators' actions on a run, as stories."""

from typing import Any

import pytest
from rdzv_protocol.errors import MalformedMessage, NobodyWaits, RunEnded, SettingsConflict
from rdzv_protocol.messages import Drain, Finish, Start, Stop, Wait

from rdzv_server.core.effects import Happened
from rdzv_server.core.events import (
    ArrivalsAdmitted,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    RunResized,
    RunRestarted,
    RunStopped,
)
from rdzv_server.core.run import REQUESTS, AgentState, Stage
from tests.support.scenario import Scenario, durable, replayed, running, settings_of

ME = {"by": "admin 10.0.0.7"}


def drain(run: Scenario, node: str, deadline_s: float = 60.0, **more: Any) -> None:
    run.handle(NodeDrained(node_id=node, deadline_s=deadline_s, **(ME | more)))


def cordon(run: Scenario, node: str, for_s: float | None = None, **more: Any) -> None:
    run.handle(NodeCordoned(node_id=node, for_s=for_s, **(ME | more)))


def resize(run: Scenario, low: int, high: int, **more: Any) -> None:
    run.handle(RunResized(min_nodes=low, max_nodes=high, **(ME | more)))


def ranks(run: Scenario) -> list[str]:
    return run.participants()


def happened(run: Scenario) -> list[tuple[str, str, str | None]]:
    """Kind, who and request of the actions among the last events."""
    events = [effect.event for effect in run.effects if isinstance(effect, Happened)]
    return [(event.kind, event.by, event.request_id) for event in events if event.by]


def as_it_was(run: Scenario) -> None:
    """A server that is started again has all of it from the records."""
    assert durable(replayed(run.created, run.records)) == durable(run.run)


# Drain.


def test_a_drained_nodes_place_is_taken_by_a_standby_while_its_workers_write_a_checkpoint() -> None:
    run = running("2", "a", "b")
    run.join("c")
    drain(run, "b", 60.0, reason="its fan", request_id="1")
    assert happened(run) == [("node_drained", "admin 10.0.0.7", "1")]
    directive = run.directive("b")
    assert directive == Drain(reason="node b is drained by an operator: its fan", remaining_s=60.0)
    assert isinstance(run.directive("a"), Stop) and set(run.woken()) >= {"a", "b"}
    run.join("a")
    assert ranks(run) == ["a", "c"], "at once, while b still stops its workers"
    assert run.ledger() == [("node_drained", False)]
    run.passes(15.0)
    assert run.directive("b") == Drain(reason="node b is drained by an operator: its fan", remaining_s=45.0)
    as_it_was(run)
    run.leaves("b", "drained")
    assert ranks(run) == ["a", "c"] and run.stage is Stage.RUNNING
    as_it_was(run)


def test_the_others_go_on_alone_if_nobody_stands_by() -> None:
    run = running("1:2", "a", "b")
    drain(run, "b")
    run.join("a")
    assert ranks(run) == ["a"] and run.told(Drain) == {"b"}


def test_below_its_minimum_the_run_waits_and_says_for_whom() -> None:
    run = running("2", "a", "b")
    drain(run, "b")
    run.join("a")
    assert "waiting for 1 more node: 1 of 2 joined (a)" in run.reason("a")
    run.leaves("b", "drained")
    run.join("b-2", node="b")
    assert "cordoned: b" in run.reason("a") and "standing by: node b is cordoned" in run.reason("b-2")
    run.handle(NodeUncordoned(node_id="b", **ME))
    assert ranks(run) == ["a", "b-2"]


@pytest.mark.parametrize("state", [AgentState.WAITING, AgentState.CORDONED, AgentState.STOPPING, AgentState.SUCCEEDED])
def test_an_agent_without_running_workers_is_drained_and_restarts_nobody(state: AgentState) -> None:
    run = running("2", "a", "b")
    if state is AgentState.WAITING:
        run.join("d", node="d")
    elif state is AgentState.CORDONED:
        cordon(run, "d")
        run.join("d")
    elif state is AgentState.STOPPING:
        run = running("1:3", "a", "b", "d")
        run.leaves("a")
    else:
        run = running("1:2", "a", "d")
        run.succeeds("d")
    assert run.run.agents["d"].state is state
    round_ = run.run.round
    drain(run, "d")
    assert run.told(Drain) == {"d"} and run.run.round == round_
    run.leaves("d", "drained")
    assert "d" not in run.run.agents and run.run.round == round_
    as_it_was(run)


def test_a_node_with_two_agents_is_drained_of_both_in_one_restart() -> None:
    run = Scenario("1:3")
    run.join("a")
    run.join("b1", "b2", node="b")
    drain(run, "b")
    run.join("a")
    assert run.told(Drain) == {"b1", "b2"} and ranks(run) == ["a"] and run.run.round == 2


def test_an_agent_that_does_not_know_how_to_drain_is_fenced_and_stands_by_when_it_is_back() -> None:
    run = running("1:2", "a")
    run.join("b", drains=False)
    run.join("a")
    assert ranks(run) == ["a", "b"]
    drain(run, "b")
    assert "b" not in run.run.agents and "b" in run.woken()
    run.join("b.2", node="b", returning=True, drains=False)
    run.join("a")
    assert ranks(run) == ["a"] and isinstance(run.directive("b.2"), Wait)
    as_it_was(run)


def test_a_second_drain_with_less_time_is_told_and_one_with_more_is_not() -> None:
    run = running("1:2", "a", "b")
    drain(run, "b", 60.0)
    drain(run, "b", 90.0)
    assert run.woken() == [] and run.directive("b").remaining_s == 60.0
    drain(run, "b", 5.0)
    assert run.woken() == ["b"] and run.directive("b").remaining_s == 5.0


def test_what_a_drained_nodes_workers_report_is_no_failure_of_the_run() -> None:
    run = running("1:2", "a", "b", max_restarts=0)
    drain(run, "b")
    run.fails("b", exit_code=-15)
    assert run.stage is Stage.FORMING and run.run.failures == []
    run.succeeds("b")
    run.join("a")
    assert ranks(run) == ["a"] and run.ledger() == [("node_drained", False)]


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ({"verdict": "fatal", "rule": "bad record"}, "--fatal-rule 'bad record' fits"),
        ({"exit_code": 42}, "exit code 42 is fatal for this run"),
    ],
)
def test_a_fatal_failure_of_before_the_drain_ends_the_run_also_in_its_next_round(failure, why) -> None:
    run = running("1:2", "a", "b", max_restarts=9, fatal_exit_codes=(42,))
    drain(run, "b")
    run.join("a")
    assert run.run.round == 2
    run.fails("b", verdict="retry", rule="store")
    assert run.stage is Stage.RUNNING
    run.fails("b", **failure)
    assert run.stage is Stage.FAILED and why in run.run.end_reason


def test_a_drained_node_that_dies_disturbs_nobody() -> None:
    run = running("1:2", "a", "b")
    drain(run, "b")
    run.join("a")
    run.is_lost("b")
    assert ranks(run) == ["a"] and run.run.round == 2


def test_a_drained_agent_hears_of_the_runs_end() -> None:
    run = running("1:2", "a", "b")
    drain(run, "b")
    run.join("a")
    run.succeeds("a")
    assert run.told(Finish) == {"a", "b"}


# Cordon.


def test_a_cordoned_participant_goes_on_and_gets_no_seat_in_the_next_round() -> None:
    run = running("1:3", "a", "b")
    cordon(run, "b", reason="burn-in", request_id="1")
    assert ranks(run) == ["a", "b"] and happened(run) == [("node_cordoned", "admin 10.0.0.7", "1")]
    run.join("c")
    run.join("a", "b")
    assert ranks(run) == ["a", "c"] and run.reason("b") == "standing by: node b is cordoned: burn-in"
    as_it_was(run)


def test_it_is_told_for_how_long_and_takes_part_again_when_it_is_uncordoned() -> None:
    run = running("1:2", "a")
    cordon(run, "b", 30.0)
    run.join("b")
    run.passes(10.0)
    assert run.reason("b") == "standing by: node b is cordoned; uncordoned in 20 s"
    run.handle(NodeUncordoned(node_id="b", **ME))
    assert isinstance(run.directive("a"), Stop), "its arrival fills the run: at once"
    run.join("a")
    assert ranks(run) == ["a", "b"]
    as_it_was(run)


def test_a_node_that_waits_loses_its_seat_in_the_round_that_forms() -> None:
    run = Scenario("2:3")
    run.join("a", "b")
    cordon(run, "b")
    assert "waiting for 1 more node: 1 of 2 joined (a); cordoned: b" in run.reason("a")
    run.join("c")
    run.ends_last_call()
    assert ranks(run) == ["a", "c"]


def test_nobody_waits_for_a_cordoned_node_of_which_nothing_is_heard() -> None:
    run = running("1:2", "a", "b")
    cordon(run, "b")
    run.leaves("a")
    run.join("b")
    run.join("c")
    run.disconnects("b")
    assert ranks(run) == ["c"]


# Restart and resize.


def test_a_restart_costs_nothing_and_has_a_cause_of_its_own() -> None:
    run = running("2", "a", "b", max_restarts=0)
    run.handle(RunRestarted("new data", "admin 10.0.0.7", "1"))
    assert isinstance(run.directive("a"), Stop) and run.reason("a") == "restarted by an operator: new data"
    run.join("b", "a")
    assert ranks(run) == ["a", "b"] and run.ledger() == [("run_restarted", False)] and run.run.restart_count == 0
    as_it_was(run)


def test_a_restart_of_what_restarts_already_changes_nothing() -> None:
    run = running("2", "a", "b")
    run.handle(RunRestarted(by="me", request_id="1"))
    run.handle(RunRestarted(by="me", request_id="2"))
    assert run.run.round == 2
    run.join("a", "b")
    run.handle(RunRestarted(by="me", request_id="2"))
    assert run.stage is Stage.RUNNING, "asked for before, done before"


def test_shrunk_below_its_size_a_run_goes_on_with_fewer_and_the_first_ranks_stay() -> None:
    run = running("1:4", "a", "b", "c", "d")
    resize(run, 1, 2, reason="others need them")
    run.join("d", "c", "b", "a")
    assert ranks(run) == ["a", "b"] and run.told(Wait) == {"c", "d"}
    assert run.ledger() == [("run_resized", False)]
    resize(run, 1, 3)
    assert isinstance(run.directive("a"), Stop), "a seat is free, and more wait than it takes"
    run.join("a", "b")
    assert ranks(run) == ["a", "b", "d"]
    as_it_was(run)


def test_a_size_that_the_run_has_room_for_disturbs_nobody() -> None:
    run = running("2:4", "a", "b", "c")
    for low, high in ((1, 3), (3, 3), (2, 8), (4, 8)):
        resize(run, low, high)
        assert ranks(run) == ["a", "b", "c"] and run.run.round == 1


def test_a_smaller_minimum_lets_a_waiting_run_begin() -> None:
    run = Scenario("3:4")
    run.join("a", "b")
    resize(run, 2, 2)
    assert ranks(run) == ["a", "b"]


def test_who_has_finished_is_not_restarted_by_a_smaller_size() -> None:
    run = running("1:3", "a", "b", "c")
    run.succeeds("a")
    resize(run, 1, 1)
    assert run.stage is Stage.RUNNING
    run.succeeds("b", "c")
    assert run.stage is Stage.SUCCEEDED


def test_agents_that_ask_for_the_old_size_are_let_in_and_told() -> None:
    run = Scenario("2")
    run.join("a", "b", settings=settings_of("2"))
    resize(run, 2, 3)
    run.join("c", settings=settings_of("2"))
    run.join("a", "b", settings=settings_of("2"))
    assert ranks(run) == ["a", "b", "c"]
    with pytest.raises(SettingsConflict, match="max_restarts"):
        run.join("d", settings=settings_of("2", max_restarts=7))


def test_a_failure_is_still_charged_after_an_operators_actions() -> None:
    run = running("1:3", "a", "b", max_restarts=1)
    run.handle(RunRestarted(by="me"))
    run.join("a", "b")
    run.fails("a")
    run.join("a", "b")
    assert run.ledger() == [("run_restarted", False), ("worker_failure", True)]
    run.fails("b")
    assert run.stage is Stage.FAILED


# Repeated, late and wrong.


ACTIONS = {
    "stop": RunStopped("x", "me", "1"),
    "restart": RunRestarted("x", "me", "1"),
    "resize": RunResized("x", "me", "1", min_nodes=1, max_nodes=2),
    "cordon": NodeCordoned("x", "me", "1", node_id="b"),
    "uncordon": NodeUncordoned("x", "me", "1", node_id="b"),
    "drain": NodeDrained("x", "me", "1", node_id="b", deadline_s=9.0),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_the_same_request_again_changes_nothing_also_after_a_restart_of_the_server(action: Any) -> None:
    run = running("1:3", "a", "b", "c")
    run.handle(action)
    answer = run.run.answers["1"]
    for again in (run.handle, lambda event: (run.restarts(), run.handle(event))):
        before = len(run.records)
        again(action)
        assert len(run.records) == before and run.run.answers["1"] == answer


def test_an_operator_who_admits_stands_in_the_event() -> None:
    run = running("1:2", "a", scale_up="manual")
    run.join("b")
    run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "1"))
    assert happened(run) == [("nodes_admitted", "admin 10.0.0.7", "1")]
    run.join("a")
    run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "1"))
    assert ranks(run) == ["a", "b"], "the same request is no refusal, though nobody waits any more"
    with pytest.raises(NobodyWaits):
        run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "2"))


@pytest.mark.parametrize("action", [RunRestarted(), RunResized(min_nodes=1, max_nodes=1)])
def test_a_run_that_is_over_is_neither_restarted_nor_resized(action: Any) -> None:
    run = running("1", "a")
    run.succeeds("a")
    with pytest.raises(RunEnded, match="run run is over, it has succeeded: all workers of 1 node exited 0"):
        run.handle(action)


def test_so_many_requests_are_remembered_and_no_more() -> None:
    run = running("1:2", "a")
    for number in range(3 * REQUESTS):
        resize(run, 1, 2, request_id=str(number))
    assert list(run.run.answers) == [str(number) for number in range(2 * REQUESTS, 3 * REQUESTS)]
    assert isinstance(run.directive("a"), Start)


def test_limits_without_a_legal_size_are_refused():
    run = running("4:8", "a", "b", "c", "d", node_unit=4)
    with pytest.raises(MalformedMessage, match=r"^no legal size \(a multiple of 4\) is from 5 to 7 nodes: "):
        run.handle(RunResized(min_nodes=5, max_nodes=7))
    assert run.stage is Stage.RUNNING
