"""One node alone: its launch, and the memory and wake-ups of its idle agent."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks.floors import bare, bare_memory_mb
from benchmarks.launchers import NPROC, OURS, Launcher, NodeAgent, Plan
from benchmarks.machine import peak_rss_mb, wake_ups
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import Subject, Taken, once, rows, take_turns
from benchmarks.stage import Program, Stage, free_port, last

SETTLE_S = 1.0
"""Time for what has just started to take its share of the CPU; an agent usually finds a server that is idle."""
WITH_SERVER = "node-agent, rdzv-server"

StartAgent = Callable[[Stage], Program]


def agents(plan: Plan, *, installed: bool = False) -> dict[str, StartAgent]:
    """Functions that start an agent, by subject: `--standalone` where there is such; ours also at a running server."""
    return {
        OURS: partial(_standalone, NodeAgent(), installed),
        WITH_SERVER: partial(_with_server, NodeAgent(), installed),
        **{
            launcher.name: partial(_standalone if launcher.standalone else _with_server, launcher, installed)
            for launcher in plan.torchruns()
        },
    }


def bars(bar: float) -> dict[str, float]:
    """Bars by subject: the same for every subject of ours."""
    return {OURS: bar, WITH_SERVER: bar}


def _standalone(launcher: Launcher, installed: bool, stage: Stage) -> Program:
    start = launcher.installed if installed else launcher.module
    return stage.start([*start, *launcher.standalone, *stage.worker], launcher.environment)


def _with_server(launcher: Launcher, installed: bool, stage: Stage) -> Program:
    port = free_port()
    if server := launcher.server(port, stage.folder):
        stage.start(server)
    stage.wait_for_port(port)
    time.sleep(SETTLE_S)
    command = launcher.agent(0, "1", port)
    start = launcher.installed if installed else launcher.module
    return stage.start([*start, *command[len(launcher.module) :], *stage.worker], launcher.environment)


MEASUREMENT = f"launch, {NPROC} workers"
BAR_S = 0.12
TORCHRUN_REPEAT = 4


def measure(plan: Plan) -> list[Row]:
    """Measure the launch of the command as the user types it, and the floor: as many bare workers."""
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


BAR_MB = 32
REPEAT = 2
"""Samples of memory: two are enough, for it hardly varies."""
MEMORY_SETTLE_S = 2.0
"""Time after which what the agent loads late has been loaded, too."""


def measure_memory(plan: Plan) -> list[Row]:
    """Measure VmHWM, once everything has been loaded. The floor is that of an interpreter that does nothing."""
    samples: dict[str, Callable[[], float]] = {name: partial(_peak, start) for name, start in agents(plan).items()}
    samples[f"{FLOOR}a bare worker"] = bare_memory_mb
    subjects = [Subject(name, once(sample), min(plan.repeat, REPEAT)) for name, sample in samples.items()]
    return rows(plan, "memory of an agent", "MB", take_turns(subjects), bars(BAR_MB))


def _peak(start: StartAgent) -> float:
    with Stage() as stage:
        agent = start(stage)
        stage.first_lines(NPROC, agent.started_s)
        time.sleep(MEMORY_SETTLE_S)
        return peak_rss_mb(agent.pid)


BAR = 1
IDLE_REPEAT = 2
IDLE_SETTLE_S = 2.0
WINDOW_S = 10.0
"""Seconds of one sample: long enough for some of node-agent's polls, one in half of its lease."""


def measure_idle(plan: Plan) -> list[Row]:
    """Measure voluntary context switches of all threads of idle agents, a second. The agents idle side by side."""
    with Stage() as stage:
        pids: dict[str, int] = {}
        for name, start in agents(plan).items():
            agent = start(stage)
            stage.first_lines(NPROC, agent.started_s)
            pids[name] = agent.pid
        time.sleep(IDLE_SETTLE_S)
        windows = [_window(pids) for _ in range(min(plan.repeat, IDLE_REPEAT))]
    taken = {name: Taken([window[name] for window in windows]) for name in pids}
    return rows(plan, "wake-ups of an idle agent", "/s", taken, bars(BAR))


def _window(pids: dict[str, int]) -> dict[str, float]:
    before = {name: wake_ups(pid) for name, pid in pids.items()}
    time.sleep(WINDOW_S)
    return {name: (wake_ups(pid) - before[name]) / WINDOW_S for name, pid in pids.items()}
