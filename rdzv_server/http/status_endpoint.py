"""Status of the server and of every run that it remembers, as JSON."""

from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec
import rdzv_protocol
from msgspec import Struct, structs

from rdzv_server.core import status_view
from rdzv_server.core.run import Run
from rdzv_server.core.status_view import NodeStatus, RunStatus
from rdzv_server.service.interface import ServerState, Service
from rdzv_server.service.operator_scheduler import checkpoint

INDENT = 2
NODES_AT_ONCE = 100
"""Nodes of a run that are written at once: about as many as a slice has time for."""
NO_NODES = b'"nodes":[]', b'"nodes": []'
"""Empty list of a run's nodes in JSON, compact and in lines. No string, and no field before it, contains it."""


class ServerStatus(ServerState, frozen=True, kw_only=True):
    """The server itself."""

    version: str
    ready: bool


class Status(Struct, frozen=True, kw_only=True):
    """The server and every run that it remembers."""

    server: ServerStatus
    runs: list[RunStatus]


class StatusView:
    """Status of one server, for any number of readers.

    It may be large, a run's evidence alone some hundred kilobytes, and ten thousand nodes some megabytes. So it is made
    run by run, and of a large run some nodes at a time, in slices: an agent never waits for more.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def pieces(
        self, shows: Callable[[str], bool] = lambda run_id: True, *, in_lines: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the document in pieces: the runs whose ids `shows` lets through, each as of when its piece is made.

        Nodes of a run that has more than `NODES_AT_ONCE` have pieces of their own, and may be newer than the run's
        data.
        """
        start, between, end = (b"\n    ", b",\n    ", b"\n  ]\n}\n") if in_lines else (b"", b",", b"]}\n")
        before, server = start, _written(_server(self._service.state()), 1 * in_lines)
        yield b'{\n  "server": ' + server + b',\n  "runs": [' if in_lines else b'{"server":' + server + b',"runs":['
        for run in self._service.runs():
            if shows(run.run_id):
                await checkpoint()
                async for piece in self._pieces_of(run, 2 * in_lines):
                    yield before + piece
                    before = b""
                before = between
        yield b"]\n}\n" if in_lines and before is start else end

    async def _pieces_of(self, run: Run, level: int) -> AsyncIterator[bytes]:
        agents, now = status_view.agents(run), partial(self._service.now, run.run_id)
        is_large = len(agents) > NODES_AT_ONCE
        written = _written(status_view.view(run, now(), has_nodes=not is_large), level)
        if not is_large:
            yield written
            return
        begin, end = written.split(NO_NODES[bool(level)], 1)
        yield begin + NO_NODES[bool(level)][:-1]
        between = b""
        for first in range(0, len(agents), NODES_AT_ONCE):
            await checkpoint()
            those = [agent for agent in agents[first : first + NODES_AT_ONCE] if agent.agent_id in run.agents]
            if those:
                nodes = _written([status_view.node(run, agent, now()) for agent in those], level and level + 1)
                yield between + nodes[1:-1].rstrip()
                between = b","
        yield (b"\n" + b" " * INDENT * (level + 1) if level else b"") + b"]" + end


def _server(state: ServerState) -> ServerStatus:
    is_ready = state.unhealthy_reason is None
    return ServerStatus(version=rdzv_protocol.VERSION, ready=is_ready, **structs.asdict(state))


def _written(value: ServerStatus | RunStatus | list[NodeStatus], level: int) -> bytes:
    """Encode a value as JSON. `level`: its depth in a document that is written in lines; 0: compact."""
    compact = msgspec.json.encode(value)
    if not level:
        return compact
    return msgspec.json.format(compact, indent=INDENT).replace(b"\n", b"\n" + b" " * INDENT * level)
