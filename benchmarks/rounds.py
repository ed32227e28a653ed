"""The rounds of `swarm`, beside torchrun's rendezvous and beside as many bare connections.

`python -m benchmarks.rounds PORT` is the server of these: it sends back what it receives.
"""

import asyncio
import os
import select
import sys
import time
from functools import partial
from typing import TextIO

from benchmarks import swarm
from benchmarks.launchers import ADDRESS, OURS, STOCK, Plan
from benchmarks.machine import on_cpu
from benchmarks.results import FLOOR, NEVER, Row
from benchmarks.scenario import Subject, once, take_turns
from benchmarks.stage import FOLDER, Broken, Stage, free_port
from benchmarks.swarm import NODES_CPU, ROUND_BARS_S, SERVER_CPU

TORCHRUN_NODES = (16, 64, 256)
"""Numbers of nodes for torchrun: with 256 it forms no round in minutes; more were not tried."""
CAP_S = 60.0
START_S = 60.0
REPEAT = 3
TORCH_NODES = os.path.join(FOLDER, "torch_nodes.py")
MESSAGE = b"x" * 200
BACKLOG = 16_384


def measure(plan: Plan) -> list[Row]:
    """Measure ours, which takes its own turns, then torchrun and the floors."""
    ours = _ours(plan)
    torchrun = [_torchrun(nodes) for nodes in TORCHRUN_NODES if plan.torchrun]
    subjects = [Subject(str(nodes), once(partial(_bare, nodes)), min(plan.repeat, REPEAT)) for nodes in ROUND_BARS_S]
    floors = [
        Row(measurement=_line(int(nodes)), subject=f"{FLOOR}as many bare connections", unit="s", samples=taken.samples)
        for nodes, taken in take_turns(subjects).items()
    ]
    return [*ours, *torchrun, *floors]


def _ours(plan: Plan) -> list[Row]:
    """Rows of the swarm; what breaks it does not stop the rest."""
    try:
        return swarm.measure(plan)
    except (Broken, OSError) as error:
        return [Row(measurement="swarm", subject=OURS, unit="s", samples=(), trouble=str(error) or repr(error))]


def _line(nodes: int) -> str:
    """Name of the table's line in which ours stands."""
    return f"swarm round: {nodes} nodes"


def _torchrun(nodes: int) -> Row:
    try:
        samples, trouble = [_meet(nodes)], ""
    except Broken as error:
        samples, trouble = [], str(error)
    return Row(
        measurement=_line(nodes), subject=STOCK.name, unit="s", samples=samples, cap=CAP_S, trouble=trouble
    )  # fmt: skip


def _meet(nodes: int) -> float:
    """Seconds until all nodes of torchrun's rendezvous know their ranks."""
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
    """The next line; empty if none comes in time."""
    ready, _, _ = select.select([answer], [], [], within_s)
    return answer.readline() if ready else ""


def _bare(nodes: int) -> float:
    """Seconds until so many connections are there, and a small message has gone to and fro on each."""
    with Stage() as stage:
        port = free_port()
        with on_cpu(SERVER_CPU):
            stage.start([sys.executable, "-m", "benchmarks.rounds", str(port)])
        stage.wait_for_port(port)
        with on_cpu(NODES_CPU):
            began_s = time.monotonic()
            asyncio.run(_all_answered(nodes, port))
            return time.monotonic() - began_s


async def _all_answered(nodes: int, port: int) -> None:
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(nodes)]
    await asyncio.gather(*(loop.create_connection(partial(_Asker, answer), ADDRESS, port) for answer in answers))
    for line in await asyncio.gather(*answers):
        line.abort()


class _Asker(asyncio.Protocol):
    """One connection; `answer` becomes its transport when what it has sent is back."""

    def __init__(self, answer: "asyncio.Future[asyncio.Transport]") -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport
        transport.write(MESSAGE)

    def data_received(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(self._line)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport

    def data_received(self, data: bytes) -> None:
        self._line.write(data)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, ADDRESS, port, backlog=BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
