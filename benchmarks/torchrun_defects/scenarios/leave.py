"""An agent of two is told to go with SIGTERM, as a node is that is about to be preempted."""

import signal
import time

from benchmarks.torchrun_defects.launchers import KEEP_ALIVE_S, KEEP_ALIVES, Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage

SOONEST_S = KEEP_ALIVE_S * (KEEP_ALIVES - 1)
"""Before this, no keep-alive of the one that left can have run out: what happens by then, it said itself."""
LIMIT_S = 60.0


def observe(stage: Stage, launcher: Launcher) -> Observation:
    """The other node's worker notices at once, in its collective: only the launcher holds it up."""
    run = Run(stage, launcher, nnodes="1:2", kind="together")
    run.form("ab", "stepped")
    told_s = time.monotonic()
    run.agents["b"].signal(signal.SIGTERM)
    if not stage.until(lambda: run.round("a", "started", told_s), LIMIT_S):
        return Observation(False, f"node a does not go on alone within {LIMIT_S:g} s")
    (new,) = run.round("a", "started", told_s)
    took_s = new.at_s - told_s
    well, ended = run.finish("a")
    return Observation(
        well and took_s < SOONEST_S,
        f"node a goes on alone after {{took}}, restart count {new.restart_count}; {ended}",
        took_s,
        {"restart_count": new.restart_count},
    )
