"""From the exec of eight agents, started together on this machine, to the first line of all workers."""

from benchmarks.arrivals import last
from benchmarks.cluster import Cluster
from benchmarks.floors import bare
from benchmarks.launchers import NPROC, Launcher
from benchmarks.scenario import Scenario
from benchmarks.stage import Stage

AGENTS = 8


def _start(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes=str(AGENTS), agents=AGENTS)
        return [last(cluster.workers) - cluster.began_s]


CROWD = Scenario(
    measurement=f"launch of {AGENTS} agents, {AGENTS * NPROC} workers",
    sample=_start,
    floor=bare(AGENTS * NPROC),
    bar=0.7,
    repeat=5,
    torchrun_repeat=2,
)
