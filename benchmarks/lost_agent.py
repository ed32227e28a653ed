"""From the SIGKILL of a node to the first line of the survivor's new workers, 1:2.

The agent is killed and then its workers, which torchrun's would outlive. It is not the one that hosts torchrun's store,
whose end would end that run.
"""

import time
from collections.abc import Sequence

from benchmarks.arrivals import last
from benchmarks.cluster import Cluster
from benchmarks.floors import bare
from benchmarks.launchers import NPROC, STOCK, TORCHRUN_ETCD, TORCHRUN_LEAST_TIMERS, TORCHRUN_OWN_STORE, Launcher
from benchmarks.results import NEVER
from benchmarks.scenario import Scenario
from benchmarks.stage import NOTICING_WORKER, WORKER, Stage

DISCONNECT_GRACE_S = 1.0
"""node-agent's default."""
CAP_S = 60.0
SETTLE_S = 1.0


def lose(launcher: Launcher, script: str) -> float:
    with Stage(script) as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        killed_s = cluster.lose(1)
        return survivors_s(stage, killed_s)


def survivors_s(stage: Stage, since_s: float) -> float:
    """Seconds until one node's new workers are there and stay."""
    try:
        return last(stage.new_lines(NPROC, since_s, CAP_S, SETTLE_S)) - since_s
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
