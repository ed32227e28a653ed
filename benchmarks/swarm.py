"""Many nodes at a real server, over real sockets: how long a round takes, and what an idle node costs.

The server has one core, and the nodes, which are simple and share a process, have another. In turns with it the nodes
join a server without decisions, which is the floor of a round.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.request import urlopen

from rdzv_protocol import paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.messages import (
    ErrorReply,
    Failure,
    Finish,
    JoinRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Start,
    Stop,
)
from rdzv_protocol.settings import RequestedSettings

from benchmarks import machine
from benchmarks.framing import Exchange, framed
from benchmarks.launchers import NodeAgent, Plan
from benchmarks.results import FLOOR, Row, times
from benchmarks.stage import Broken, Program, Stage, free_port

ROUND_BARS_S = {256: 0.1, 1_000: 0.3, 10_000: 3.0}
FLOOR_BARS = {10_000: 1.6}
"""Bars of a round, as multiples of the floor."""
MEMORY_BAR_KB = 20
IDLE_NODES, IDLE_BAR_PERCENT, IDLE_S = 10_000, 25, 20.0
ADDRESSES = 50
"""Number of the nodes' addresses: a server does not let one peer have all its connections."""
REPEAT = 3
CAP_S = 120.0
RUN_ID = "benchmark"
SERVER_CPU, NODES_CPU = 0, 1
GROUP = 32
"""Number of nodes that connect together. Each sends its join once it is connected, as on a machine of its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one run: seconds, µs of the server's CPU per node, kB per node, per cent of a core."""

    round_s: float
    round_cpu_us: float
    restart_s: float
    memory_kb: float
    idle_percent: float | None


def measure(plan: Plan) -> list[Row]:
    """Measure swarms of each size, each a few times at most."""
    rows: list[Row] = []
    for nodes, bar_s in ROUND_BARS_S.items():
        turns = [(_run(nodes, nodes == IDLE_NODES), _bare_s(nodes)) for _ in range(min(plan.repeat, REPEAT))]
        samples, floor_s = [sample for sample, _ in turns], [bare_s for _, bare_s in turns]
        over_floor = times([each.round_s for each in samples], floor_s)
        figures = [
            ("swarm round", "s", [each.round_s for each in samples], bar_s),
            ("swarm round, times the floor", "times", over_floor, FLOOR_BARS.get(nodes)),
            ("swarm round, server", "µs", [each.round_cpu_us for each in samples], None),
            ("swarm restart", "s", [each.restart_s for each in samples], None),
            ("swarm memory, a node", "kB", [each.memory_kb for each in samples], MEMORY_BAR_KB),
            ("swarm idle", "% of a core", [each.idle_percent for each in samples if each.idle_percent is not None],
             IDLE_BAR_PERCENT),
        ]  # fmt: skip
        rows += [
            Row(measurement=name, subject=f"{nodes} nodes", unit=unit, samples=values, bar=bar)
            for name, unit, values, bar in figures
            if values
        ]
        rows.append(
            Row(measurement=round_line(nodes), subject=f"{FLOOR}as many bare connections", unit="s", samples=floor_s)
        )
    return rows


def round_line(nodes: int) -> str:
    """Return the name of the table's line with this round of ours."""
    return f"swarm round: {nodes} nodes"


def _run(nodes: int, with_idle: bool) -> Sample:
    with Stage() as stage, machine.on_cpu(NODES_CPU):
        port = free_port()
        with machine.on_cpu(SERVER_CPU):
            server = stage.start(NodeAgent().server(port, stage.folder))
        stage.wait_for_port(port)
        # The port is bound before the server is ready.
        urlopen(f"http://127.0.0.1:{port}{paths.READYZ}", timeout=10).close()
        return asyncio.run(_measure(Swarm(nodes, port), server, with_idle))


def _bare_s(nodes: int) -> float:
    """Return the seconds of a round at a server without decisions, with as many connections, requests and answers."""
    with Stage() as stage, machine.on_cpu(NODES_CPU):
        port = free_port()
        with machine.on_cpu(SERVER_CPU):
            stage.start([sys.executable, "-m", "benchmarks.bare_server", str(port), str(nodes)])
        stage.wait_for_port(port)
        return asyncio.run(_bare_round_s(Swarm(nodes, port)))


async def _bare_round_s(swarm: "Swarm") -> float:
    async with asyncio.timeout(CAP_S):
        took_s = await _round_s(swarm)
    swarm.close()
    return took_s


async def _round_s(swarm: "Swarm") -> float:
    began_s = time.monotonic()
    await swarm.join()
    return time.monotonic() - began_s


async def _measure(swarm: "Swarm", server: Program, with_idle: bool) -> Sample:
    before_kb = machine.rss_kb(server.pid)
    cpu_before_us = 1e6 * machine.cpu_s(server.pid) / len(swarm)
    async with asyncio.timeout(CAP_S):
        round_s = await _round_s(swarm)
        cpu_us = 1e6 * machine.cpu_s(server.pid) / len(swarm) - cpu_before_us
        memory_kb = (machine.rss_kb(server.pid) - before_kb) / len(swarm)
        idle = await _idle(server) if with_idle else None
        began_s = time.monotonic()
        await swarm.restart()
        restart_s = time.monotonic() - began_s
    swarm.close()
    return Sample(round_s, cpu_us, restart_s, memory_kb, idle)


async def _idle(server: Program) -> float:
    """Return the CPU of the server, in per cent of a core, while its nodes only poll."""
    before_s = machine.cpu_s(server.pid)
    await asyncio.sleep(IDLE_S)
    return 100 * (machine.cpu_s(server.pid) - before_s) / IDLE_S


class Swarm:
    """Nodes of one run with a budget of `max_restarts`. `addresses`: number of their addresses."""

    def __init__(
        self, nodes: int, port: int, run_id: str = RUN_ID, max_restarts: int = 3, addresses: int = ADDRESSES,
        token: str = "", lease_s: float | None = None,
    ) -> None:  # fmt: skip
        self._port, self._run_id, self._addresses = port, run_id, addresses
        self._settled = asyncio.Event()
        self._missing = 0
        self._refusal = ""
        settings = RequestedSettings(min_nodes=nodes, max_nodes=nodes, max_restarts=max_restarts, lease_s=lease_s)
        self._nodes = [Node(number, run_id, settings, self._started, self._refused, token) for number in range(nodes)]

    async def join(self) -> None:
        """Connect and join; return when every node has its assignment."""
        self._expect_all()
        for first in range(0, len(self._nodes), GROUP):
            await asyncio.gather(*map(self._connect, range(first, min(first + GROUP, len(self._nodes)))))
        await self._all_started()

    async def restart(self) -> None:
        """Report a failed worker of the first node; return when every node has its next assignment."""
        self._expect_all()
        await _tell(self._port, self._nodes[0].failure())
        await self._all_started()

    async def _connect(self, number: int) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: self._nodes[number],
            "127.0.0.1",
            self._port,
            local_addr=(f"127.0.1.{number % self._addresses + 1}", 0),
        )

    async def _all_started(self) -> None:
        await self._settled.wait()
        if self._refusal:
            raise Broken(self._refusal)

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def __len__(self) -> int:
        return len(self._nodes)

    def _expect_all(self) -> None:
        self._settled.clear()
        self._missing = len(self._nodes)

    def _started(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._settled.set()

    def _refused(self, why: str) -> None:
        self._refusal = why
        self._settled.set()


class Node(Exchange):
    """Agent without workers that follows each directive at once."""

    def __init__(
        self,
        number: int,
        run_id: str,
        settings: RequestedSettings,
        started: Callable[[], None],
        refused: Callable[[str], None],
        token: str = "",
    ) -> None:
        self._token = token
        self._number, self._settings, self._started, self._refused = number, settings, started, refused
        self._ids = {"run_id": run_id, "agent_id": f"node-{number}-0123456789ab.1"}
        self._round = self._revision = self._first_rank = 0
        self._line: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport
        self._join()

    def received(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"HTTP/1.1 200 "):
            self._obey(decode(Reply, body))
        else:
            self._refused(f"a node was refused: {decode(ErrorReply, body).message}")

    def connection_lost(self, error: Exception | None) -> None:
        self._refused(f"the connection of node-{self._number} is closed ({error or 'by the server'})")

    def failure(self) -> bytes:
        """Return the report of a failed worker, for a connection of its own, as agents have one."""
        failure = Failure(
            node_id=f"node-{self._number}", rank=self._first_rank, local_rank=0, pid=4711, exit_code=1,
            cause="exit code 1", stderr_tail=("RuntimeError: boom",),
        )  # fmt: skip
        report = ReportRequest(**self._ids, round=self._round, failure=failure)
        return _request(paths.REPORT, report, self._token)

    def close(self) -> None:
        if self._line:
            self._line.abort()

    def _obey(self, reply: Reply) -> None:
        self._revision = reply.revision
        match reply.directive:
            case Start(assignment=assignment) if assignment.round > self._round:
                self._round, self._first_rank = assignment.round, assignment.first_rank
                self._started()
                self._poll()
            case Stop():
                self._join()
            case Finish(reason=reason):
                self._refused(f"the run has ended: {reason}")
            case _:
                self._poll()

    def _join(self) -> None:
        join = JoinRequest(
            **self._ids,
            node_id=f"node-{self._number}",
            after_round=self._round,
            addr=f"10.1.{self._number // 250}.{self._number % 250 + 1}",
            port=29_500 + self._round,
            local_world_size=8,
            settings=self._settings,
        )
        self._send(paths.JOIN, join)

    def _poll(self) -> None:
        self._send(paths.POLL, PollRequest(**self._ids, revision=self._revision))

    def _send(self, path: str, message: object) -> None:
        assert self._line
        self._line.write(_request(path, message, self._token))


def _request(path: str, message: object, token: str) -> bytes:
    bears = f"\r\nAuthorization: Bearer {token}" if token else ""
    return framed(f"POST {path} HTTP/1.1\r\nHost: localhost{bears}", encode(message))


async def _tell(port: int, request: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    status = await reader.readline()
    writer.close()
    if b" 200 " not in status:
        raise Broken(f"the report was refused: {status.decode()}")
