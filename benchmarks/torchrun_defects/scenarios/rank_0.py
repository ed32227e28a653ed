"""The node of rank 0 is lost, of a run that may go on with one node."""

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation, codes
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

LIMIT_S = 60.0


def observe(stage: Stage, launcher: Launcher) -> Observation:
    """Under torchrun that is also the store's host."""
    run = Run(stage, launcher, nnodes="1:2")
    workers = run.form("ab")
    lost = next(worker.node for worker in workers if worker.group_rank == 0)
    other = "b" if lost == "a" else "a"
    lost_s = run.lose(lost)
    stage.until(lambda: run.round(other, "started", lost_s) or run.have_ended(other), LIMIT_S)
    new = run.round(other, "started", lost_s)
    if not new:
        ended = codes(run.exit_codes(other, within_s=0))
        return Observation(False, f"the other node's agent does not go on: exit code {ended}")
    well, ended = run.finish(other)
    took_s = new[0].at_s - lost_s
    return Observation(well, f"the other node goes on after {{took}}; {ended}", took_s)
