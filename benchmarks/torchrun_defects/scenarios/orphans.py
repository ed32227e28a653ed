"""An agent is killed with SIGKILL, as the kernel does where memory runs out. Its workers should not outlive it."""

import signal
import time

from benchmarks.procfs import is_running
from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import alone
from benchmarks.torchrun_defects.stage import Stage

LIMIT_S = 3.0
NPROC = 2


def observe(stage: Stage, launcher: Launcher) -> Observation:
    agent = alone(stage, launcher, nproc=NPROC)
    stage.expect(lambda: len(stage.heard("started")) == NPROC, "workers")
    pids = [report.pid for report in stage.heard("started")]
    killed_s = time.monotonic()
    agent.signal(signal.SIGKILL)
    gone = stage.until(lambda: not any(map(is_running, pids)), LIMIT_S)
    took_s = time.monotonic() - killed_s
    if gone:
        return Observation(True, "both workers are gone after {took}", took_s)
    left = sum(map(is_running, pids))
    return Observation(False, f"{left} of {NPROC} workers still run after {LIMIT_S:g} s", figures={"left": left})
