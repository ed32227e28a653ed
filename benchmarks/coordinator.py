"""SIGKILL of the server or store: how many workers end because of it, and how soon a new server has its agents back.

For node-agent it is rdzv-server; for torchrun it is etcd, or the agent that hosts the store.
"""

import json
import os
import signal
import time
import urllib.request
from contextlib import suppress
from typing import Any

from benchmarks.cluster import AGENTS, Cluster
from benchmarks.floors import bare
from benchmarks.launchers import ADDRESS, NPROC, OURS, Launcher, NodeAgent, Plan
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import Scenario, Subject, once, rows, take_turns
from benchmarks.stage import Broken, Stage
from tests.support.process_info import is_running

SETTLE_S = 1.0
WATCH_S = 5.0
BACK_S = 30.0
CHECK_INTERVAL_S = 0.002
REPEAT = 5


def measure(plan: Plan) -> list[Row]:
    subjects = [
        Subject(OURS, once(_back), min(plan.repeat, REPEAT)),
        Subject(FLOOR + bare(1).name, once(bare(1).sample), min(plan.repeat, REPEAT)),
    ]
    back = "coordinator restarted, agents back"
    return COORDINATOR.measure(plan) + rows(Plan(plan.repeat, torchrun=False), back, "s", take_turns(subjects), {})


def _workers_that_end(launcher: Launcher, wanted: int) -> list[float]:
    with Stage() as stage:
        cluster = Cluster(stage, launcher, nnodes=str(AGENTS))
        time.sleep(SETTLE_S)
        os.kill((cluster.server or cluster.agents[0]).pid, signal.SIGKILL)
        time.sleep(WATCH_S)
        return [float(sum(not is_running(line.pid) for line in cluster.workers.values()))]


def _back() -> float:
    """Return the seconds until the new server has heard from each node's agent, and each has a connection."""
    with Stage() as stage:
        cluster = Cluster(stage, NodeAgent(), nnodes=str(AGENTS))
        time.sleep(SETTLE_S)
        assert cluster.server
        os.kill(cluster.server.pid, signal.SIGKILL)
        os.waitpid(cluster.server.pid, 0)
        server = cluster.start_server()
        assert server
        deadline_s = time.monotonic() + BACK_S
        while not _are_back(cluster.port):
            if time.monotonic() > deadline_s:
                raise Broken(f"the agents were not back in {BACK_S:g} s")
            time.sleep(CHECK_INTERVAL_S)
        return time.monotonic() - server.started_s


def _are_back(port: int) -> bool:
    with suppress(OSError):
        with urllib.request.urlopen(f"http://{ADDRESS}:{port}/v1/status", timeout=1) as answer:
            status: dict[str, Any] = json.load(answer)
        nodes = [node for run in status["runs"] for node in run["nodes"]]
        return [node["connected"] for node in nodes] == [True] * AGENTS
    return False


COORDINATOR = Scenario(
    measurement="coordinator killed, workers that end",
    sample=_workers_that_end,
    bar=0,
    repeat=2,
    torchrun_repeat=1,
    unit=f"of {AGENTS * NPROC}",
)
