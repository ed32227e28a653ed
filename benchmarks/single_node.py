"""A single node: its launch, and the memory and wake-ups of its idle agent."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from benchmarks.floors import bare, bare_memory_mb
from benchmarks.launchers import NPROC, OURS, Launcher, NodeAgent, PlainAgent, Plan
from benchmarks.machine import peak_rss_mb, wake_ups
from benchmarks.results import FLOOR, Row, times
from benchmarks.scenario import Subject, Taken, once, rows, take_turns
from benchmarks.stage import Program, Stage, free_port, last

SETTLE_S = 1.0
"""Time until a program that has just started needs less CPU; agents usually find an idle server."""
WITH_SERVER = "node-agent, rdzv-server"

StartAgent = Callable[[Stage], Program]


def agents(plan: Plan, nproc: int = NPROC, *, installed: bool = False) -> dict[str, StartAgent]:
    """Return functions that start an agent, by subject: `--standalone` where it exists; and ours at a server."""
    ours = NodeAgent(nproc=nproc)
    return {
        OURS: partial(_standalone, ours, installed),
        WITH_SERVER: partial(_with_server, ours, installed),
        **{
            launcher.name: partial(_standalone if launcher.standalone else _with_server, launcher, installed)
            for launcher in plan.torchruns()
        },
    }


def bars(bar: float) -> dict[str, float]:
    """Return bars by subject: the same for every subject of ours."""
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


PLAIN = FLOOR + PlainAgent().name


def beside_plain(
    plan: Plan, measurement: str, unit: str, taken: Mapping[str, Taken], bars: Mapping[str, float], times_bar: float
) -> list[Row]:
    """Return the rows of all subjects, and of ours as multiples of a launcher without features."""
    line, plain = f"{measurement}, times that of a launcher without features", taken[PLAIN]
    return [
        *rows(plan, measurement, unit, {name: each for name, each in taken.items() if name != PLAIN}, bars),
        *(
            Row(
                measurement=line, subject=name, unit="times", samples=times(taken[name].samples, plain.samples),
                bar=times_bar,
            )
            for name in (OURS, WITH_SERVER)
        ),
        Row(measurement=line, subject=PLAIN, unit=unit, samples=plain.samples, trouble=plain.trouble),
    ]  # fmt: skip


LAUNCH_BARS_S = {NPROC: {OURS: 0.12}, 8: {}}
"""Bars of a launch in seconds, by the number of workers."""
PLAIN_LAUNCH_BAR = 1.5
TORCHRUN_REPEAT = 4


def measure(plan: Plan) -> list[Row]:
    """Measure the launch with the command that a user types, and the floors. torchrun has one number of workers."""
    alone = replace(plan, torchrun=False)
    return [row for nproc in LAUNCH_BARS_S for row in _launches(plan if nproc == NPROC else alone, nproc)]


def _launches(plan: Plan, nproc: int) -> list[Row]:
    fewer = {launcher.name: min(plan.repeat, TORCHRUN_REPEAT) for launcher in plan.torchruns()}
    starts = {**agents(plan, nproc, installed=True), PLAIN: partial(_with_server, PlainAgent(nproc=nproc), True)}
    samples = {name: partial(_launch, start, nproc) for name, start in starts.items()}
    floor = bare(nproc)
    samples[FLOOR + floor.name] = floor.sample
    subjects = [Subject(name, once(sample), fewer.get(name, plan.repeat)) for name, sample in samples.items()]
    taken = take_turns(subjects, warm_up=True)
    return beside_plain(plan, f"launch, {nproc} workers", "s", taken, LAUNCH_BARS_S[nproc], PLAIN_LAUNCH_BAR)


def _launch(start: StartAgent, nproc: int) -> float:
    with Stage() as stage:
        time.sleep(SETTLE_S)
        began_s = start(stage).started_s
        return last(stage.first_lines(nproc, began_s)) - began_s


BAR_MB = 32
REPEAT = 2
"""Number of samples of memory: two are enough, since it hardly varies."""
MEMORY_SETTLE_S = 2.0
"""Time after which the agent has loaded everything, also what it loads late."""


PLAIN_MEMORY_BAR = 1.25


def measure_memory(plan: Plan) -> list[Row]:
    """Measure VmHWM once everything is loaded. The floor is an interpreter that does nothing."""
    starts = {**agents(plan), PLAIN: partial(_with_server, PlainAgent(), False)}
    samples: dict[str, Callable[[], float]] = {name: partial(_peak, start) for name, start in starts.items()}
    samples[f"{FLOOR}a bare worker"] = bare_memory_mb
    taken = take_turns([Subject(name, once(sample), min(plan.repeat, REPEAT)) for name, sample in samples.items()])
    return beside_plain(plan, "memory of an agent", "MB", taken, bars(BAR_MB), PLAIN_MEMORY_BAR)


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
"""Seconds of one sample: enough for several polls of node-agent, which polls every half lease."""


def measure_idle(plan: Plan) -> list[Row]:
    """Measure voluntary context switches a second of all threads of idle agents. The agents run side by side."""
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
