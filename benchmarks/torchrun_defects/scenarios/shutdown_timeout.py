"""A restart, where the other worker ignores SIGTERM and `--shutdown-timeout 2` is asked for."""

import os
import signal
import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import alone
from benchmarks.torchrun_defects.stage import Stage

ASKED_S = 2
RIGHT_S = 10.0
LIMIT_S = 60.0
NPROC = 2


def observe(stage: Stage, launcher: Launcher) -> Observation:
    alone(
        stage, launcher, "--shutdown-timeout", str(ASKED_S), "--max-restarts", "1", nproc=NPROC, kind="deaf",
        environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(ASKED_S)},
    )  # fmt: skip
    stage.expect(lambda: len(stage.heard("started")) == NPROC, "workers")
    killed_s = time.monotonic()
    os.kill(stage.heard("started")[0].pid, signal.SIGKILL)
    if not stage.until(lambda: len(stage.heard("started", killed_s)) == NPROC, LIMIT_S):
        return Observation(False, f"no new workers within {LIMIT_S:g} s")
    took_s = max(report.at_s for report in stage.heard("started", killed_s)) - killed_s
    return Observation(took_s < RIGHT_S, f"new workers after {{took}}, {ASKED_S} s asked for", took_s)
