"""From the SIGKILL of a worker to the first line of all workers that replace it and its peers."""

import os
import signal
import time

from benchmarks.arrivals import last
from benchmarks.cluster import AGENTS, Cluster
from benchmarks.launchers import NPROC, Launcher, NodeAgent
from benchmarks.plan import Plan
from benchmarks.results import NEVER, Row
from benchmarks.stage import WORKER, Stage

BAR_MS = 150
CAP_S = 30.0
SETTLE_S = 1.0
"""How long the new workers must stay for the restart to be over."""
KILLS_OF_A_RUN = 5


def measure(plan: Plan) -> list[Row]:
    """Two agents with two workers each. The launchers' runs alternate, with a few kills in each."""
    samples: dict[str, list[float]] = {launcher.name: [] for launcher in plan.launchers()}
    while any(len(taken) < plan.repeat for taken in samples.values()):
        for launcher in plan.launchers():
            taken = samples[launcher.name]
            taken += kills(launcher, min(KILLS_OF_A_RUN, plan.repeat - len(taken)))
    bars = {NodeAgent.name: BAR_MS}
    return [
        Row(measurement="recovery", subject=name, unit="ms", samples=taken, bar=bars.get(name), cap=1e3 * CAP_S)
        for name, taken in samples.items()
    ]


def kills(launcher: Launcher, count: int, script: str = WORKER) -> list[float]:
    """The times of `count` recoveries in one run; fewer if it does not recover."""
    samples: list[float] = []
    if count == 0:
        return samples
    with Stage(script) as stage:
        workers = Cluster(stage, launcher, nnodes=str(AGENTS)).workers
        for number in range(count):
            time.sleep(SETTLE_S)
            killed_s = time.monotonic()
            os.kill(workers[number % len(workers)].pid, signal.SIGKILL)
            try:
                workers = stage.new_lines(AGENTS * NPROC, killed_s, CAP_S, SETTLE_S)
            except TimeoutError:
                return [*samples, NEVER]
            samples.append(1e3 * (last(workers) - killed_s))
    return samples
