"""The most memory that an agent's own process has held while its workers run."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks.agents import StartAgent, agents, bars
from benchmarks.floors import bare_memory_mb
from benchmarks.launchers import NPROC
from benchmarks.plan import Plan
from benchmarks.procfs import peak_rss_mb
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import rows
from benchmarks.stage import Stage
from benchmarks.turns import Subject, once, take_turns

BAR_MB = 32
REPEAT = 2
"""It hardly varies."""
SETTLE_S = 2.0
"""What the agent loads only after its workers have started counts too."""


def measure(plan: Plan) -> list[Row]:
    """VmHWM, once everything has been loaded. The floor is that of an interpreter that does nothing."""
    samples: dict[str, Callable[[], float]] = {name: partial(_peak, start) for name, start in agents(plan).items()}
    samples[f"{FLOOR}a bare worker"] = bare_memory_mb
    subjects = [Subject(name, once(sample), min(plan.repeat, REPEAT)) for name, sample in samples.items()]
    return rows(plan, "memory of an agent", "MB", take_turns(subjects), bars(BAR_MB))


def _peak(start: StartAgent) -> float:
    with Stage() as stage:
        agent = start(stage)
        stage.first_lines(NPROC, agent.started_s)
        time.sleep(SETTLE_S)
        return peak_rss_mb(agent.pid)
