"""A third node arrives at a run of two to three."""

import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation, codes
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

LIMIT_S = 90.0
"""torchrun gives up after the 60 s that it waits for a key of its store."""


def observe(stage: Stage, launcher: Launcher) -> Observation:
    run = Run(stage, launcher, nnodes="2:3", kind="together")
    run.form("ab", "stepped")
    began_s = time.monotonic()
    run.start("c")
    return joined(run, "abc", began_s)


def joined(run: Run, names: str, began_s: float) -> Observation:
    """Whether these nodes' workers come to step together, and then end well."""
    run.stage.until(lambda: run.round(names, "stepped", began_s) or run.have_ended(names), LIMIT_S)
    reports = run.round(names, "stepped", began_s)
    if not reports:
        ended = run.exit_codes(names, within_s=0)
        took_s = time.monotonic() - began_s
        return Observation(False, f"no step together; agents' exit codes {codes(ended)} after {{took}}", took_s)
    took_s = max(report.at_s for report in reports) - began_s
    well, ended_in_words = run.finish(names)
    return Observation(well, f"{len(names)} nodes step together after {{took}}; {ended_in_words}", took_s)
