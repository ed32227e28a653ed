"""Messages between a server and the agents of a run: recorded, replayed to a server, replayed to agents.

In the run, two nodes have one worker each. The first worker of rank 0 fails, the run restarts, and it succeeds.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, json, msgpack
from rdzv_protocol import paths

from tests.support.programs import PATIENCE_S, Program, Server, start_agent
from tests.support.tcp_proxy import Exchange, TcpProxy

NODES = ("a", "b")
SCRIPT = """\
import os, signal, sys

rank, size, restart = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
print(f"rank {rank} of {size}, restart {restart}", flush=True)
if restart == "0":
    sys.exit(3) if rank == "0" else signal.pause()
"""
FLAGS = ("--run-id", "recorded", "--nnodes", "2", "--nproc", "1", "--max-restarts", "1", "--lease", "500")
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""So that the messages do not depend on whether torch is installed."""
VARIES = ("epoch", "revision", "reason", "warning", "at", "failed_at", "port", "ettr")
"""Fields that differ between runs, or that are sentences. So do those in seconds, whose names end with `_s`."""
PARKED = (paths.JOIN, paths.POLL)
"""Paths of requests that the server answers later: those of an agent are answered in their order."""


class Request(Struct, frozen=True, tag="request"):
    """A request of an agent, named by its node."""

    number: int
    node: str
    path: str
    body: bytes


class Answer(Struct, frozen=True, tag="answer"):
    """The server's answer to the request of this number."""

    number: int
    status: int
    body: bytes


Step = Request | Answer


def written(steps: Sequence[Step]) -> bytes:
    return b"[\n" + b",\n".join(json.encode(step) for step in steps) + b"\n]\n"


def load(file: Path) -> list[Step]:
    return json.decode(file.read_bytes(), type=list[Step])


# Recording.


class _Recorder(list[Exchange]):
    """The exchanges of one agent, which it adds to the steps of all agents."""

    def __init__(self, steps: list[Step], node: str) -> None:
        self._steps, self._node = steps, node
        self._open: list[Request] = []

    def on_request(self, path: str, body: bytes) -> None:
        number = sum(isinstance(step, Request) for step in self._steps)
        self._open.append(Request(number, self._node, path, body))
        self._steps.append(self._open[-1])

    def append(self, exchange: Exchange) -> None:
        asked = next(each for each in self._open if (each.path, each.body) == (exchange.path, exchange.request))
        self._open.remove(asked)
        self._steps.append(Answer(asked.number, exchange.status, exchange.answer))


async def record(folder: Path) -> list[Step]:
    """Run it with today's programs, and return every message in the order in which they were sent."""
    (script := folder / "script.py").write_text(SCRIPT)
    steps: list[Step] = []
    server = await Server.listen("--store", "memory")
    async with AsyncExitStack() as proxies:
        agents = []
        for node in NODES:
            recorder = _Recorder(steps, node)
            proxy = TcpProxy(server.endpoint, recorder, recorder.on_request)
            await proxies.enter_async_context(proxy)
            agents.append(await agent_of(node, proxy.address, script))
            if node != NODES[-1]:
                await server.parks(1)  # so that the nodes join in this order, and get their ranks in it
        for agent in agents:
            assert await agent.exit_code() == 0, agent.err
    answered = {step.number for step in steps if isinstance(step, Answer)}
    return [step for step in steps if step.number in answered]


async def agent_of(node: str, endpoint: str, script: Path) -> Program:
    return await start_agent("--endpoint", endpoint, "--node-id", node, *FLAGS, script=script, env=ENVIRONMENT)


def fixed(value: Any) -> Any:
    """Return a message without what differs between runs."""
    if isinstance(value, dict):
        return {key: fixed(each) for key, each in value.items() if key not in VARIES and not key.endswith("_s")}
    return [fixed(each) for each in value] if isinstance(value, list) else value


# The server's side.


async def answers_of(server: Server, steps: Iterable[Step]) -> dict[int, tuple[int, Any]]:
    """Send the recorded requests to a server, each when all that preceded it has happened, and return the answers.

    A poll has the revision of the agent's last reply: the only part of a request that an agent takes from the server.
    """
    sent: dict[int, asyncio.Task[tuple[int, bytes]]] = {}
    requests: dict[int, Request] = {}
    revisions: dict[str, int] = {}
    found: dict[int, tuple[int, Any]] = {}
    try:
        for step in steps:
            if isinstance(step, Request):
                requests[step.number] = step
                body = msgpack.decode(step.body)
                if "revision" in body:
                    body["revision"] = revisions[step.node]
                sent[step.number] = asyncio.create_task(_post(server.endpoint, step.path, msgpack.encode(body)))
                await _arrived(server, sent.values())
            else:
                status, raw = await asyncio.wait_for(asyncio.shield(sent[step.number]), PATIENCE_S)
                found[step.number] = status, (answer := msgpack.decode(raw))
                if "revision" in answer:
                    revisions[requests[step.number].node] = answer["revision"]
    finally:
        for task in sent.values():
            task.cancel()
    return found


async def _arrived(server: Server, sent: Collection[asyncio.Task[Any]]) -> None:
    """Wait until the server has read every request: each is answered, or parked."""
    async with asyncio.timeout(PATIENCE_S):
        while (  # noqa: ASYNC110
            f"\nrdzv_long_polls {sum(not task.done() for task in sent)}.0\n" not in await server.get("/metrics")
        ):
            await asyncio.sleep(0.01)


async def _post(endpoint: str, path: str, body: bytes) -> tuple[int, bytes]:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        line, answer = await _message(reader)
        return int(line.split()[1]), answer
    finally:
        writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the first line and the body of an HTTP message."""
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(each.partition(":")[2]) for each in fields if each.lower().startswith("content-length:"))
    return line, await reader.readexactly(length)


# The agents' side.


class RecordedServer:
    """A server that gives the agent of one node the recorded answers. An async context manager.

    A join or poll is answered when the agent has sent all that it had sent before that answer. Ports are those that
    today's agent has reserved.
    """

    def __init__(self, steps: Sequence[Step], node: str) -> None:
        mine = {step.number: step for step in steps if isinstance(step, Request) and step.node == node}
        self._parked: list[tuple[int, Answer]] = []
        self._others: list[tuple[str, Answer]] = []
        before = 0
        for step in steps:
            if isinstance(step, Request):
                before += step.number in mine and step.path not in PARKED
            elif step.number in mine:
                if mine[step.number].path in PARKED:
                    self._parked.append((before, step))
                else:
                    self._others.append((mine[step.number].path, step))
        self._received = 0
        self._more = asyncio.Condition()
        self._port = 0
        self.unknown: list[str] = []
        """Requests for which there is no recorded answer."""

    async def __aenter__(self) -> "RecordedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                line, body = await _message(reader)
                answer = await self._answer(line.split()[1], msgpack.decode(body))
                head = f"HTTP/1.1 {answer.status} X\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
                writer.write(f"{head}Content-Length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, path: str, request: dict[str, Any]) -> Answer:
        if path in PARKED:
            self._port = request.get("port", self._port)
            if not self._parked:
                self.unknown.append(path)
                await asyncio.Event().wait()
            before, answer = self._parked.pop(0)
            async with self._more:
                await self._more.wait_for(lambda: self._received >= before)
            return self._here(answer)
        place = next((place for place, (of, _) in enumerate(self._others) if of == path), None)
        if place is None:
            self.unknown.append(path)
            await asyncio.Event().wait()
        async with self._more:
            self._received += 1
            self._more.notify_all()
        return self._others.pop(place or 0)[1]

    def _here(self, answer: Answer) -> Answer:
        body = msgpack.decode(answer.body)
        assignment = body.get("directive", {}).get("assignment", {})
        if assignment.get("group_rank") == 0:
            assignment["master_port"] = self._port
        return Answer(answer.number, answer.status, msgpack.encode(body))
