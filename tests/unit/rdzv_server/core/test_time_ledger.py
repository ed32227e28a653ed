"""What a run's time has gone into."""

import pytest

from rdzv_server.core import snapshot, time_ledger
from rdzv_server.core.events import RunCreated
from rdzv_server.core.machine import RunMachine
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
