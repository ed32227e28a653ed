"""The most memory that an agent's own process has held while its workers run."""

import time
from functools import partial

from benchmarks.agents import StartAgent, agents, bars
from benchmarks.launchers import NPROC
from benchmarks.plan import Plan, interleaved
from benchmarks.procfs import peak_rss_mb
from benchmarks.results import Row
from benchmarks.stage import Stage

BAR_MB = 45
REPEAT = 3
"""It hardly varies."""
SETTLE_S = 2.0
"""What the agent loads only after its workers have started counts too."""


def measure(plan: Plan) -> list[Row]:
    """VmHWM, once everything has been loaded."""
    subjects = {name: partial(_peak, start) for name, start in agents(plan).items()}
    samples = interleaved(subjects, min(plan.repeat, REPEAT))
    return [
        Row(measurement="memory", subject=name, unit="MB", samples=taken, bar=bars(BAR_MB).get(name))
        for name, taken in samples.items()
    ]


def _peak(start: StartAgent) -> float:
    with Stage() as stage:
        agent = start(stage)
        stage.first_lines(NPROC, agent.started_s)
        time.sleep(SETTLE_S)
        return peak_rss_mb(agent.pid)
