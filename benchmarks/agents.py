"""One agent of each kind with its workers running, for what is measured of the agent's own process."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks.launchers import ADDRESS, NPROC, Launcher, NodeAgent
from benchmarks.plan import Plan
from benchmarks.stage import Program, Stage, free_port

SETTLE_S = 1.0
"""What has just started has taken its share of the CPU; an agent usually finds a server that is idle."""
WITH_SERVER = "node-agent, rdzv-server"

StartAgent = Callable[[Stage], Program]


def agents(plan: Plan, *, installed: bool = False) -> dict[str, StartAgent]:
    """By subject: how to start it. `--standalone`, and ours also at a server that is up already."""
    subjects: dict[str, StartAgent] = {
        launcher.name: partial(_standalone, launcher, installed) for launcher in plan.launchers()
    }
    return {NodeAgent.name: subjects.pop(NodeAgent.name), WITH_SERVER: partial(_with_server, installed), **subjects}


def bars(bar: float) -> dict[str, float]:
    """The bar is for every subject of ours."""
    return {NodeAgent.name: bar, WITH_SERVER: bar}


def _standalone(launcher: Launcher, installed: bool, stage: Stage) -> Program:
    start = launcher.installed if installed else launcher.module
    return stage.start([*start, *launcher.standalone, *stage.worker])


def _with_server(installed: bool, stage: Stage) -> Program:
    agent, port = NodeAgent(), free_port()
    stage.start(agent.server(port))
    stage.wait_for_port(port)
    time.sleep(SETTLE_S)
    start = agent.installed if installed else agent.module
    return stage.start([*start, "--endpoint", f"{ADDRESS}:{port}", "--nproc", str(NPROC), *stage.worker])
