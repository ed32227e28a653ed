"""After the crash of a worker: which restart count the workers of the new round read."""

import os
import signal
import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage


def observe(stage: Stage, launcher: Launcher) -> Observation:
    """The other node's worker does not notice by itself: it is between two collectives, say, or loads data."""
    run = Run(stage, launcher, nnodes="2")
    workers = run.form("ab")
    killed_s = time.monotonic()
    os.kill(next(worker.pid for worker in workers if worker.node == "b"), signal.SIGKILL)
    stage.expect(lambda: run.round("ab", "started", killed_s), "a new round")
    counts = {report.node: report.restart_count for report in run.round("ab", "started", killed_s)}
    well, ended = run.finish("ab")
    return Observation(
        well and len(set(counts.values())) == 1,
        f"`TORCHELASTIC_RESTART_COUNT` is {counts['a']} on node a and {counts['b']} on node b, where the crash was; "
        f"{ended}",
        figures={"counts": counts},
    )
