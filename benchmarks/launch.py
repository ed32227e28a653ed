"""From exec to the first line of all workers, on one node."""

import sys
import time
from functools import partial

from benchmarks.agents import SETTLE_S, StartAgent, agents
from benchmarks.arrivals import last
from benchmarks.launchers import NPROC, NodeAgent
from benchmarks.plan import Plan, interleaved
from benchmarks.results import Row
from benchmarks.stage import Program, Stage

BAR_MS = 350


def measure(plan: Plan) -> list[Row]:
    """As the user types it. Beside it the floor: as many bare workers, started by nobody in between."""
    starts = {"bare workers": _bare_workers, **agents(plan, installed=True)}
    samples = interleaved({name: partial(_launch, start) for name, start in starts.items()}, plan.repeat, warm_up=True)
    bars = {NodeAgent.name: BAR_MS}
    return [
        Row(measurement="launch", subject=name, unit="ms", samples=taken, bar=bars.get(name))
        for name, taken in samples.items()
    ]


def _launch(start: StartAgent) -> float:
    with Stage() as stage:
        time.sleep(SETTLE_S)
        began_s = start(stage).started_s
        return 1e3 * (last(stage.first_lines(NPROC, began_s)) - began_s)


def _bare_workers(stage: Stage) -> Program:
    """The first of them, which is when it began."""
    first, *_ = [stage.start([sys.executable, "-u", *stage.worker], {"RANK": str(rank)}) for rank in range(NPROC)]
    return first
