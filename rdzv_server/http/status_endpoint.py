"""Status of the server and of every run that it remembers, as JSON."""

import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated

import msgspec
import rdzv_protocol
from msgspec import Meta, Struct, structs

from rdzv_server.auth.authorization import names_loopback
from rdzv_server.core.kernel.run import Agent, Run
from rdzv_server.core.views import run_view, status_view
from rdzv_server.core.views.status_view import NodeStatus, RunStatus
from rdzv_server.service.interface import ServerState, Service, Shows, naming_only, state_for
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read

INDENT = 2
NODES_AT_ONCE = 100
"""Number of a run's nodes that are written at once: about as many as a slice has time for."""
_HOST = re.compile(r"(?a:[\w.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):\d{1,5}")
"""Pattern for HOST:PORT in a Host header. People copy it into a command, so it contains nothing special."""
NO_NODES = b'"nodes":[]', b'"nodes": []'
"""Empty list of a run's nodes in JSON, compact and in lines. No string, and no earlier field, contains it."""


class ServerStatus(ServerState, frozen=True, kw_only=True):
    """The server itself."""

    version: str
    ready: bool
    agents_endpoint: Annotated[
        str | None, Meta(description="HOST:PORT by which agents last reached this server; null: no agent has, yet")
    ]


class Status(Struct, frozen=True, kw_only=True):
    """The server and every run that it remembers."""

    server: ServerStatus
    runs: list[RunStatus]


class StatusView:
    """Status of one server, for any number of readers.

    It may be large: a run's evidence takes some hundred kilobytes, and ten thousand nodes some megabytes. So it is made
    run by run, and for a large run some nodes at a time, in slices. An agent never waits longer than a slice.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._agents_endpoint: str | None = None

    def agent_came(self, host: str) -> None:
        """Note the Host header of an agent's request. The name by which other machines reach this one counts more."""
        known = self._agents_endpoint
        if host != known and not (known and names_loopback(host)) and _HOST.fullmatch(host):
            self._agents_endpoint = host

    async def pieces(
        self, shows: Shows | None = None, only: str | None = None, *, in_lines: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the document in pieces: the runs whose ids `shows` accepts, each with its state when its piece is made.

        `shows`: None for all runs. `only`: id of the only run to show, beside the server; None for all that `shows`
        accepts. Nodes of a run with more than `NODES_AT_ONCE` nodes have pieces of their own, and may be newer than the
        run's data.
        """
        start, between, end = (b"\n    ", b",\n    ", b"\n  ]\n}\n") if in_lines else (b"", b",", b"]}\n")
        state = state_for(self._service, shows)
        if only is not None:
            state = naming_only(state, lambda run_id: run_id == only)
        before, server = start, _written(_server(state, self._agents_endpoint), 1 * in_lines)
        yield b'{\n  "server": ' + server + b',\n  "runs": [' if in_lines else b'{"server":' + server + b',"runs":['
        for run in self._service.runs():
            if only in (None, run.run_id) and (shows is None or shows(run.run_id)):
                await checkpoint()
                async for piece in self._pieces_of(run, 2 * in_lines):
                    yield before + piece
                    before = b""
                before = between
        yield b"]\n}\n" if in_lines and before is start else end

    async def _pieces_of(self, run: Run, level: int) -> AsyncIterator[bytes]:
        now = partial(self._service.now, run.run_id)
        agents, written = read(
            run,
            lambda: _begin(run, now(), level),
            lambda why: ([], _written(status_view.unreadable(run, now(), why), level)),
        )
        if not agents:
            yield written
            return
        begin, end = written.split(NO_NODES[bool(level)], 1)
        yield begin + NO_NODES[bool(level)][:-1]
        between = b""
        for first in range(0, len(agents), NODES_AT_ONCE):
            await checkpoint()
            those = agents[first : first + NODES_AT_ONCE]
            if nodes := read(run, partial(_nodes, run, those, now(), level), lambda _: b""):
                yield between + nodes
                between = b","
        yield (b"\n" + b" " * INDENT * (level + 1) if level else b"") + b"]" + end


def _begin(run: Run, now: float, level: int) -> tuple[list[Agent], bytes]:
    """Return a large run's agents, and the run as JSON without them; for other runs no agents, and all of the JSON."""
    agents = run_view.agents(run)
    is_large = len(agents) > NODES_AT_ONCE
    return agents if is_large else [], _written(status_view.view(run, now, has_nodes=not is_large), level)


def _nodes(run: Run, agents: Sequence[Agent], now: float, level: int) -> bytes:
    """Return agents as JSON without brackets: only those that are still part of the run."""
    those = [status_view.node(run, agent, now) for agent in agents if agent.agent_id in run.agents]
    return _written(those, level and level + 1)[1:-1].rstrip() if those else b""


def _server(state: ServerState, agents_endpoint: str | None) -> ServerStatus:
    is_ready = state.unhealthy_reason is None
    of_server = structs.asdict(state)
    return ServerStatus(version=rdzv_protocol.VERSION, ready=is_ready, agents_endpoint=agents_endpoint, **of_server)


def _written(value: ServerStatus | RunStatus | list[NodeStatus], level: int) -> bytes:
    """Encode a value as JSON. `level`: its depth in a document that is written in lines; 0 for compact JSON."""
    compact = msgspec.json.encode(value)
    if not level:
        return compact
    return msgspec.json.format(compact, indent=INDENT).replace(b"\n", b"\n" + b" " * INDENT * level)
