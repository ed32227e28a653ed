"""A node is lost while the other one's workers wait for nothing from it."""

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

LIMIT_S = 30.0
"""Ten times what torchrun's keep-alives take here."""


def observe(stage: Stage, launcher: Launcher) -> Observation:
    run = Run(stage, launcher, nnodes="1:2")
    run.form("ab")
    lost_s = run.lose("b")
    if not stage.until(lambda: run.round("a", "started", lost_s), LIMIT_S):
        return Observation(False, f"unnoticed for {LIMIT_S:g} s: node a's worker stays in a world of 2")
    took_s = run.round("a", "started", lost_s)[0].at_s - lost_s
    well, ended = run.finish("a")
    return Observation(well, f"node a goes on alone after {{took}}; {ended}", took_s)
