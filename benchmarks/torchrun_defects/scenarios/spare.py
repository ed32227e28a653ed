"""A spare node waits beside a run of two, which succeeds."""

import re

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage


def observe(stage: Stage, launcher: Launcher) -> Observation:
    run = Run(stage, launcher, nnodes="2")
    run.form("ab")
    run.start("c")
    spare = run.agents["c"]
    stage.expect(lambda: launcher.standing_by in spare.text(), "a spare")
    well, ended = run.finish("abc")
    errors = re.findall(r"(\w+Error): ", spare.text())
    return Observation(well, "; ".join([ended, *(f"the spare after {error}" for error in errors[-1:])]))
