"""Changes of membership: a lost, a silent, an arriving and a replaced node.

Measured to the first line of the new workers. A lost node is the SIGKILL of its agent and then of its workers, which
torchrun's would outlive; it is not the one that hosts torchrun's store, whose end would end that run.
"""

import signal
import time
from collections.abc import Sequence

from benchmarks.cluster import AGENTS, Cluster
from benchmarks.floors import bare
from benchmarks.launchers import (
    NPROC,
    STOCK,
    TORCHRUN_ETCD,
    TORCHRUN_LEAST_TIMERS,
    TORCHRUN_OWN_STORE,
    Launcher,
    NodeAgent,
)
from benchmarks.results import NEVER
from benchmarks.scenario import Scenario
from benchmarks.stage import NOTICING_WORKER, WORKER, Stage, last

DISCONNECT_GRACE_S = 1.0
"""node-agent's default."""
CAP_S = 60.0
SETTLE_S = 1.0


def lose(launcher: Launcher, script: str) -> float:
    with Stage(script) as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        killed_s = cluster.lose(1)
        return new_workers_s(stage, 1, killed_s)


def new_workers_s(stage: Stage, nodes: int, since_s: float) -> float:
    """Seconds until the new workers of so many nodes are there and stay."""
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


WITH_DEFAULT_TIMERS = (STOCK.name, TORCHRUN_OWN_STORE.name, TORCHRUN_ETCD.name)
ALL = (*WITH_DEFAULT_TIMERS, TORCHRUN_LEAST_TIMERS.name)
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


FORMING_LAST_CALL_S = 1
"""One node of two forms after so long, not 30 s. The restart that is measured has all nodes and waits for none."""


def _scale_up(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2", agents=1, last_call_s=FORMING_LAST_CALL_S)
        time.sleep(SETTLE_S)
        return [new_workers_s(stage, AGENTS, cluster.start_agent(1).started_s)]


def _replace(launcher: Launcher, wanted: int) -> list[float]:
    """Replace a lost node, whose workers notice. The new agent is another node to the launcher."""
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
