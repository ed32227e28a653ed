"""Which of a round's failures its end is blamed on, and how long a consequence waits for its cause."""

import pytest
from rdzv_protocol.messages import Finish, Start, Stop

from rdzv_server.core.root_cause import CAUSE_WINDOW_S
from rdzv_server.core.run import Stage
from tests.support.scenario import Scenario, running

NODES = ("a", "b", "c")


def suffers(run: Scenario, name: str, **evidence) -> None:
    """A worker there ends because another one is gone."""
    run.fails(name, consequence=True, **evidence)


def blamed(run: Scenario) -> str:
    assert run.run.first_of_round
    return run.run.first_of_round.agent_id


# The root of a round.


def test_the_first_failure_is_the_root():
    run = running("3", *NODES, max_restarts=1)
    for name in NODES:
        run.fails(name)
    assert blamed(run) == "a"


def test_of_consequences_alone_the_first_is_the_root():
    run = running("3", *NODES, max_restarts=1)
    suffers(run, "b")
    suffers(run, "a")
    assert blamed(run) == "b"


def test_a_failure_of_its_own_is_the_root_though_a_consequence_was_reported_before():
    run = running("3", *NODES, max_restarts=1)
    suffers(run, "b")
    run.fails("a", error="ValueError: boom")
    run.fails("c")
    assert blamed(run) == "a"
    assert run.run.first_failure is run.run.first_of_round
    run.join(*NODES)
    assert run.run.ledger[0].reason == "worker rank 0 on node a failed: exit code 1: ValueError: boom"
    assert run.ledger() == [("worker_failure", True)]


def test_the_root_of_a_later_round_does_not_touch_the_first_failure_of_the_run():
    run = running("3", *NODES, max_restarts=5)
    suffers(run, "b")
    run.join(*NODES)
    suffers(run, "c")
    run.fails("a")
    assert blamed(run) == "a"
    assert (run.run.first_failure.agent_id, run.run.first_failure.round) == ("b", 1)


def test_the_root_of_a_large_round_is_kept_though_the_others_fill_the_record():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names[1:]:
        suffers(run, name)
    run.fails("n0")
    assert blamed(run) == "n0"
    assert "n0" in [record.agent_id for record in run.run.failures]


def test_a_departure_still_explains_what_a_cause_was_found_for():
    run = running("1:3", *NODES, max_restarts=1)
    suffers(run, "b")
    run.is_lost("c")
    run.fails("a")
    run.join("a", "b")
    assert run.ledger() == [("node_lost", False)]
    assert run.run.ledger[0].reason.startswith("node c lost")


# A run without restarts left.


def test_a_consequence_alone_does_not_end_the_run_at_once():
    run = running("3", *NODES)
    suffers(run, "b")
    assert run.stage is Stage.RUNNING
    assert run.told(Start) == set(NODES)


def test_the_cause_ends_the_run_at_once():
    run = running("3", *NODES)
    suffers(run, "b")
    run.fails("a", error="ValueError: boom")
    assert run.told(Finish) == set(NODES) == set(run.woken())
    finish = run.directive("c")
    assert finish.reason == (
        "worker rank 0 on node a failed: exit code 1: ValueError: boom; no restarts left: 0 of 0 used"
    )
    assert finish.failure.node_id == "a"
    assert [other.node_id for other in finish.others] == ["b"]


def test_without_a_cause_the_run_ends_over_the_consequence():
    run = running("3", *NODES)
    suffers(run, "b")
    run.passes(CAUSE_WINDOW_S / 2)
    suffers(run, "c")
    run.passes(CAUSE_WINDOW_S / 2 - 0.01)
    assert run.stage is Stage.RUNNING
    run.passes(0.01)
    assert run.reason("a") == "worker rank 1 on node b failed: exit code 1; no restarts left: 0 of 0 used"
    assert run.run.end_failure.node_id == "b"


def test_nobody_waits_for_a_cause_when_every_node_has_reported():
    run = running("2", "a", "b")
    suffers(run, "a")
    suffers(run, "b")
    assert run.stage is Stage.FAILED
    alone = running("1", "a")
    suffers(alone, "a")
    assert alone.stage is Stage.FAILED


def test_nobody_waits_for_the_cause_of_a_fatal_exit_code():
    run = running("2", "a", "b", fatal_exit_codes=(42,))
    suffers(run, "a", exit_code=42)
    assert run.stage is Stage.FAILED


@pytest.mark.parametrize("go", ["is_lost", "leaves"])
def test_a_departure_is_a_cause_and_makes_the_restart_free(go):
    run = running("1:2", "a", "b", disconnect_grace_s=CAUSE_WINDOW_S / 2)
    suffers(run, "b")
    getattr(run, go)("a")
    assert run.told(Stop) == {"b"}
    run.join("b")
    run.passes(10 * CAUSE_WINDOW_S)
    assert run.participants() == ["b"]
    assert run.ledger() == [("node_lost" if go == "is_lost" else "node_left", False)]


def test_an_arrival_meanwhile_is_no_way_out():
    run = running("1:4", "a", "b", scale_up_window_s=0.1)
    suffers(run, "b")
    run.join("c")
    run.passes(CAUSE_WINDOW_S)
    assert run.stage is Stage.FAILED


def test_the_work_of_the_others_is_no_success():
    run = running("2", "a", "b")
    suffers(run, "b")
    run.succeeds("a")
    assert run.stage is not Stage.SUCCEEDED
    run.passes(CAUSE_WINDOW_S)
    assert run.stage is Stage.FAILED
