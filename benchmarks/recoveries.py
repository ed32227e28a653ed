"""Recoveries after a killed worker and after a lost, silent, new or replaced node; start of many agents.

They are measured to the first line of the new workers. To lose a node is SIGKILL of its agent and then of its workers,
which would otherwise outlive torchrun's agent. The lost node is never the host of torchrun's store, whose end would end
that run.
"""

import os
import signal
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.cluster import AGENTS, Cluster
from benchmarks.floors import bare, bare_with_torch
from benchmarks.launchers import (
    NPROC,
    STOCK,
    TORCHRUN_ETCD,
    TORCHRUN_LEAST_TIMERS,
    TORCHRUN_OWN_STORE,
    Launcher,
    NodeAgent,
    Plan,
    torch_is_installed,
)
from benchmarks.results import NEVER, Row
from benchmarks.scenario import Scenario
from benchmarks.stage import NOTICING_WORKER, TORCH_WORKER, WORKER, Stage, last

CAP_S = 60.0
SETTLE_S = 1.0
"""Seconds that the new workers must run until the restart counts as complete."""
WITH_DEFAULT_TIMERS = (STOCK.name, TORCHRUN_OWN_STORE.name, TORCHRUN_ETCD.name)
ALL = (*WITH_DEFAULT_TIMERS, TORCHRUN_LEAST_TIMERS.name)

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


KILLS_OF_A_RUN = 5


def kills(
    launcher: Launcher, wanted: int, *, script: str = WORKER, nnodes: str = str(AGENTS), last_call_s: int | None = None
) -> list[float]:
    """Return the times of a few recoveries in one run; fewer if it does not recover."""
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

ELASTIC_LAST_CALL_S = 2
"""Last call of our runs below the maximum, instead of 30 s, since a restart would wait for it."""


def _elastic(launcher: Launcher, wanted: int) -> list[float]:
    last_call_s = ELASTIC_LAST_CALL_S if isinstance(launcher, NodeAgent) else None
    return kills(launcher, wanted, nnodes=f"{AGENTS}:{2 * AGENTS}", last_call_s=last_call_s)


ELASTIC = Scenario(
    measurement="worker killed, elastic 2:4 with two nodes",
    sample=_elastic,
    floor=bare(AGENTS * NPROC),
    bar=0.1,
    repeat=5,
    has_least_timers=True,
    slow=WITH_DEFAULT_TIMERS,
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


def measure_warm(plan: Plan) -> list[Row]:
    """Measure recoveries of workers with torch; no rows if torch is not installed."""
    return WARM.measure(plan) if torch_is_installed() else []


# Changes of membership.

DISCONNECT_GRACE_S = 1.0
"""Default of node-agent."""


def lose(launcher: Launcher, script: str) -> float:
    with Stage(script) as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        killed_s = cluster.lose(1)
        return new_workers_s(stage, 1, killed_s)


def new_workers_s(stage: Stage, nodes: int, since_s: float) -> float:
    """Return the seconds until the new workers of this number of nodes run and continue to run."""
    try:
        return last(stage.new_lines(nodes * NPROC, since_s, CAP_S, SETTLE_S)) - since_s
    except TimeoutError:
        return NEVER


def _scenario(measurement: str, script: str, bar: float, slow: Sequence[str]) -> Scenario:
    return Scenario(
        measurement=measurement,
        sample=lambda launcher, wanted: [lose(launcher, script)],
        floor=bare(NPROC),
        bar=bar,
        repeat=5,
        has_least_timers=True,
        slow=slow,
        cap=CAP_S,
    )


NOTICED = _scenario("node killed, 1:2, workers notice", NOTICING_WORKER, 0.15, WITH_DEFAULT_TIMERS)
UNNOTICED = _scenario("node killed, 1:2, workers do not notice", WORKER, DISCONNECT_GRACE_S + 0.15, ALL)


LEASE_S = 2


def _fall_silent(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        return [new_workers_s(stage, 1, cluster.lose(1, signal.SIGSTOP))]


SILENT = Scenario(
    measurement=f"host silent, 1:2, --lease {LEASE_S}",
    sample=_fall_silent,
    floor=bare(NPROC),
    bar=LEASE_S + 0.2,
    repeat=5,
    ours=NodeAgent(flags=("--lease", str(LEASE_S))),
    has_least_timers=True,
    slow=ALL,
    cap=CAP_S,
)


ONE_NODE_LAST_CALL_S = 1
"""Last call of one node of two, instead of 30 s. The measured restart has all nodes and no last call."""


def _scale_up(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2", agents=1, last_call_s=ONE_NODE_LAST_CALL_S)
        time.sleep(SETTLE_S)
        return [new_workers_s(stage, AGENTS, cluster.start_agent(1).started_s)]


def _replace(launcher: Launcher, wanted: int) -> list[float]:
    """Replace a lost node whose workers notice the loss. The launcher sees the new agent as another node."""
    with Stage(NOTICING_WORKER) as stage:
        cluster = Cluster(stage, launcher, nnodes="2")
        time.sleep(SETTLE_S)
        cluster.lose(1)
        return [new_workers_s(stage, AGENTS, cluster.start_agent(AGENTS).started_s)]


SCALE_UP = Scenario(
    measurement="scale-up, 1:2",
    sample=_scale_up,
    floor=bare(AGENTS * NPROC),
    bar=0.35,
    repeat=5,
    torchrun_repeat=2,
    has_least_timers=True,
    slow=(STOCK.name,),
    cap=CAP_S,
)
REPLACEMENT = Scenario(
    measurement="lost node replaced, 2:2",
    sample=_replace,
    floor=bare(AGENTS * NPROC),
    bar=0.5,
    repeat=5,
    has_least_timers=True,
    slow=WITH_DEFAULT_TIMERS,
    cap=CAP_S,
)
