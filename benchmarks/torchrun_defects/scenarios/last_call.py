"""A worker crashes in a run that has room for more nodes than it has. Nobody new is there to be waited for."""

import os
import signal
import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

LAST_CALL_S = 5.0
"""For both; by default it is 30 s for both."""
LIMIT_S = 60.0


def observe(stage: Stage, launcher: Launcher) -> Observation:
    run = Run(stage, launcher, nnodes="1:2", last_call_s=LAST_CALL_S)
    (worker,) = run.form("a")
    killed_s = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    if not stage.until(lambda: run.round("a", "started", killed_s), LIMIT_S):
        return Observation(False, f"no new worker within {LIMIT_S:g} s")
    took_s = run.round("a", "started", killed_s)[0].at_s - killed_s
    well, ended = run.finish("a")
    return Observation(
        well and took_s < LAST_CALL_S / 2,
        f"a new worker after {{took}}, with a last call of {LAST_CALL_S:g} s; {ended}",
        took_s,
    )
