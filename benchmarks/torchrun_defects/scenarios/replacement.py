"""A node of two is lost, and another one starts in its place."""

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.scenarios.scale_up import joined
from benchmarks.torchrun_defects.stage import Stage


def observe(stage: Stage, launcher: Launcher) -> Observation:
    """Under torchrun the lost one is not the store's host."""
    run = Run(stage, launcher, nnodes="2", kind="together")
    run.form("ab", "stepped")
    lost_s = run.lose("b")
    run.start("c")
    return joined(run, "ac", lost_s)
