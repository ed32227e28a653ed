"""Operators' actions on a run, as stories."""

from typing import Any

import pytest
from rdzv_protocol import actions
from rdzv_protocol.errors import MalformedMessage, NoStandby, RunEnded, SettingsConflict
from rdzv_protocol.messages import Drain, Start, Stop

from rdzv_server.core.effects import EmitEvent
from rdzv_server.core.events import EXCLUDER, ArrivalsAdmitted, NodeCordoned, NodeDrained, NodeUncordoned, RunStopped
from rdzv_server.core.kernel.operations import RULES, RunResized, RunRestarted
from rdzv_server.core.kernel.run import REQUESTS, AgentState, Stage
from rdzv_server.words import completion, failures, runs, sizes
from rdzv_server.words import operations as words
from tests.support.message_search import has_message, pattern
from tests.support.scenario import Scenario, running, settings_of
from tests.support.stories import check, stories, until


def test_every_action_has_a_rule_whose_fact_has_the_fields_of_its_message() -> None:
    assert RULES.keys() == {action.name for action in actions.ACTIONS}
    for action in actions.ACTIONS:
        assert set(action.fields) <= set(RULES[action.name].fact.__struct_fields__)


def happened(run: Scenario) -> list[tuple[str, str, str | None]]:
    """Return kind, node and request of the actions among the last events."""
    events = [effect.event for effect in run.effects if isinstance(effect, EmitEvent)]
    return [(event.kind, event.by, event.request_id) for event in events if event.by]


@stories({
    # drain
    "without a spare the others continue alone": ("1:2", "join a b; drain b; join a", {"ranks": "a", "drain": "b"}),
    "below its minimum the run waits and says for whom": (
        "2", "join a b; drain b; join a",
        {"reason a": until(completion.too_few(1, 1, 2, "a"), "gives_up", 600)},
        "leave b; join b-2 node=b",
        {"reason a": until(completion.too_few(1, 1, 2, "a", cordoned="b"), "gives_up", 600),
         "reason b-2": completion.standby_kept_out("b", "", excluded=False)},
        "uncordon b", {"ranks": "a b-2"},
    ),
    "a node with two agents is drained of both in one restart": (
        "1:3", "join a; join b1 b2 node=b; drain b; join a", {"drain": "b1 b2", "ranks": "a", "round": "2"},
    ),
    "an agent that does not know how to drain is fenced, and stands by when it is back": (
        "1:2", "join a; join b drains=False; join a", {"ranks": "a b"}, "drain b", {"agents": "a", "woken": "a b"},
        "join b.2 node=b returning=True drains=False; join a", {"ranks": "a", "wait": "b.2"},
    ),
    "participants learn of a second drain with less time, but not of one with more": (
        "1:2", "join a b; drain b deadline_s=60", {"woken": "a b"}, "drain b deadline_s=90", {"woken": ""},
        "drain b deadline_s=5", {"woken": "b"},
    ),
    "what a drained node's workers report is no failure of the run": (
        "1:2", "join a b; drain b; fail b exit_code=-15", {"stage": "forming", "failed": ""},
        "succeed b; join a", {"ranks": "a", "ledger": "node_drained"},
    ),
    "a drained node that dies disturbs no other": (
        "1:2", "join a b; drain b; join a; lose b", {"ranks": "a", "round": "2"},
    ),
    "a drained agent hears of the run's end": ("1:2", "join a b; drain b; join a; succeed a", {"finish": "a b"}),
    # cordon
    "a cordoned participant continues, and gets no seat in the next round": (
        "1:3", "join a b; form; cordon b reason=burn-in", {"ranks": "a b"}, "join c; join a b",
        {"ranks": "a c", "reason b": completion.standby_kept_out("b", "burn-in", excluded=False)},
    ),
    "it learns for how long, and takes part again when it is uncordoned": (
        "1:2", "join a; form; cordon b for_s=30; join b; 10s",
        {"reason b": until(completion.standby_kept_out("b", "", excluded=False), "uncordoned", 20)},
        "uncordon b", {"stop": "a"}, "join a", {"ranks": "a b"},  # its arrival fills the run: at once
    ),
    "a node that waits loses its seat in the round that forms": (
        "2:3", "join a b; cordon b",
        {"reason a": until(completion.too_few(1, 1, 2, "a", cordoned="b"), "gives_up", 600)},
        "join c; form", {"ranks": "a c"},
    ),
    "a round below its minimum names the nodes that operators and the server keep out": (
        "3", f"cordon b; cordon c by={EXCLUDER}; join a b c",
        {"reason a": until(completion.too_few(2, 1, 3, "a", cordoned="b", excluded="c"), "gives_up", 600)},
    ),
    "no round waits for a silent cordoned node": (
        "1:2", "join a b; cordon b; leave a; join b; join c; disconnect b", {"ranks": "c"},
    ),
    # stop and admit
    "a run is stopped while it forms": (
        "2", "join a; stop reason=why", {"stage": "failed", "woken": "a", "end": words.stopped("why")},
    ),
    "and while it runs": ("1 max_restarts=1", "join a; stop", {"finish": "a", "end": words.stopped("")}),
    "a run that has ended is not stopped": ("1", "join a; succeed a; ignored stop", {"stage": "succeeded"}),
    "those that stand by are admitted": (
        "1:3 scale_up=manual", "join a; form; join b; 1000s", {"wait": "b"}, "admit", {"stop": "a"},
        "join a", {"ranks": "a b", "ledger": "node_arrived", "why": completion.admitting(1, "b")},
    ),
    "there must be a node to admit": (
        "1:2 scale_up=manual", "join a; form; refused admit",
        {"refused": "NoStandby", "refusal": words.no_standby("run")},
    ),
    "and a seat for them": ("1", "join a b; refused admit", {"refused": "NoStandby"}),
    "and no seats are given after the end": ("1", "join a b; succeed a; refused admit", {"refused": "NoStandby"}),
    "nor while a round forms": ("2", "join a; refused admit", {"refused": "NoStandby"}),
    # restart and resize
    "a restart costs nothing and has a cause of its own": (
        "2", "join a b; restart_run reason=data request_id=1", {"reason a": words.restarted("data")},
        "join b a", {"ranks": "a b", "ledger": "run_restarted"},
        "ignored restart_run request_id=1", {"stage": "running"},  # requested and carried out before
    ),
    "a restart of what restarts already changes nothing": (
        "2", "join a b; restart_run request_id=1; restart_run request_id=2", {"round": "2"},
    ),
    "shrunk below its size a run continues with fewer, and the first ranks stay": (
        "1:4", "join a b c d; resize 1:2; join d c b a", {"ranks": "a b", "wait": "c d", "ledger": "run_resized"},
        # a seat is free, and more agents wait than it takes
        "resize 1:3", {"stop": "a b"}, "join a b", {"ranks": "a b d"},
    ),
    "a size that the run has room for disturbs no node": (
        "2:4", "join a b c; form; resize 1:3; resize 3:3; resize 2:8; resize 4:8", {"ranks": "a b c", "round": "1"},
    ),
    "a smaller minimum lets a waiting run begin": ("3:4", "join a b; resize 2:2", {"ranks": "a b"}),
    "who has finished is not restarted by a smaller size": (
        "1:3", "join a b c; succeed a; resize 1:1", {"stage": "running"}, "succeed b c", {"stage": "succeeded"},
    ),
    "a failure is still charged after an operator's actions": (
        "1:3 max_restarts=1", "join a b; form; restart_run; join a b; fail a; join a b",
        {"ledger": "run_restarted worker_failure!"}, "fail b", {"stage": "failed"},
    ),
})  # fmt: skip
def test_operators_actions_take_effect(story):
    check(story)


# Drain.


def test_a_drained_nodes_place_is_taken_by_a_standby_while_its_workers_write_a_checkpoint() -> None:
    run = running("2", "a", "b")
    run.join("c")
    run.drains("b", reason="its fan", request_id="1")
    assert happened(run) == [("node_drained", "admin 10.0.0.7", "1")]
    directive = run.directive("b")
    assert directive == Drain(reason=words.drained("b", "its fan"), remaining_s=60.0)
    assert isinstance(run.directive("a"), Stop) and set(run.woken()) >= {"a", "b"}
    run.join("a")
    assert run.participants() == ["a", "c"], "at once, while b still stops its workers"
    assert run.ledger() == [("node_drained", False)]
    run.passes(15.0)
    assert run.directive("b") == Drain(reason=words.drained("b", "its fan"), remaining_s=45.0)
    run.leaves("b", "drained")
    assert run.participants() == ["a", "c"] and run.stage is Stage.RUNNING


@pytest.mark.parametrize("state", [AgentState.WAITING, AgentState.CORDONED, AgentState.STOPPING, AgentState.SUCCEEDED])
def test_the_drain_of_an_agent_without_running_workers_does_not_restart_other_agents(state: AgentState) -> None:
    run = running("2", "a", "b")
    if state is AgentState.WAITING:
        run.join("d", node="d")
    elif state is AgentState.CORDONED:
        run.cordons("d")
        run.join("d")
    elif state is AgentState.STOPPING:
        run = running("1:3", "a", "b", "d")
        run.leaves("a")
    else:
        run = running("1:2", "a", "d")
        run.succeeds("d")
    assert run.run.agents["d"].state is state
    round_ = run.run.round
    run.drains("d")
    assert run.told(Drain) == {"d"} and run.run.round == round_
    run.leaves("d", "drained")
    assert "d" not in run.run.agents and run.run.round == round_


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ({"verdict": "fatal", "rule": "bad record"}, failures.fatal_rule("bad record")),
        ({"exit_code": 42}, failures.fatal_exit_code(42)),
    ],
)
def test_a_fatal_failure_of_before_the_drain_ends_the_run_also_in_its_next_round(failure, why) -> None:
    run = running("1:2", "a", "b", max_restarts=9, fatal_exit_codes=(42,))
    run.drains("b")
    run.join("a")
    assert run.run.round == 2
    run.fails("b", verdict="retry", rule="store")
    assert run.stage is Stage.RUNNING
    run.fails("b", **failure)
    assert run.stage is Stage.FAILED and has_message(run.run.end_reason, failures.ends_run, verdict=why)


# Restart and resize.


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
def test_a_request_with_the_same_id_changes_nothing_even_after_a_restart_of_the_server(action: Any) -> None:
    run = running("1:3", "a", "b", "c")
    run.handle(action)
    answer = run.run.answers["1"]
    for again in (run.handle, lambda event: (run.restarts(), run.handle(event))):
        before = len(run.records)
        again(action)
        assert len(run.records) == before and run.run.answers["1"] == answer


def test_the_event_names_the_admitting_operator() -> None:
    run = running("1:2", "a", scale_up="manual")
    run.join("b")
    run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "1"))
    assert happened(run) == [("nodes_admitted", "admin 10.0.0.7", "1")]
    run.join("a")
    run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "1"))
    assert run.participants() == ["a", "b"], "the same request is no refusal, though no node waits any more"
    with pytest.raises(NoStandby):
        run.handle(ArrivalsAdmitted("now", "admin 10.0.0.7", "2"))


@pytest.mark.parametrize("action", [RunRestarted(), RunResized(min_nodes=1, max_nodes=1)])
def test_an_ended_run_cannot_be_restarted_or_resized(action: Any) -> None:
    run = running("1", "a")
    run.succeeds("a")
    with pytest.raises(RunEnded, match=pattern(words.run_over("run", Stage.SUCCEEDED, runs.succeeded(1)))):
        run.handle(action)


def test_a_restart_of_a_round_that_is_over_leaves_the_next_one_alone() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.join("a", "b")
    run.handle(RunRestarted("it hangs", "me", "1", round=1))
    assert (run.run.stage, run.run.round, run.run.answers["1"]) == (Stage.RUNNING, 2, words.round_over("run", 1, 2))
    assert not happened(run)
    run.handle(RunRestarted("it hangs", "me", "2", round=2))
    assert (run.run.stage, run.run.round) == (Stage.FORMING, 3)


def test_the_number_of_remembered_requests_is_bounded() -> None:
    run = running("1:2", "a")
    for number in range(3 * REQUESTS):
        run.is_resized("1:2", request_id=str(number))
    assert list(run.run.answers) == [str(number) for number in range(2 * REQUESTS, 3 * REQUESTS)]
    assert isinstance(run.directive("a"), Start)


def test_agents_that_ask_for_the_old_size_are_accepted_with_a_message() -> None:
    run = Scenario("2")
    run.join("a", "b", settings=settings_of("2"))
    run.is_resized("2:3")
    run.join("c", settings=settings_of("2"))
    run.join("a", "b", settings=settings_of("2"))
    assert run.participants() == ["a", "b", "c"]
    with pytest.raises(SettingsConflict, match="--max-restarts is 0"):
        run.join("d", settings=settings_of("2", max_restarts=7))


def test_limits_without_a_legal_size_are_refused():
    run = running("4:8", "a", "b", "c", "d", node_unit=4)
    refusal = words.no_legal_size(sizes.none_legal([], 4, 5, 7), "run")
    with pytest.raises(MalformedMessage, match=pattern(refusal)):
        run.handle(RunResized(min_nodes=5, max_nodes=7))
    assert run.stage is Stage.RUNNING
