"""What a person reads on the agent's console."""

import pytest

from node_agent.core import wording
from tests.unit.node_agent.story import a_failure, an_assignment, finish


def test_a_node_with_several_workers_names_its_first_and_last_rank():
    assert wording.started(an_assignment(7)) == (
        "round 7: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40007, restart 6 of 3"
    )


def test_a_node_with_one_worker_names_its_rank():
    assert ", rank 2 of 10, " in wording.started(an_assignment(local_world_size=1))


def test_a_failure_says_which_worker_where_and_how():
    assert wording.failed(a_failure(cause="signal 9 (SIGKILL)")) == (
        "worker rank 3 (local rank 1, pid 77) on node a failed: signal 9 (SIGKILL)"
    )


def test_a_success_is_one_line():
    assert wording.finished(finish()) == "run succeeded: all workers of 3 nodes exited 0"


@pytest.mark.parametrize(
    ("total", "charged", "words"),
    [
        (1, 0, "1 restart, none of them charged"),
        (1, 1, "1 restart, 1 of them charged"),
        (5, 2, "5 restarts, 2 of them charged"),
    ],
)
def test_a_success_after_restarts_says_how_many(total, charged, words):
    end = finish(restart_total=total, charged_restarts=charged)
    assert wording.finished(end) == f"run succeeded: all workers of 3 nodes exited 0; {words}"


def test_a_failed_end_says_why():
    assert wording.finished(finish(succeeded=False, failure=a_failure())) == "run failed: spent"


def test_a_failure_says_with_which_error():
    assert wording.failed(a_failure(error="ValueError: boom")).endswith(" failed: exit code 5: ValueError: boom")
