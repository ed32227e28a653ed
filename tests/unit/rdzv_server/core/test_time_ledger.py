"""Time ledger of a run: what its time has gone into."""

import pytest

from rdzv_server.core import snapshot, time_ledger
from rdzv_server.core.events import RunCreated
from rdzv_server.core.examination import EXAMINED_WITHIN_S
from rdzv_server.core.machine import RunMachine
from rdzv_server.core.run import Stage
from tests.support.scenario import RETENTION_S, Scenario, running


def time_of(run: Scenario) -> dict[str, float]:
    time_s = time_ledger.view(run.run, run.now)
    phases = {name: getattr(time_s, name) for name in ("running", "forming", "restarting", "waiting")}
    return {name: seconds for name, seconds in phases.items() if seconds}


def restarts_of(run: Scenario) -> dict[str, float]:
    return time_ledger.view(run.run, run.now).restarts


def test_a_run_waits_for_its_minimum_then_forms_then_runs():
    run = Scenario("2:3", last_call_timeout_s=5.0)
    run.join("a")
    run.passes(10.0)
    run.join("b")
    run.passes(5.0)
    run.passes(100.0)
    assert time_of(run) == {"waiting": 10.0, "forming": 5.0, "running": 100.0}
    assert restarts_of(run) == {}


def test_a_restart_counts_from_the_failure_to_the_start_and_under_its_cause():
    run = running("2", "a", "b", max_restarts=3)
    run.passes(60.0)
    run.fails("a")
    run.passes(2.0)
    run.join("a", "b")
    run.passes(60.0)
    assert time_of(run) == {"running": 120.0, "restarting": 2.0}
    assert restarts_of(run) == {"worker_failure": 2.0}


def test_a_lost_node_that_is_needed_is_waited_for_and_all_of_it_was_lost_by_its_loss():
    run = running("2", "a", "b")
    run.is_lost("b")
    lost_at = run.now
    run.passes(30.0)
    assert restarts_of(run) == {"node_lost": 30.0}, "as far as it goes"
    run.join("a")
    run.passes(5.0)
    run.join("c")
    assert run.now - lost_at == 35.0
    assert time_of(run)["waiting"] == 35.0
    assert restarts_of(run) == {"node_lost": 35.0}


def test_a_failure_that_turns_out_to_be_a_loss_is_put_down_to_the_loss():
    run = running("1:2", "a", "b", max_restarts=3)
    run.fails("a")
    run.passes(1.0)
    run.leaves("b")
    run.join("a")
    assert restarts_of(run) == {"node_left": 1.0}


@pytest.mark.parametrize("compacted", [False, True], ids=["the records", "a snapshot"])
def test_the_ledger_survives_a_restart_of_the_server(compacted):
    run = running("2", "a", "b", max_restarts=3)
    run.passes(60.0)
    run.fails("a")
    run.passes(3.0)
    before = time_of(run)
    (run.restarts_from_a_snapshot if compacted else run.restarts)()
    assert time_of(run) == before == {"running": 60.0, "restarting": 3.0}


def test_the_ledger_of_an_ended_run_stands_still():
    run = running("1", "a")
    run.passes(60.0)
    run.succeeds("a")
    run.passes(60.0)
    assert time_of(run) == {"running": 60.0}


def test_a_snapshot_of_a_server_that_kept_no_ledger_still_sums_up_to_the_age():
    run = running("1", "a")
    run.run.time = type(run.run.time)()
    machine = RunMachine(RunCreated("run", 1, explicit=True, settings=run.settings), 0.0, RETENTION_S)
    for part in snapshot.take(run.run):
        machine.replay(part, 0.0)
    time_s = time_ledger.view(machine.run, 50.0)
    assert time_s.running + time_s.forming + time_s.restarting + time_s.waiting == 50.0


def parts_of(run: Scenario) -> dict[str, float]:
    time_s = time_ledger.view(run.run, run.now)
    parts = {name: getattr(time_s, name) for name in ("training", *time_ledger.PARTS)}
    assert sum(parts.values()) == pytest.approx(time_s.running)
    return {name: seconds for name, seconds in parts.items() if seconds}


def test_work_since_the_last_checkpoint_is_lost_with_a_failure_and_checkpoints_took_their_time():
    run = running("1", "a", max_restarts=3)
    run.passes(60.0)
    run.tells("a", highest_step=55, step_s=1.0, checkpoint_step=40, checkpoint_s=5.0)
    assert parts_of(run) == {"training": 55.0, "checkpointing": 5.0}
    run.passes(3.0)
    run.fails("a")
    assert parts_of(run) == {"training": 40.0, "checkpointing": 5.0, "lost": 18.0}
    run.passes(7.0)
    assert time_ledger.view(run.run, run.now).ettr == round(40 / 70, 4)


def test_a_later_round_that_saved_nothing_lost_what_it_did_since_the_checkpoint_before():
    run = running("1", "a", max_restarts=3)
    run.passes(50.0)
    run.tells("a", highest_step=50, step_s=1.0, checkpoint_step=50)
    run.fails("a")
    run.join("a")
    run.passes(20.0)
    run.tells("a", highest_step=70, step_s=1.0)
    run.fails("a")
    assert parts_of(run) == {"training": 50.0, "lost": 20.0}


def test_a_standstill_before_a_failure_was_detecting():
    run = running("1", "a", max_restarts=3)
    run.passes(700.0)
    run.tells("a", highest_step=99, step_s=1.0, age_s=601.0, checkpoint_step=99)
    run.fails("a")
    assert parts_of(run) == {"training": 99.0, "detecting": 600.0, "lost": 1.0}


def test_a_lost_node_was_missed_since_it_was_heard_last_but_a_restart_that_was_asked_for_was_not_noticed():
    run = running("1:2", "a", "b", lease_s=10.0)
    run.passes(5.0)
    run.renews("a", "b")
    run.passes(5.0)
    run.renews("a")
    run.passes(5.0)
    assert run.ledger() == [] and parts_of(run) == {"training": 5.0, "detecting": 10.0}
    run.join("a")
    run.passes(8.0)
    run.tells("a", highest_step=9, step_s=0.1, age_s=5.0)
    run.leaves("a")
    assert parts_of(run)["detecting"] == 10.0


def test_a_standstill_is_shown_while_it_is_believed_to_be_a_hang_and_entered_when_that_ends_the_round():
    run = running("1", "a", max_restarts=3)
    run.passes(60.0)
    run.tells("a", highest_step=40, step_s=1.0, age_s=20.0, checkpoint_step=40, checkpoint_s=10.0)
    assert parts_of(run) == {"training": 50.0, "checkpointing": 10.0}, "an evaluation may take as long"
    run.suspects("a", 0)
    before = {"training": 31.0, "checkpointing": 10.0, "detecting": 19.0}
    assert parts_of(run) == before
    assert time_ledger.view(run.run, run.now).ettr == round(31 / 60, 4)
    assert time_ledger.entered(run.run, run.now)["detecting"] == 19.0
    run.restarts()
    assert parts_of(run) == {"training": 60.0}, "what the workers tell is a sign"
    run.tells("a", highest_step=40, step_s=1.0, age_s=20.0, checkpoint_step=40, checkpoint_s=10.0)
    assert parts_of(run) == before
    run.passes(EXAMINED_WITHIN_S)
    assert run.stage is Stage.FORMING
    assert parts_of(run) == before | {"training": 30.0, "detecting": 19.0 + EXAMINED_WITHIN_S, "lost": 1.0}


def test_a_standstill_that_ends_by_itself_was_training_and_no_counter_goes_back():
    run = running("1", "a", on_hang="report")
    run.passes(60.0)
    run.tells("a", highest_step=40, step_s=1.0, age_s=20.0, checkpoint_s=10.0)
    counted = time_ledger.counted(run.run, run.now)
    run.suspects("a", 0)
    assert time_ledger.standstill_s(run.run, run.now) == 19.0
    assert time_ledger.counted(run.run, run.now) == counted
    run.passes(EXAMINED_WITHIN_S)
    assert run.stage is Stage.RUNNING and time_ledger.standstill_s(run.run, run.now) == 19.0 + EXAMINED_WITHIN_S, (
        "it is reported"
    )
    run.suspects("a")
    assert time_ledger.standstill_s(run.run, run.now) == 0.0
    assert parts_of(run) == {"training": 50.0 + EXAMINED_WITHIN_S, "checkpointing": 10.0}


def test_a_success_has_lost_nothing_and_its_report_and_last_event_say_what_its_time_went_into():
    run = running("1", "a")
    run.passes(100.0)
    run.tells("a", highest_step=90, step_s=1.0, checkpoint_step=50, checkpoint_s=10.0)
    run.succeeds("a")
    told = run.directive("a").time
    assert (told.training_s, told.checkpointing_s, told.lost_s, told.ettr) == (90.0, 10.0, 0.0, 0.9)
    assert run.events[-1].time == told


@pytest.mark.parametrize("restart", ["restarts", "restarts_from_a_snapshot"])
def test_a_restart_of_the_server_loses_nothing_of_the_parts(restart):
    run = running("1", "a", max_restarts=3)
    run.passes(60.0)
    run.tells("a", highest_step=55, step_s=1.0, checkpoint_step=40, checkpoint_s=5.0)
    run.fails("a")
    before = time_ledger.view(run.run, run.now)
    getattr(run, restart)()
    assert time_ledger.view(run.run, run.now) == before and before.lost == 15.0


def test_the_page_has_the_parts_of_a_round_that_lasts():
    """The page shows the time that is entered for the round, and the time since, which counts as running."""
    run = running("2", "a", "b", max_restarts=3)
    run.passes(60.0)
    run.tells("a", highest_step=55, step_s=1.0, checkpoint_step=40, checkpoint_s=5.0)
    shown = time_ledger.entered(run.run, run.now)
    shown["running"] += run.now - run.run.time.since
    assert {word: seconds for word, seconds in shown.items() if seconds} == {"running": 55.0, "checkpointing": 5.0}
