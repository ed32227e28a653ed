"""One agent of each kind with its workers running, for what is measured of the agent's own process."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks.launchers import OURS, Launcher, NodeAgent
from benchmarks.plan import Plan
from benchmarks.stage import Program, Stage, free_port

SETTLE_S = 1.0
"""What has just started has taken its share of the CPU; an agent usually finds a server that is idle."""
WITH_SERVER = "node-agent, rdzv-server"

StartAgent = Callable[[Stage], Program]


def agents(plan: Plan, *, installed: bool = False) -> dict[str, StartAgent]:
    """By subject: how to start it. `--standalone` where there is such; ours also at a server that is up already."""
    return {
        OURS: partial(_standalone, NodeAgent(), installed),
        WITH_SERVER: partial(_with_server, NodeAgent(), installed),
        **{
            launcher.name: partial(_standalone if launcher.standalone else _with_server, launcher, installed)
            for launcher in plan.torchruns()
        },
    }


def bars(bar: float) -> dict[str, float]:
    """The bar is for every subject of ours."""
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
