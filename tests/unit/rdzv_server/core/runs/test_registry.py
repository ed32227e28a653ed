"""Many runs, and how long each one is remembered."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from rdzv_protocol.errors import (
    AgentFenced,
    MalformedMessage,
    OutcomeUnknown,
    RunStillActive,
    UnknownRun,
)
from rdzv_protocol.messages import Finish, Start, Stop, Wait

from rdzv_server.core import journals
from rdzv_server.core.effects import AnswerOperator, EmitEvent, ForgetRun
from rdzv_server.core.events import (
    LeaseRenewed,
    NodeCordoned,
    NodeJoined,
    NodeUncordoned,
    Operation,
    RunCreated,
    RunForgotten,
    WorkersSucceeded,
)
from rdzv_server.core.kernel import machine
from rdzv_server.core.kernel.admission import MOST_GRACE_S
from rdzv_server.core.kernel.operations import RunResized, RunRestarted
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.runs import used_numbers
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.record_codec import pack, unpack
from rdzv_server.words import admission, attempts, completion, operations
from tests.support.message_search import pattern
from tests.support.scenario import RETENTION_S, SERVER_ADDR, ManyRuns, a_join, durable, settings_of


@pytest.fixture
def server():
    return ManyRuns()


# Runs side by side.


def test_the_first_join_founds_the_run(server):
    server.join("a", settings=settings_of("2", max_restarts=3))
    (run,) = server.registry.runs()
    assert (run.run_id, run.attempt, run.settings.min_nodes, run.settings.max_restarts) == ("run", 1, 2, 3)
    assert [type(record.fact) for record in server.records] == [RunCreated, NodeJoined]


@pytest.mark.parametrize("explicit", [True, False])
def test_a_node_that_is_unfit_founds_the_run_that_others_join(server, explicit):
    server.join("a", settings=settings_of("2"), explicit=explicit, unfit="node a is unfit: no GPU")
    server.join("b", settings=settings_of("2"), explicit=explicit)
    ((_, attempt, stage),) = server.attempts()
    assert (attempt, stage) == (1, Stage.FORMING)
    assert server.directive("b").reason == completion.too_few(1, 1, 2, "b", unfit="node a is unfit: no GPU")


def test_a_run_whose_settings_cannot_be_met_is_not_founded(server):
    with pytest.raises(MalformedMessage):
        server.join("a", settings=settings_of("3:2"))
    assert server.attempts() == []


def test_a_run_with_an_endless_grace_is_not_founded(server):
    with pytest.raises(MalformedMessage, match=pattern(admission.grace_too_long(1e7, MOST_GRACE_S))):
        server.join("a", settings=settings_of("1", disconnect_grace_s=1e7))
    assert server.attempts() == []


def test_runs_do_not_meet(server):
    server.join("a", "one", settings=settings_of("2"))
    server.join("a", "two", settings=settings_of("1"))
    assert isinstance(server.directive("a", "one"), Wait)
    assert isinstance(server.directive("a", "two"), Start)


def test_the_newest_runs_come_first_and_are_not_copied(server):
    for name in "abc":
        server.join(name, run_id=name)
    newest = server.registry.newest()
    assert next(newest).run_id == "c" and [run.run_id for run in newest] == ["b", "a"]


def test_an_unknown_run_is_fenced(server):
    with pytest.raises(AgentFenced, match=pattern(attempts.unknown_run("nowhere"))):
        server.handle("nowhere", LeaseRenewed("a"))
    with pytest.raises(AgentFenced):
        server.directive("a", "nowhere")


def test_a_run_is_not_founded_by_an_agent_that_claims_a_past_in_it(server):
    with pytest.raises(AgentFenced, match=pattern(attempts.must_rejoin, node_id="a")):
        server.join("a", after_round=3)
    assert server.attempts() == []


def test_many_nodes_that_are_lost_together_are_removed_some_at_a_time(server, monkeypatch):
    """A batch of losses is limited, so that other runs have a turn in between."""
    most = 20
    monkeypatch.setattr(machine, "MOST_DUE_FACTS", most)
    many = 2 * most + 1
    for number in range(many):
        server.join(f"agent-{number}", settings=settings_of(f"{many + 1}", lease_s=10.0))
    (run,) = server.registry.runs()
    left = []
    while run.agents:
        assert server.registry.next_deadline() <= 10.0, "the rest is due still"
        server.registry.pass_time(10.0)
        left.append(len(run.agents))
    assert left == [most + 1, 1, 0]


def test_a_success_is_forgotten_after_the_retention_time(server):
    server.join("a")
    server.succeeds("a")
    server.passes(RETENTION_S)
    assert server.effects[-1] == ForgetRun("run", 1)
    assert server.attempts() == []
    server.join("late")
    assert server.attempts() == [("run", 2, Stage.RUNNING)]


@pytest.mark.parametrize("restarts", [False, True])
def test_numbers_of_a_run_id_are_not_reused_after_the_run_is_forgotten(server, restarts):
    for attempt, agent in enumerate("abc", 1):
        server.join(agent)
        assert server.attempts() == [("run", attempt, Stage.RUNNING)]
        (run,) = server.registry.runs()
        assert server.event_numbers == list(range(1, run.event_number + 1))
        server.succeeds(agent)
        server.passes(RETENTION_S)
        assert server.attempts() == []
        server = server.restarted() if restarts else server
    server.join("a", "another")
    assert [(run.attempt, run.event_number) for run in server.registry.runs()] == [(1, 3)], "it was never used"


def test_a_bounded_number_of_forgotten_run_ids_is_remembered_and_new_runs_begin_above_their_numbers(
    server, monkeypatch
):
    monkeypatch.setattr(used_numbers, "MOST_REMEMBERED", 2)
    for run_id, number in (("many", 3), ("two", 1), ("three", 1)):
        for attempt in range(number):
            server.join(f"{run_id}{attempt}", run_id)
            server.fails(f"{run_id}{attempt}", run_id)
        server.passes(RETENTION_S)
    for run_id, attempt in (("two", 2), ("three", 2), ("many", 4), ("new", 4)):
        server.join("a", run_id)
        assert server.attempts()[-1] == (run_id, attempt, Stage.RUNNING)
    kept, again = server.registry.snapshot(journals.NUMBERS, 0.0), Registry(RETENTION_S)
    for record in kept:
        again.replay(unpack(record.run_id, record.attempt, record.at, *pack(record)))
    assert again.snapshot(journals.NUMBERS, 0.0) == kept


# An agent that slept through the end of its run.


def returns(server: ManyRuns, *, attempt: int = 1, **changes: Any) -> None:
    """The agent of node a, which had a place in this attempt, returns after its run has gone."""
    server.join("a.2", node="a", returning=True, attempt=attempt, **changes)


@pytest.mark.parametrize("restarts", [False, True], ids=["same incarnation", "restarted"])
@pytest.mark.parametrize("told", [1, 0], ids=["attempt", "older agent"])
@pytest.mark.parametrize("more", [{}, {"rerun": True}, {"explicit": False}], ids=["explicit", "rerun", "no run id"])
def test_a_returning_agent_does_not_begin_a_forgotten_run_again(server, restarts, told, more):
    server.join("b", explicit=more.get("explicit", True))
    server.succeeds("b")
    server.passes(RETENTION_S)
    server = server.restarted() if restarts else server
    with pytest.raises(OutcomeUnknown, match=pattern(attempts.outcome_unknown("run", "a"))):
        returns(server, attempt=told, **more)
    assert server.attempts() == []
    server.join("c")
    assert server.attempts() == [("run", 2, Stage.RUNNING)], "an agent that is started now begins it again"


@pytest.mark.parametrize("attempt", [1, 0])
def test_returning_agents_form_their_run_again_on_a_server_without_its_state(server, attempt):
    server.join("b", "another")
    server.succeeds("b", "another")
    server.passes(RETENTION_S)
    returns(server, attempt=attempt)
    assert server.attempts() == [("run", 1, Stage.RUNNING)]


def test_a_server_with_an_older_state_knows_that_a_later_attempt_has_not_ended(server):
    server.join("b")
    server.succeeds("b")
    server.passes(RETENTION_S)
    returns(server, attempt=2)
    assert server.attempts() == [("run", 2, Stage.RUNNING)]


def test_a_returning_agent_takes_a_place_in_a_later_attempt_that_runs(server):
    server.join("b")
    server.succeeds("b")
    server.passes(RETENTION_S)
    server.join("c", settings=settings_of("1:2"))
    returns(server, settings=settings_of("1:2"))
    assert "a.2" in server.registry.runs()[-1].agents


@pytest.mark.parametrize("restarts", [False, True], ids=["same incarnation", "restarted"])
def test_the_agents_of_a_forgotten_set_apart_run_form_it_again(server, restarts):
    server.join("a")
    server.registry.set_apart(server.registry.machine_of("run", "a"), ZeroDivisionError())
    ((machine, _),) = server.registry.take_set_apart()
    server.registry.rebuild(machine, server.records, 2, server.now)
    server.handle("run", RunForgotten(run_id="run"))
    assert server.attempts() == []
    server = server.restarted() if restarts else server
    returns(server)
    assert server.attempts() == [("run", 2, Stage.RUNNING)]


# After a failure.


def test_an_agent_of_the_failed_attempt_still_reads_its_end(server):
    server.join("a", settings=settings_of("2"))
    server.join("b", settings=settings_of("2"))
    server.fails("a")
    server.join("c", settings=settings_of("2"))
    finish = server.directive("b")
    assert isinstance(finish, Finish) and not finish.succeeded
    server.join("b", after_round=1)
    assert server.directive("b") == finish
    assert [run.attempt for run in server.registry.runs() if "b" in run.agents] == [1]


def test_an_agent_that_left_an_earlier_attempt_is_fenced_from_the_next(server):
    server.join("a", settings=settings_of("1:2"))
    server.join("b")
    server.leaves("b")
    server.join("a", after_round=1)
    server.fails("a", round=2)
    server.join("c")
    with pytest.raises(AgentFenced):
        server.join("b")


# A deserted run.


def test_every_attempt_is_forgotten_in_the_end(server):
    server.join("a", explicit=False, settings=settings_of("1", join_timeout_s=10_000))
    server.leaves("a")
    server.join("b", explicit=False)
    server.succeeds("b")
    server.passes(20_000)
    assert server.attempts() == []
    assert server.registry.next_deadline() is None


def test_a_server_that_stalled_forgets_all_that_it_should_have(server):
    server.join("a", explicit=False)
    server.fails("a")
    server.passes(100)
    server.join("b", explicit=False)
    server.succeeds("b")
    server.stalls(10 * RETENTION_S)
    assert server.attempts() == []


# Coming back.


def test_the_records_bring_every_attempt_back(server):
    server.join("a", "one", settings=settings_of("1", max_restarts=1))
    server.fails("a", "one")
    server.join("a", "one", after_round=1)
    server.join("b", "two", explicit=False)
    server.leaves("b", "two")
    server.join("c", "two", explicit=False)
    server.succeeds("c", "two")
    again = server.restarted().registry
    assert [durable(run) for run in again.runs()] == [durable(run) for run in server.registry.runs()]
    assert isinstance(again.machine_of("one", "a").directive_for("a", server.now)[1], Start)


def test_a_restarted_server_still_meets_a_runs_deadlines(server):
    server.join("a", settings=settings_of("2", join_timeout_s=5))
    again = server.restarted()
    again.handle("run", LeaseRenewed("a"))
    assert again.registry.next_deadline() == 5
    again.passes(5)
    assert again.attempts() == [("run", 1, Stage.FAILED)]


def test_an_agent_finds_its_own_attempt(server):
    server.join("a")
    server.fails("a")
    server.join("b", settings=settings_of("1", max_restarts=1))
    assert server.registry.machine_of("run", "a").run.attempt == 1
    assert server.registry.machine_of("run", "b").run.attempt == 2
    server.fails("b")
    assert isinstance(server.directive("b"), Stop)


def test_a_later_attempt_with_shorter_leases_is_forgotten_after_the_earlier_one(server):
    server.join("a", settings=settings_of("1", lease_s=2 * RETENTION_S, max_restarts=0))
    server.fails("a")
    server.join("b", settings=settings_of("1", lease_s=5, max_restarts=0))
    server.fails("b")
    server.passes(2 * RETENTION_S - 1)
    assert [attempt for _, attempt, _ in server.attempts()] == [1, 2]
    server.handle("run", LeaseRenewed("b"))
    assert server.effects == [], "nor is it dropped from the store when one of its agents is heard"
    server.join("c", settings=settings_of("1", max_restarts=0))
    assert [attempt for _, attempt, _ in server.attempts()] == [1, 2, 3], "no number is given twice"
    server.passes(1)
    assert [attempt for _, attempt, _ in server.attempts()] == [3]
    server.fails("c")
    server.passes(RETENTION_S)
    assert server.attempts() == [] and server.registry.next_deadline() is None


def test_every_agent_has_a_lease_to_hear_how_the_run_ended():
    """Otherwise an agent that did not learn how its run ended would take the server for a new one, and start again."""
    registry = Registry(retention_s=0.0)
    joins = [a_join(name, settings=settings_of("2", lease_s=20)) for name in ("a", "b")]
    for join in joins:
        registry.handle("run", NodeJoined(join, SERVER_ADDR), 0.0)
    for name in ("a", "b"):
        registry.handle("run", WorkersSucceeded(name, 1), 1.0)
    assert isinstance(registry.machine_of("run", "b").directive_for("b", 20.9)[1], Finish)
    assert registry.pass_time(20.9) == []
    assert registry.pass_time(21.0)[-1] == ForgetRun("run", 1)


# The memory of forgotten runs.


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_forgotten_run_is_freed_without_a_collection(server, no_collection):
    """A server collects garbage only when it has grown by a quarter. Runs that were kept until then took 40 kB each."""
    server.join("a", settings=settings_of("2", max_restarts=1))
    server.join("b", settings=settings_of("2", max_restarts=1))
    machine = server.registry.machine_of("run", "a")
    server.fails("a")
    server.join("a", after_round=1)
    server.join("b", after_round=1)
    server.fails("b", round=2)
    kept = [weakref.ref(each) for each in (machine, *machine.policies)]
    del machine
    server.passes(RETENTION_S)
    assert server.attempts() == []
    assert [each() for each in kept] == [None] * len(kept)


def test_a_run_that_was_set_apart_is_freed_without_a_collection(server, no_collection):
    server.join("a")
    server.registry.set_apart(server.registry.machine_of("run", "a"), ZeroDivisionError())
    ((machine, _),) = server.registry.take_set_apart()
    server.registry.rebuild(machine, server.records, 2, server.now)
    kept = weakref.ref(machine)
    del machine
    server.handle("run", RunForgotten(run_id="run"))
    assert server.attempts() == [] and kept() is None


# Runs that an operator has forgotten.


def test_a_run_is_forgotten_once_its_agents_have_heard_of_its_end(server):
    server.join("a")
    with pytest.raises(RunStillActive, match=pattern(attempts.still_active("run", Stage.RUNNING))):
        server.handle("run", RunForgotten(run_id="run"))
    server.fails("a")
    server.handle("run", RunForgotten("disk is full", by="me", request_id="1", run_id="run"))
    assert server.registry.answer_to("run", "1") == operations.forgotten("run", 10, "disk is full")
    assert isinstance(server.restarted().directive("a"), Finish)
    server.passes(10.0)
    assert server.attempts() == []
    with pytest.raises(UnknownRun):
        server.handle("run", RunForgotten(run_id="run"))


def test_all_attempts_of_a_run_are_forgotten_together(server):
    for agent in "abc":
        server.join(agent)
        server.fails(agent)
    server.passes(100.0)
    server.handle("run", RunForgotten(run_id="run"))
    assert server.attempts() == [] and sum(isinstance(effect, ForgetRun) for effect in server.effects) == 3


# Actions without an effect.


IDLE: dict[str, tuple[str | None, Operation, Operation, str]] = {
    "uncordon": (
        None, NodeUncordoned("x", "me", "1", node_id="b"), NodeCordoned("x", "me", "2", node_id="b"),
        operations.not_cordoned("b"),
    ),
    "restart": (
        "run", RunRestarted("x", "me", "1"), RunResized("x", "me", "2", min_nodes=1, max_nodes=1),
        operations.nothing_to_restart("run"),
    ),
    "restart of a round that is over": (
        "run", RunRestarted("x", "me", "1", round=7), RunResized("x", "me", "2", min_nodes=1, max_nodes=1),
        operations.round_over("run", 7, 1),
    ),
    "resize": (
        "run", RunResized("x", "me", "1", min_nodes=2, max_nodes=2),
        RunResized("x", "me", "2", min_nodes=1, max_nodes=1), operations.has_size("run", 2, 2),
    ),
}  # fmt: skip
"""Actions without an effect in a run that forms, each with an action after which it would have one, and the answer."""


@pytest.mark.parametrize(("run_id", "action", "then", "why"), IDLE.values(), ids=IDLE)
def test_a_repeated_request_that_had_nothing_to_do_gets_the_same_answer_even_later(
    server: ManyRuns, run_id: str | None, action: Operation, then: Operation, why: str
) -> None:
    server.join("a", settings=settings_of("2"))

    def answer() -> tuple[str, bool]:
        server.handle(run_id, action)
        (answered,) = (effect for effect in server.effects if isinstance(effect, AnswerOperator))
        return answered.sentence, answered.has_changed

    assert answer() == (why, False)
    assert not any(isinstance(effect, EmitEvent) for effect in server.effects), "an event without an effect"
    server.handle(run_id, then)
    assert answer() == (why, False)
    server = server.restarted()
    assert answer() == (why, False)
    for key in (journals.NODES, ("run", 1)):
        kept = [record for record in server.records if (record.run_id, record.attempt) != key]
        server.records = kept + server.registry.snapshot(key, server.now)
    server = server.restarted()
    assert answer() == (why, False)
