"""From exec to the first line of all workers, on one node."""

import time
from functools import partial

from benchmarks.agents import SETTLE_S, StartAgent, agents
from benchmarks.arrivals import last
from benchmarks.floors import bare
from benchmarks.launchers import NPROC, OURS
from benchmarks.plan import Plan
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import rows
from benchmarks.stage import Stage
from benchmarks.turns import Subject, once, take_turns

MEASUREMENT = f"launch, {NPROC} workers"
BAR_S = 0.12
TORCHRUN_REPEAT = 4


def measure(plan: Plan) -> list[Row]:
    """As the user types it. Beside it the floor: as many bare workers, started by nobody in between."""
    fewer = {launcher.name: min(plan.repeat, TORCHRUN_REPEAT) for launcher in plan.torchruns()}
    subjects = [
        Subject(name, once(partial(_launch, start)), fewer.get(name, plan.repeat))
        for name, start in agents(plan, installed=True).items()
    ]
    floor = bare(NPROC)
    subjects.append(Subject(FLOOR + floor.name, once(floor.sample), plan.repeat))
    return rows(plan, MEASUREMENT, "s", take_turns(subjects, warm_up=True), {OURS: BAR_S})


def _launch(start: StartAgent) -> float:
    with Stage() as stage:
        time.sleep(SETTLE_S)
        began_s = start(stage).started_s
        return last(stage.first_lines(NPROC, began_s)) - began_s
