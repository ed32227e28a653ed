"""What a restart costs, and what ends a run."""

import pytest
from rdzv_protocol.errors import AgentFenced, StaleRound
from rdzv_protocol.messages import Finish, Start, Stop, Wait

from rdzv_server.core.run import HISTORY, Stage
from tests.support.scenario import durable, running

NODES = ("a", "b", "c")


def rejoin_all(run):
    run.join(*list(run.run.stopping))


# One charge a round.


def test_a_failure_stops_every_node_in_the_same_instant():
    run = running("3", *NODES, max_restarts=1)
    run.fails("b", exit_code=3)
    assert run.told(Stop) == set(NODES)
    assert set(run.woken()) == set(NODES)
    assert run.directive("a") == Stop(round=1, reason="worker rank 1 on node b failed: exit code 3")


def test_a_failure_is_charged_once_the_next_round_completes():
    run = running("3", *NODES, max_restarts=1)
    run.fails("b")
    assert run.run.restart_count == 0
    rejoin_all(run)
    assert run.run.restart_count == 1
    assert {run.assignment(name).restart_count for name in NODES} == {1}
    assert run.ledger() == [("worker_failure", True)]


def test_a_round_is_charged_once_however_many_workers_fail():
    run = running("3", *NODES, max_restarts=1)
    for name in NODES:
        run.fails(name)
    rejoin_all(run)
    assert run.run.restart_count == 1
    assert run.told(Start) == set(NODES)


def test_a_repeated_report_counts_once():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    before = durable(run.run)
    run.fails("a")
    assert durable(run.run) == before
    assert run.run.failures_by_node == {"a": 1}


def test_each_failed_round_is_charged():
    run = running("2", "a", "b", max_restarts=3)
    for count in (1, 2, 3):
        run.fails("a")
        rejoin_all(run)
        assert run.run.restart_count == count


# The end of the budget.


def test_a_spent_budget_fails_the_run_everywhere_at_once():
    run = running("2", "a", "b", max_restarts=1)
    run.join("spare")
    run.fails("a")
    rejoin_all(run)
    run.fails("b", exit_code=-9, cause="signal 9 (SIGKILL)")
    assert run.stage is Stage.FAILED
    assert run.told(Finish) == {"a", "b", "spare"} == set(run.woken())
    finish = run.directive("spare")
    assert not finish.succeeded
    assert finish.reason == ("worker rank 1 on node b failed: signal 9 (SIGKILL); no restarts left: 1 of 1 used")


def test_without_restarts_the_first_failure_ends_the_run():
    run = running("1", "a")
    run.fails("a", exit_code=7)
    assert run.reason("a") == "worker rank 0 on node a failed: exit code 7; no restarts left: 0 of 0 used"


def test_the_end_brings_the_failures_evidence_to_every_node():
    run = running("2", "a", "b")
    run.fails("b")
    failure = run.directive("a").failure
    assert failure.node_id == "b"
    assert failure.stderr_tail == ("Traceback", "Boom on b")


def test_the_first_failure_of_the_whole_run_is_remembered_beside_the_last():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    rejoin_all(run)
    run.fails("b")
    assert run.run.first_failure.failure.node_id == "a"
    assert run.run.end_failure.node_id == "b"


def test_a_failure_that_follows_from_the_first_is_not_blamed():
    run = running("3", *NODES, max_restarts=1, fatal_exit_codes=(42,))
    run.fails("a")
    run.fails("b", exit_code=42)
    assert run.stage is Stage.FAILED
    assert run.run.end_failure.node_id == "a"


# Fatal exit codes.


def test_a_fatal_exit_code_fails_the_run_whatever_the_budget():
    run = running("2", "a", "b", max_restarts=10, fatal_exit_codes=(42,))
    run.fails("a", exit_code=42)
    assert run.stage is Stage.FAILED
    assert run.reason("b") == "worker rank 0 on node a failed: exit code 42; exit code 42 is fatal for this run"


def test_a_fatal_exit_code_is_fatal_while_the_round_stops_already():
    run = running("2", "a", "b", max_restarts=10, fatal_exit_codes=(42,))
    run.fails("a")
    run.fails("b", exit_code=42)
    assert run.reason("a") == "worker rank 1 on node b failed: exit code 42; exit code 42 is fatal for this run"


# Membership changes are free.


@pytest.mark.parametrize("go", ["is_lost", "leaves"])
def test_a_departure_is_not_charged(go):
    run = running("1:3", *NODES)
    getattr(run, go)("b")
    rejoin_all(run)
    assert run.participants() == ["a", "c"]
    assert run.run.restart_count == 0
    assert run.ledger() == [("node_lost" if go == "is_lost" else "node_left", False)]


def test_an_arrival_is_not_charged():
    run = running("1:2", "a")
    run.join("b")
    rejoin_all(run)
    assert run.participants() == ["a", "b"]
    assert run.ledger() == [("node_arrived", False)]


@pytest.mark.parametrize("go", ["is_lost", "leaves"])
def test_a_failure_turns_out_to_be_a_departures_doing(go):
    run = running("1:3", *NODES, max_restarts=1)
    run.fails("a")
    getattr(run, go)("b")
    rejoin_all(run)
    assert run.run.restart_count == 0
    assert run.ledger() == [("node_lost" if go == "is_lost" else "node_left", False)]
    assert run.run.ledger[0].reason.startswith("node b l")


def test_a_restart_for_an_arrival_is_counted_as_the_departure_that_overtook_it():
    run = running("1:3", "a", "b")
    run.join("c")
    run.is_lost("b")
    rejoin_all(run)
    assert run.participants() == ["a", "c"]
    assert run.ledger() == [("node_lost", False)]


def test_a_departure_after_the_next_round_has_completed_is_a_change_of_its_own():
    run = running("1:3", *NODES, max_restarts=1)
    run.fails("a")
    rejoin_all(run)
    run.is_lost("b")
    rejoin_all(run)
    assert run.run.restart_count == 1
    assert run.ledger() == [("worker_failure", True), ("node_lost", False)]


def test_a_standby_that_goes_does_not_excuse_a_failure():
    run = running("2", "a", "b", max_restarts=1)
    run.join("spare")
    run.fails("a")
    run.leaves("spare")
    rejoin_all(run)
    assert run.ledger() == [("worker_failure", True)]


def test_a_failure_after_a_loss_is_the_losss_doing():
    run = running("1:3", *NODES)
    run.is_lost("b")
    run.fails("a")
    rejoin_all(run)
    assert run.participants() == ["a", "c"]
    assert run.ledger() == [("node_lost", False)]
    assert run.run.first_failure.failure.node_id == "a", "it is remembered all the same"


def test_restarts_are_counted_by_cause():
    run = running("1:3", *NODES, max_restarts=5)
    for go in ("fails", "leaves", "fails"):
        getattr(run, go)("a" if go == "fails" else "c")
        rejoin_all(run)
    assert run.run.restarts == {"worker_failure": 2, "node_left": 1}


# Stale reports.


def test_a_report_about_an_earlier_round_is_stale():
    run = running("2", "a", "b", max_restarts=5)
    run.fails("a")
    rejoin_all(run)
    before = durable(run.run)
    with pytest.raises(StaleRound, match="round 1 of run run is over for node b"):
        run.fails("b", round=1)
    with pytest.raises(StaleRound):
        run.succeeds("b", round=1)
    assert durable(run.run) == before


def test_a_report_that_its_agents_join_overtook_is_evidence_and_changes_nothing_else():
    run = running("2", "a", "b", max_restarts=5)
    run.fails("a")
    run.join("b")
    run.fails("b", round=1)
    run.fails("b", round=1)
    assert [record.agent_id for record in run.run.failures] == ["a", "b"]
    assert run.run.first_failure.agent_id == "a"
    assert run.told(Wait) == {"b"} and run.told(Stop) == {"a"}
    run.join("a")
    assert run.ledger() == [("worker_failure", True)]


def test_an_overtaken_report_of_a_fatal_exit_code_is_fatal_all_the_same():
    run = running("2", "a", "b", max_restarts=5, fatal_exit_codes=(42,))
    run.fails("a")
    run.join("b")
    run.fails("b", round=1, exit_code=42)
    assert run.stage is Stage.FAILED


def test_a_standbys_report_about_a_round_before_is_stale():
    run = running("1:2", "a", "b", max_restarts=5)
    run.fails("a")
    run.join("b")
    run.is_lost("a")
    assert run.participants() == ["b"]
    with pytest.raises(StaleRound):
        run.fails("b", round=1)


@pytest.mark.parametrize("report", ["fails", "succeeds"])
def test_a_report_from_a_stranger_or_a_departed_agent_is_fenced(report):
    run = running("1:2", "a", "b")
    run.leaves("b")
    before = durable(run.run)
    for name in ("stranger", "b"):
        with pytest.raises(AgentFenced):
            getattr(run, report)(name, round=1)
    assert durable(run.run) == before


# Memory is bounded, counters are not.


def test_the_ledger_forgets_but_the_counters_do_not():
    run = running("1", "a", max_restarts=1_000)
    for _ in range(HISTORY + 10):
        run.fails("a")
        rejoin_all(run)
    assert len(run.run.ledger) == len(run.run.failures) == HISTORY
    assert run.run.restart_count == run.run.failures_by_node["a"] == HISTORY + 10
    assert run.run.first_failure.round == 1


def test_of_a_round_where_every_node_fails_the_first_failures_are_kept():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names:
        run.fails(name)
    assert [record.agent_id for record in run.run.failures] == names[:8]
    assert sum(run.run.failures_by_node.values()) == 20
