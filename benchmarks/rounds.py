"""Rounds of `swarm`, beside torchrun's rendezvous."""

import os
import select
import sys
from typing import TextIO

from benchmarks import swarm
from benchmarks.launchers import OURS, STOCK, Plan
from benchmarks.machine import on_cpu
from benchmarks.results import NEVER, Row
from benchmarks.stage import FOLDER, Broken, Stage, free_port
from benchmarks.swarm import NODES_CPU, SERVER_CPU, round_line

TORCHRUN_NODES = (16, 64, 256)
"""Numbers of nodes for torchrun: with 256 it does not form a round in minutes; more were not tried."""
CAP_S = 60.0
START_S = 60.0
TORCH_NODES = os.path.join(FOLDER, "torch_nodes.py")


def measure(plan: Plan) -> list[Row]:
    """Measure our rounds, in turns with the floor, then those of torchrun."""
    torchrun = TORCHRUN_NODES if plan.torchrun else ()
    return [*_ours(plan), *map(_torchrun, torchrun)]


def _ours(plan: Plan) -> list[Row]:
    """Return the rows of the swarm. A failure there does not stop the rest."""
    try:
        return swarm.measure(plan)
    except (Broken, OSError) as error:
        return [Row(measurement="swarm", subject=OURS, unit="s", samples=(), trouble=str(error) or repr(error))]


def _torchrun(nodes: int) -> Row:
    try:
        samples, trouble = [_meet(nodes)], ""
    except Broken as error:
        samples, trouble = [], str(error)
    return Row(
        measurement=round_line(nodes), subject=STOCK.name, unit="s", samples=samples, cap=CAP_S, trouble=trouble
    )  # fmt: skip


def _meet(nodes: int) -> float:
    """Return the seconds until all nodes of torchrun's rendezvous know their ranks."""
    with Stage() as stage:
        port = free_port()
        with on_cpu(SERVER_CPU):
            stage.start([sys.executable, TORCH_NODES, str(port)])
        stage.wait_for_port(port)
        mine, its = os.pipe()
        with open(mine, encoding="ascii") as answer:
            with open(its, "wb") as pipe, on_cpu(NODES_CPU):
                stage.start([sys.executable, TORCH_NODES, str(port), str(nodes)], stdout=pipe.fileno())
            began = _line_of(answer, START_S)
            if not began:
                raise Broken("torchrun's nodes did not start")
            return float(_line_of(answer, CAP_S) or NEVER)


def _line_of(answer: TextIO, within_s: float) -> str:
    """Return the next line; empty if none comes in time."""
    ready, _, _ = select.select([answer], [], [], within_s)
    return answer.readline() if ready else ""
