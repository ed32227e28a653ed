"""Metrics of the agent for Prometheus, at a port of their own: `--metrics-port`. Imported only with that flag.

The agent's event loop serves one request a connection and few connections at a time, each within seconds. An error here
is logged and does not affect the workers.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus

import rdzv_protocol
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exposition import CONTENT_TYPE, Histogram, Kind, Metric, Sample, exposition, of_process
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import Assignment, Failure, Reply
from rdzv_protocol.paths import AGENT_HAS_METRICS_ONLY
from rdzv_protocol.paths import METRICS as PATH

from node_agent.features import metrics
from node_agent.features.metrics import words
from node_agent.features.metrics.scrape import MOST_HEAD_BYTES, read_request
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.threads import in_thread

MOST_CONNECTIONS = 8
"""Most connections at a time. Further ones are closed at once."""
LIMIT_S = 5.0
"""Seconds for a request and its answer."""
SPAWN_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def _metric(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    return Metric(f"rdzv_agent_{name}", kind, text, labels)


_gauge, _counter, _histogram = partial(_metric, "gauge"), partial(_metric, "counter"), partial(_metric, "histogram")
INFO = _gauge("info", "1, with the agent's names as labels.", "version", "run_id", "node_id")
MEMBER = _gauge("member", "1 while this agent is part of the run.")
WORKERS = _gauge("workers", "Workers of the last round, by whether they are still running.", "state")
ROUND = _gauge("round", "Round of the workers that the agent started last; 0: none yet.")
WORLD_SIZE = _gauge("world_size", "Workers of all nodes in that round.")
RESTARTS = _gauge("restarts", "Charged restarts of the run at the beginning of that round.")
ROUNDS = _counter("rounds_started_total", "Rounds for which this agent has started workers.")
FAILURES = _counter("worker_failures_total", "Rounds that ended on this node because a worker failed.")
SPAWN = _histogram("spawn_seconds", "Time from the server's directive to the start of the last worker.")
LAST_OUTPUT = _gauge(
    "last_output_timestamp_seconds", "Time at which a worker of this round last wrote output; 0: never."
)
LAST_ANSWER = _gauge("last_answer_timestamp_seconds", "Time at which the server last answered; 0: never.")
SERVER_LOST = _counter("server_lost_seconds_total", "Time without answers of the server, after its first answer.")
METRICS = (
    INFO, MEMBER, WORKERS, ROUND, WORLD_SIZE, RESTARTS, ROUNDS, FAILURES, SPAWN, LAST_OUTPUT, LAST_ANSWER, SERVER_LOST,
)  # fmt: skip


class AgentMetrics(Feature):
    """Counters of one agent, and the port at which Prometheus scrapes them."""

    def __init__(self, kernel: Kernel, options: metrics.Metrics) -> None:
        super().__init__(kernel)
        assert options.metrics_port
        self._place = options.metrics_port
        self._log = kernel.console.log
        self._has_begun = False
        self._rounds = self._failures = 0
        self._spawn = Histogram(SPAWN_BOUNDS_S)
        self._start_requested_at = 0.0
        self._lost_s = 0.0
        self._answered_at: float | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to answer scrapes. Raises `UsageError` if the port is not available."""
        self._socket = await in_thread(partial(_bind, *self._place), undo=socket.socket.close)  # its host may be a name
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=MOST_HEAD_BYTES)
        host, port = self._socket.getsockname()[:2]
        self._log(words.place(f"http://{address(host, port)}{PATH}"), Level.ROUTINE)

    def began(self) -> None:
        self._has_begun = True

    async def close(self) -> None:
        """Stop answering scrapes, and release the port."""
        if self._server:
            self._server.close()
        if self._socket:
            self._socket.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def answered(self, answer: Reply | ProtocolError) -> None:
        self._lost_s += self._silent_s
        self._answered_at = asyncio.get_running_loop().time()

    def starting(self, assignment: Assignment) -> None:
        self._start_requested_at = asyncio.get_running_loop().time()

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        self._rounds += 1
        self._spawn.observe(asyncio.get_running_loop().time() - self._start_requested_at)

    def failed(self, failure: Failure) -> None:
        self._failures += 1

    def samples(self) -> list[Sample]:
        counted = [Sample(ROUNDS, self._rounds), Sample(FAILURES, self._failures), Sample(SPAWN, self._spawn.read())]
        if not self._has_begun:
            return counted
        machine, assignment, join = self.kernel.machine, self.kernel.assignment, self.kernel.config.join
        group = self.kernel.started and self.kernel.started.group
        workers, running = assignment.local_world_size if assignment else 0, len(group.pids) if group else 0
        return [
            *counted,
            Sample(INFO, 1, (rdzv_protocol.VERSION, join.run_id, join.node_id)),
            Sample(MEMBER, machine.is_member),
            Sample(WORKERS, running, ("running",)),
            Sample(WORKERS, workers - running, ("exited",)),
            Sample(ROUND, machine.round),
            Sample(WORLD_SIZE, assignment.world_size if assignment else 0),
            Sample(RESTARTS, assignment.restart_count if assignment else 0),
            Sample(LAST_OUTPUT, _wall_clock(group.last_output_at if group else None)),
            Sample(LAST_ANSWER, _wall_clock(self._answered_at)),
            Sample(SERVER_LOST, self._lost_s + self._silent_s),
        ]

    @property
    def _silent_s(self) -> float:
        """Seconds for which a server that has answered before has been silent."""
        return self.kernel.machine.outages.silent_s(asyncio.get_running_loop().time())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # such a request gets no answer
        except Exception as error:
            self._log(words.not_reported(f"{type(error).__name__}: {error}"), Level.WARNING)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request is None:
            return
        status, body = HTTPStatus.NOT_FOUND, f"{AGENT_HAS_METRICS_ONLY}\n".encode()
        if request.target.partition(b"?")[0] == PATH.encode() and request.method in (b"GET", b"HEAD"):
            status, body = HTTPStatus.OK, await in_thread(partial(_written, self.samples()))
        kind = CONTENT_TYPE if status is HTTPStatus.OK else "text/plain"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}",
            f"Content-Length: {len(body)}", "Connection: close", "", "",
        )  # fmt: skip
        writer.write("\r\n".join(lines).encode() + (body if request.method != b"HEAD" else b""))
        await writer.drain()


def _written(samples: list[Sample]) -> bytes:
    return b"".join([*exposition(METRICS, samples), of_process()])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while attempting")[0]  # Python appends the address
        raise UsageError(words.no_port(host, port, why)) from None


def _wall_clock(at: float | None) -> float:
    """Return a time of the event loop in seconds since 1970, 0 for None."""
    return 0.0 if at is None else time.time() - (asyncio.get_running_loop().time() - at)
