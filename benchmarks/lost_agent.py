"""From the SIGKILL of an agent to the first line of the survivor's new workers."""

import os
import signal
import time
from functools import partial

from benchmarks.arrivals import last
from benchmarks.cluster import Cluster
from benchmarks.launchers import NPROC, Launcher, NodeAgent
from benchmarks.plan import Plan, interleaved
from benchmarks.results import NEVER, Row
from benchmarks.stage import Stage

BAR_S = 1.5
CAP_S = 20.0
REPEAT = 5
SETTLE_S = 0.5


def measure(plan: Plan) -> list[Row]:
    """`--nnodes 1:2`; the agent that is killed does not host torchrun's store, which would end its run."""
    launchers = [item for item in plan.launchers() if item.name == NodeAgent.name or plan.slow_torchrun]
    subjects = {launcher.name: partial(_lose, launcher) for launcher in launchers}
    samples = interleaved(subjects, min(plan.repeat, REPEAT))
    bars = {NodeAgent.name: BAR_S}
    return [
        Row(measurement="lost agent", subject=name, unit="s", samples=taken, bar=bars.get(name), cap=CAP_S)
        for name, taken in samples.items()
    ]


def _lose(launcher: Launcher) -> float:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        killed_s = time.monotonic()
        os.kill(cluster.agents[1].pid, signal.SIGKILL)
        try:
            return last(stage.new_lines(NPROC, killed_s, CAP_S, SETTLE_S)) - killed_s
        except TimeoutError:
            return NEVER
