"""Lines that a person reads on the agent's console."""

import pytest
from rdzv_protocol.messages import RunningTime, RunTime

from node_agent.core.wording import account, failed, finished, started
from tests.unit.node_agent.story import a_failure, an_assignment, finish

SUCCEEDED = "run succeeded: all workers of 3 nodes exited 0"
FAILED = "worker rank 3 (local rank 1, pid 77) on node a failed: "


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            started(an_assignment(7, max_restarts=6)),
            "round 7: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40007, restart 6 of 6",
        ),
        (
            started(an_assignment(7, max_restarts=3)),  # within --restart-window
            "round 7: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40007, restart 6",
        ),
        (
            started(an_assignment(local_world_size=1)),
            "round 1: node 1 of 3, rank 2 of 10, master 10.0.0.1:40001, restart 0 of 3",
        ),
        (failed(a_failure(cause="signal 9 (SIGKILL)")), f"{FAILED}signal 9 (SIGKILL)"),
        (failed(a_failure(error="ValueError: boom")), f"{FAILED}exit code 5: ValueError: boom"),
        (finished(finish()), SUCCEEDED),
        (finished(finish(restart_total=1)), f"{SUCCEEDED}; 1 restart, none of them charged"),
        (finished(finish(restart_total=1, charged_restarts=1)), f"{SUCCEEDED}; 1 restart, 1 of them charged"),
        (finished(finish(restart_total=5, charged_restarts=2)), f"{SUCCEEDED}; 5 restarts, 2 of them charged"),
        (
            account(RunTime(training_s=90.0, lost_s=8.04, restarting_s=1.96, ettr=0.9)),
            "the run took 100.0 s: 90.0 s training, 8.0 s lost, 2.0 s restarting; effective training time ratio 0.900",
        ),
        (
            account(RunTime(training_s=172_800.0, checkpointing_s=7_200.0, forming_s=150.0, ettr=0.96)),
            "the run took 2.1 d: 2.0 d training, 2.0 h checkpointing, 2.5 min forming; "
            "effective training time ratio 0.960",
        ),
        (
            account(RunTime(training_s=40.0, starting_s=10.0, ettr=0.8)),
            "the run took 50.0 s: 40.0 s training, 10.0 s starting; effective training time ratio 0.800",
        ),
        (
            account(RunningTime(running_s=6.2, detecting_s=12.0, restarting_s=0.3)),
            "the run took 18.5 s: 6.2 s running, 12.0 s detecting, 0.3 s restarting",
        ),
        (finished(finish(succeeded=False, failure=a_failure())), "run failed: spent"),
    ],
)
def test_a_line(line, text):
    assert line == text
