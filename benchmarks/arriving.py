"""From the exec of an agent that arrives to the first line of all new workers.

It arrives as a second node where there is room for one, or in the place of a node that has been lost.
"""

import time

from benchmarks.arrivals import last
from benchmarks.cluster import AGENTS, Cluster
from benchmarks.floors import bare
from benchmarks.launchers import NPROC, STOCK, Launcher
from benchmarks.lost_agent import CAP_S, SETTLE_S, WITH_DEFAULT_TIMERS
from benchmarks.results import NEVER
from benchmarks.scenario import Scenario
from benchmarks.stage import NOTICING_WORKER, Stage

FORMING_LAST_CALL_S = 1
"""One node of two forms after so long, not 30 s. The restart that is measured has all nodes and waits for none."""


def _scale_up(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes="1:2", agents=1, last_call_s=FORMING_LAST_CALL_S)
        time.sleep(SETTLE_S)
        return [_all_new_workers_s(stage, cluster.start_agent(1).started_s)]


def _replace(launcher: Launcher, wanted: int) -> list[float]:
    """Its workers notice the loss. The agent that takes the lost one's place is another node to the launcher."""
    with Stage(NOTICING_WORKER) as stage:
        cluster = Cluster(stage, launcher, nnodes="2")
        time.sleep(SETTLE_S)
        cluster.lose(1)
        return [_all_new_workers_s(stage, cluster.start_agent(AGENTS).started_s)]


def _all_new_workers_s(stage: Stage, since_s: float) -> float:
    """Seconds until two nodes' new workers are there and stay."""
    try:
        return last(stage.new_lines(AGENTS * NPROC, since_s, CAP_S, SETTLE_S)) - since_s
    except TimeoutError:
        return NEVER


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
