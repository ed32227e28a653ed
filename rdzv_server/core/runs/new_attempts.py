"""New attempts: whether a join begins another attempt of its run.

The server remembers a succeeded run for the retention time. Meanwhile it refuses a late agent with the run's explicit
id, unless the agent has `--rerun`, which starts the run again. If such an agent has another command, the refusal says
so, and not that the run has succeeded. It also refuses such an agent if an operator has stopped the run. Otherwise a
late node, or one that a scheduler restarts, would start the run again. After a failure, or without an explicit run id,
a new agent begins a new attempt.

If every node has left the run, an agent also begins a new attempt if it names no run id, or asks for other settings. If
all agents are silent instead (see `silent_runs`), several nodes may still be alive. So an agent without a run id begins
one only on a node of the run, or if the run has one node.
"""

from rdzv_protocol.errors import RunFailed, RunStopped, RunSucceeded
from rdzv_protocol.messages import JoinRequest

from rdzv_server.core.kernel import admission
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.words import attempts, runs


def starts_new_attempt(run: Run, join: JoinRequest, now: float) -> bool:
    """Return whether the join begins another attempt after this one. Raises `RunSucceeded`, `RunFailed` or `RunStopped`
    if it must not.
    """
    if (join.returning or join.unfit) and run.stage.is_end:  # it has no place, and learns how the run ended
        end = RunSucceeded if run.stage is Stage.SUCCEEDED else RunFailed
        raise end(runs.ended(run.run_id, run.stage, run.end_reason))
    if join.returning or (run.set_apart and not run.stage.is_end):
        return False
    if run.stage.is_end:
        is_late = run.explicit and join.explicit_run_id and not join.rerun
        if is_late and run.stage is Stage.SUCCEEDED:
            admission.check_program(run, join)
            admission.check_command(run, join)
            raise RunSucceeded(attempts.already_succeeded(run.run_id, run.end_reason))
        if is_late and run.is_stopped:
            raise RunStopped(attempts.was_stopped(run.run_id, run.end_reason))
        return True
    if run.agents:
        if not run.leases.uncertain:
            return False  # nearly always
        is_deserted = join.node_id in run.node_ids or len(run.seats) <= 1
        are_gone = run.unheard_since is not None or run.leases.are_gone(now)
    else:
        is_deserted, are_gone = bool(run.departures), True  # else only unfit nodes have come so far
    return are_gone and ((is_deserted and not join.explicit_run_id) or bool(admission.conflicts(run, join)))
