"""From the moment when a host falls silent to the first line of the survivor's new workers, 1:2.

SIGSTOP takes the agent and its workers: their connections stay open, and nothing comes from them any more.
"""

import signal
import time

from benchmarks.cluster import Cluster
from benchmarks.floors import bare
from benchmarks.launchers import NPROC, Launcher, NodeAgent
from benchmarks.lost_agent import ALL, CAP_S, SETTLE_S, survivors_s
from benchmarks.scenario import Scenario
from benchmarks.stage import Stage

LEASE_S = 2


def _fall_silent(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2")
        time.sleep(SETTLE_S)
        return [survivors_s(stage, cluster.lose(1, signal.SIGSTOP))]


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
