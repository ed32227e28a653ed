"""Recovery from a killed worker, cold and warm, and the start of many agents at once."""

import os
import signal
import time
from functools import partial

from benchmarks.cluster import AGENTS, Cluster
from benchmarks.floors import bare, bare_with_torch
from benchmarks.launchers import (
    NPROC,
    STOCK,
    TORCHRUN_ETCD,
    TORCHRUN_OWN_STORE,
    Launcher,
    NodeAgent,
    Plan,
    torch_is_installed,
)
from benchmarks.results import NEVER, Row
from benchmarks.scenario import Scenario
from benchmarks.stage import TORCH_WORKER, WORKER, Stage, last

CROWD_SIZE = 8


def _start(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes=str(CROWD_SIZE), agents=CROWD_SIZE)
        return [last(cluster.workers) - cluster.began_s]


CROWD = Scenario(
    measurement=f"launch of {CROWD_SIZE} agents, {CROWD_SIZE * NPROC} workers",
    sample=_start,
    floor=bare(CROWD_SIZE * NPROC),
    bar=0.7,
    repeat=5,
    torchrun_repeat=2,
)


CAP_S = 60.0
SETTLE_S = 1.0
"""Seconds that the new workers must stay for the restart to be over."""
KILLS_OF_A_RUN = 5


def kills(
    launcher: Launcher, wanted: int, *, script: str = WORKER, nnodes: str = str(AGENTS), last_call_s: int | None = None
) -> list[float]:
    """The times of a few recoveries in one run; fewer if it does not recover."""
    samples: list[float] = []
    with Stage(script) as stage:
        workers = Cluster(stage, launcher, nnodes, last_call_s=last_call_s).workers
        for number in range(min(wanted, KILLS_OF_A_RUN)):
            time.sleep(SETTLE_S)
            killed_s = time.monotonic()
            os.kill(workers[number % len(workers)].pid, signal.SIGKILL)
            try:
                workers = stage.new_lines(AGENTS * NPROC, killed_s, CAP_S, SETTLE_S)
            except TimeoutError:
                return [*samples, NEVER]
            samples.append(last(workers) - killed_s)
    return samples


RECOVERY = Scenario(
    measurement="worker killed, 2 × 2",
    sample=kills,
    floor=bare(AGENTS * NPROC),
    bar=0.08,
    repeat=10,
    cap=CAP_S,
)

FORMING_LAST_CALL_S = 2
"""Seconds after which ours forms below its maximum, not 30 s: a restart that waited for it would take as long."""


def _elastic(launcher: Launcher, wanted: int) -> list[float]:
    last_call_s = FORMING_LAST_CALL_S if isinstance(launcher, NodeAgent) else None
    return kills(launcher, wanted, nnodes=f"{AGENTS}:{2 * AGENTS}", last_call_s=last_call_s)


ELASTIC = Scenario(
    measurement="worker killed, elastic 2:4 with two nodes",
    sample=_elastic,
    floor=bare(AGENTS * NPROC),
    bar=0.1,
    repeat=5,
    has_least_timers=True,
    slow=(STOCK.name, TORCHRUN_OWN_STORE.name, TORCHRUN_ETCD.name),
    cap=CAP_S,
)


COLD = NodeAgent("node-agent, cold")

WARM = Scenario(
    measurement="worker killed, 2 × 2, torch imported",
    sample=partial(kills, script=TORCH_WORKER),
    floor=bare_with_torch(AGENTS * NPROC),
    bar=0.25,
    repeat=5,
    ours=NodeAgent(flags=("--preload", "torch")),
    besides=(COLD,),
    torchrun_repeat=2,
    cap=CAP_S,
)


def measure(plan: Plan) -> list[Row]:
    """Measure recoveries with torch; no rows without torch."""
    return WARM.measure(plan) if torch_is_installed() else []
