"""How often an agent wakes up while nothing happens."""

import time

from benchmarks.agents import agents, bars
from benchmarks.launchers import NPROC
from benchmarks.plan import Plan
from benchmarks.procfs import wake_ups
from benchmarks.results import Row
from benchmarks.scenario import rows
from benchmarks.stage import Stage
from benchmarks.turns import Taken

BAR = 1
REPEAT = 2
SETTLE_S = 2.0
WINDOW_S = 10.0
"""Long enough for some of node-agent's polls, one in half of its lease."""


def measure(plan: Plan) -> list[Row]:
    """Voluntary context switches of all its threads, a second. The agents idle side by side."""
    with Stage() as stage:
        pids: dict[str, int] = {}
        for name, start in agents(plan).items():
            agent = start(stage)
            stage.first_lines(NPROC, agent.started_s)
            pids[name] = agent.pid
        time.sleep(SETTLE_S)
        windows = [_window(pids) for _ in range(min(plan.repeat, REPEAT))]
    taken = {name: Taken([window[name] for window in windows]) for name in pids}
    return rows(plan, "wake-ups of an idle agent", "/s", taken, bars(BAR))


def _window(pids: dict[str, int]) -> dict[str, float]:
    before = {name: wake_ups(pid) for name, pid in pids.items()}
    time.sleep(WINDOW_S)
    return {name: (wake_ups(pid) - before[name]) / WINDOW_S for name, pid in pids.items()}
