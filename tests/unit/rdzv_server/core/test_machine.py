"""A run's life: leaving, growing, succeeding, ending, and coming back from its records."""

import pytest
from rdzv_protocol.errors import AgentFenced, NobodyWaits
from rdzv_protocol.messages import Finish, Start, Stop, Wait

from rdzv_server.core.effects import Announce, ForgetRun, Record, WakeAgents
from rdzv_server.core.events import ArrivalsAdmitted, RunStopped
from rdzv_server.core.run import Stage
from tests.support.scenario import RETENTION_S, Scenario, durable, replayed, running, snapshot

# Leaving.


def test_the_others_re_form_at_once_when_a_node_leaves():
    run = running("1:2", "a", "b")
    run.leaves("b", "SIGTERM")
    assert run.directive("a") == Stop(round=1, reason="node b left: SIGTERM")
    run.join("a")
    assert run.participants() == ["a"]


def test_leaving_twice_is_leaving_once():
    run = running("1:2", "a", "b")
    run.leaves("b")
    before = durable(run.run)
    run.leaves("b")
    assert durable(run.run) == before


def test_a_stranger_cannot_leave():
    run = running("1", "a")
    with pytest.raises(AgentFenced):
        run.leaves("stranger")


def test_a_standby_that_leaves_disturbs_nobody():
    run = running("2", "a", "b")
    run.join("spare")
    run.leaves("spare")
    assert run.told(Start) == {"a", "b"}


# Growing.


def test_an_arrival_is_admitted_after_a_short_window():
    run = running("2:4", "a", "b", scale_up_window_s=0.1)
    run.join("c")
    assert run.told(Start) == {"a", "b"}
    run.passes(0.1)
    assert run.told(Stop) == {"a", "b"}
    assert run.reason("a") == "admitting 1 more: c"
    run.join("a", "b")
    assert run.participants() == ["a", "b", "c"]


def test_arrivals_within_the_window_share_one_restart():
    run = running("2:5", "a", "b", scale_up_window_s=0.1)
    run.join("c")
    run.passes(0.06)
    run.join("d")
    run.passes(0.05)
    assert run.reason("a") == "admitting 2 more: c, d"
    run.join("a", "b")
    assert run.ledger() == [("node_arrived", False)]


def test_there_is_no_window_once_the_run_is_full():
    run = running("2:3", "a", "b", scale_up_window_s=60)
    run.join("c")
    assert run.told(Stop) == {"a", "b"}


def test_an_arrival_that_leaves_again_restarts_nobody():
    run = running("2:4", "a", "b")
    run.join("c")
    run.leaves("c")
    run.passes(100)
    assert run.told(Start) == {"a", "b"}


def test_a_cooldown_keeps_a_young_round_going():
    run = running("2:3", "a", "b", scale_up="cooldown", scale_up_cooldown_s=300)
    started = run.now
    run.join("c")
    run.passes(299.9)
    assert run.told(Start) == {"a", "b"}
    run.passes(0.1)
    assert run.told(Stop) == {"a", "b"}
    assert run.now == started + 300


def test_after_the_cooldown_arrivals_share_a_window_that_begins_with_the_first():
    run = running("1:9", "a", scale_up="cooldown", scale_up_cooldown_s=300, scale_up_window_s=10)
    run.passes(400)
    for name in ("b", "c", "d"):
        run.join(name)
        run.passes(4)
    assert run.told(Stop) == {"a"}
    assert run.reason("a") == "admitting 3 more: b, c, d"


def test_with_manual_scale_up_a_running_round_is_left_alone():
    run = running("2:3", "a", "b", scale_up="manual")
    run.join("c")
    run.passes(10_000)
    assert run.told(Start) == {"a", "b"}


def test_with_manual_scale_up_an_arrival_gets_a_seat_in_the_next_round():
    run = running("2:3", "a", "b", scale_up="manual", max_restarts=1)
    run.join("c")
    run.fails("a")
    run.join("a", "b")
    assert run.participants() == ["a", "b", "c"]


def test_nobody_is_admitted_once_somebody_has_finished():
    run = running("2:3", "a", "b")
    run.succeeds("a")
    run.join("c")
    run.passes(100)
    assert run.told(Start) == {"a", "b"}


def test_an_arrival_in_its_window_is_not_admitted_when_somebody_finishes():
    run = running("2:4", "a", "b")
    run.join("c")
    run.succeeds("a")
    run.passes(100)
    assert run.told(Start) == {"a", "b"}


# Succeeding.


def test_a_run_succeeds_when_every_node_has():
    run = running("2", "a", "b")
    run.succeeds("a")
    assert run.stage is Stage.RUNNING
    assert run.told(Start) == {"a", "b"}, "the early one waits"
    run.succeeds("b")
    assert run.stage is Stage.SUCCEEDED
    assert run.directive("a") == Finish(succeeded=True, reason="all workers of 2 nodes exited 0")
    assert set(run.woken()) == {"a", "b"}


def test_success_is_counted_once_a_node():
    run = running("2", "a", "b")
    run.succeeds("a", "a")
    assert run.stage is Stage.RUNNING


@pytest.mark.parametrize("go", ["is_lost", "leaves"])
def test_a_node_that_has_finished_may_go(go):
    run = running("2", "a", "b")
    run.succeeds("a")
    getattr(run, go)("a")
    assert run.told(Start) == {"b"}
    run.succeeds("b")
    assert run.stage is Stage.SUCCEEDED


def test_a_failure_restarts_those_that_had_finished():
    run = running("2", "a", "b", max_restarts=1)
    run.succeeds("a")
    run.fails("b")
    assert run.told(Stop) == {"a", "b"}
    run.join("a", "b")
    run.succeeds("b")
    assert run.stage is Stage.RUNNING, "a's success was of the round before"
    run.succeeds("a")
    assert run.stage is Stage.SUCCEEDED


def test_a_loss_restarts_those_that_had_finished():
    run = running("1:2", "a", "b")
    run.succeeds("a")
    run.is_lost("b")
    assert run.told(Stop) == {"a"}


def test_a_success_that_comes_after_the_stop_does_not_count():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.succeeds("b")
    assert run.told(Stop) == {"a", "b"}
    run.join("a", "b")
    run.succeeds("a")
    assert run.stage is Stage.RUNNING


def test_a_failure_after_a_success_of_the_same_round_is_ignored():
    run = running("2", "a", "b", max_restarts=1)
    run.succeeds("a")
    before = durable(run.run)
    run.fails("a")
    assert durable(run.run) == before


# An end is final.


def ended(*, succeeded):
    run = running("2", "a", "b", lease_s=20)
    run.join("spare")
    if succeeded:
        run.succeeds("a", "b")
    else:
        run.fails("a")
    assert run.stage.is_end
    return run


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize(
    "happens",
    [
        lambda run: run.fails("b"),
        lambda run: run.succeeds("b"),
        lambda run: run.leaves("b"),
        lambda run: run.hears("b"),
        lambda run: run.disconnects("b"),
        lambda run: run.join("b", after_round=1),
        lambda run: run.join("spare", after_round=0),
        lambda run: (run.hears("b"), run.disconnects("b")),
        lambda run: run.passes(RETENTION_S - 1),
    ],
    ids=["failure", "success", "leave", "heard", "disconnect", "rejoin", "join", "blip", "time"],
)
def test_an_end_is_final(succeeded, happens):
    run = ended(succeeded=succeeded)
    before = snapshot(run.run)
    happens(run)
    assert snapshot(run.run) == before
    assert run.told(Finish) == {"a", "b", "spare"}


def test_an_ended_run_is_forgotten_after_the_retention_time():
    run = ended(succeeded=True)
    run.passes(RETENTION_S - 1)
    assert ForgetRun("run", 1) not in run.effects
    run.passes(1)
    assert run.effects == [ForgetRun("run", 1)]


# What the shell must know.


def test_what_happened_is_recorded_before_anybody_is_woken():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    kinds = [type(effect) for effect in run.effects]
    assert kinds[0] is Record
    assert kinds.index(Record) < kinds.index(WakeAgents)
    assert Announce in kinds


def test_signs_of_life_are_not_recorded():
    run = running("2", "a", "b")
    recorded = len(run.records)
    run.hears("a")
    run.disconnects("a")
    run.hears("a")
    assert len(run.records) == recorded


def test_every_change_of_a_directive_has_a_newer_revision():
    run = Scenario("2", max_restarts=1)
    run.join("a")
    seen = [run.machine.directive_for("a", run.now)[0]]
    run.join("b")
    seen.append(run.machine.directive_for("a", run.now)[0])
    run.fails("b")
    seen.append(run.machine.directive_for("a", run.now)[0])
    assert seen == sorted(set(seen))


def test_the_next_deadline_is_the_soonest_of_all():
    run = Scenario("2:3", lease_s=20, last_call_timeout_s=30, join_timeout_s=600)
    assert run.machine.next_deadline() == 600
    run.join("a", "b")
    assert run.machine.next_deadline() == 20
    run.passes(19)
    run.hears("a", "b")
    assert run.machine.next_deadline() == 30
    run.disconnects("a")
    assert run.machine.next_deadline() == 20


def test_a_full_running_round_waits_for_leases_alone():
    run = running("1", "a", lease_s=20)
    assert run.machine.next_deadline() == 20


def test_the_records_bring_a_run_back_as_it_was():
    run = Scenario("2:3", max_restarts=2, disconnect_grace_s=1)
    run.join("a", "b", "c")
    run.fails("b", exit_code=3)
    run.join("a", "b")
    run.passes(30)
    run.join("c")
    run.disconnects("a")
    run.passes(1)
    run.join("d")
    run.join("b")
    assert run.told(Start) | run.told(Wait) | run.told(Stop) == set(run.run.agents)
    assert durable(replayed(run.created, run.records)) == durable(run.run)


@pytest.mark.parametrize("succeeded", [True, False])
def test_the_records_bring_an_end_back(succeeded):
    run = ended(succeeded=succeeded)
    assert durable(replayed(run.created, run.records)) == durable(run.run)


# What operators do.


def test_an_operator_stops_a_run_in_whatever_stage_it_is():
    forming = Scenario("2")
    forming.join("a")
    for run in (forming, running("1", "a"), running("1", "a", max_restarts=1)):
        run.handle(RunStopped("wrong data"))
        assert run.stage is Stage.FAILED
        assert run.directive("a") == Finish(succeeded=False, reason="stopped by an operator: wrong data")
        assert run.woken() == ["a"]


def test_a_run_that_has_ended_is_not_stopped():
    run = running("1", "a")
    run.succeeds("a")
    before = snapshot(run.run)
    run.handle(RunStopped(""))
    assert snapshot(run.run) == before


def test_an_operator_admits_those_that_stand_by():
    run = running("1:3", "a", scale_up="manual")
    run.join("b")
    run.passes(1_000)
    assert run.told(Wait) == {"b"}
    run.handle(ArrivalsAdmitted())
    assert run.reason("a") == "admitting 1 more: b"
    run.join("a")
    run.passes(run.settings.last_call_timeout_s)
    assert run.participants() == ["a", "b"]
    assert run.ledger() == [("node_arrived", False)]


def test_there_must_be_somebody_to_admit_and_a_seat_for_them():
    nobody, full, over = running("1:2", "a", scale_up="manual"), running("1", "a"), running("1", "a")
    full.join("b")
    over.join("b")
    over.succeeds("a")
    forming = Scenario("2")
    forming.join("a")
    for run in (nobody, full, over, forming):
        before = snapshot(run.run)
        with pytest.raises(NobodyWaits, match="no node stands by for a free seat in run run"):
            run.handle(ArrivalsAdmitted())
        assert snapshot(run.run) == before
