"""One of four workers is killed. That should be one restart."""

import os
import signal
import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation, codes
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

LIMIT_S = 60.0
SETTLE_S = 3.0
"""The workers must stay for this long: a restart that follows another comes within a second or two."""
NPROC = 2


def observe(stage: Stage, launcher: Launcher) -> Observation:
    run = Run(stage, launcher, nnodes="2", nproc=NPROC, kind="together")
    workers = run.form("ab", "stepped")
    killed_s = time.monotonic()
    os.kill(next(worker.pid for worker in workers if worker.rank == 2 * NPROC - 1), signal.SIGKILL)
    recovered = stage.until(lambda: _steady(run, killed_s) or run.have_ended("ab"), LIMIT_S)
    starts = _starts(run, killed_s)
    if not recovered:
        restarts = "several restarts, and" if starts > 1 else "one restart, but"
        return Observation(False, f"{restarts} not steady within {LIMIT_S:g} s", figures={"starts": starts})
    if run.have_ended("ab"):
        ended = codes(run.exit_codes("ab", within_s=0))
        return Observation(
            False, f"the run ends after {starts} starts: agents exit {ended}", figures={"starts": starts}
        )
    took_s = max(report.at_s for report in run.round("ab", "stepped", killed_s)) - killed_s
    well, ended = run.finish("ab")
    return Observation(
        well and starts == 1,
        f"{starts} restart{'s' * (starts != 1)}, all step together after {{took}}; {ended}",
        took_s,
        {"starts": starts},
    )


def _steady(run: Run, since_s: float) -> bool:
    """Whether all four step together, and nobody has started for a while."""
    steps = run.round("ab", "stepped", since_s)
    latest_s = max((report.at_s for report in run.stage.heard("started", since_s)), default=0.0)
    return bool(steps) and time.monotonic() - max(latest_s, *(s.at_s for s in steps)) > SETTLE_S


def _starts(run: Run, since_s: float) -> int:
    """How often the rank that was started most often has been."""
    ranks = [report.rank for report in run.stage.heard("started", since_s)]
    return max((ranks.count(rank) for rank in set(ranks)), default=0)
