"""What the status endpoint answers: the server and every run that it remembers, as JSON that people can read."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import rdzv_protocol
from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace
from rdzv_protocol.constraints import Id, Revision

from rdzv_server.core.status_view import Duration, RunStatus, view
from rdzv_server.service.interface import Service, ShardView

INDENT = 2
AT_ONCE = 250
"""Nodes that are written in one go, which takes a few milliseconds."""
NO_NODES = '"nodes": []'
"""As JSON has it; in a text of a script's, its quotation marks would be escaped."""


class ServerStatus(Struct, frozen=True, kw_only=True):
    """The server itself."""

    version: str
    epoch: Annotated[Id, Meta(description="one life of the server process")]
    ready: bool
    trouble: Annotated[str | None, Meta(description="why nothing can be decided at present")]
    leads: bool
    leader: Annotated[str | None, Meta(description="of several servers, the one that leads, if it is known")]
    leadership: Revision
    shards: Annotated[list[ShardView], Meta(description="who leads each shard; empty: a server alone")]
    uptime_s: Duration


class Status(Struct, frozen=True, kw_only=True):
    """The server and every run that it remembers."""

    server: ServerStatus
    runs: list[RunStatus]


class StatusView:
    """The status of one server, for as many readers as there are.

    It may be large, a run's evidence alone some hundred kilobytes. So it is made run by run, one at a time among all
    readers, and whoever else waits for the server has a turn in between: an agent never waits for more than one run's
    view, and for a few nodes of it to be written.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turn = asyncio.Lock()

    async def pieces(self, shows: Callable[[str], bool] = lambda run_id: True) -> AsyncIterator[bytes]:
        """The document. Each run is as it stands when its piece is made. `shows`: which run ids are in it."""
        before = "\n    "
        yield f'{{\n  "server": {_json(_server(self._service), 1)},\n  "runs": ['.encode()
        for run in filter(lambda run: shows(run.run_id), self._service.runs()):
            async with self._turn:
                piece = await _written(view(run, self._service.now(run.run_id)))
            yield (before + piece).encode()
            before = ",\n    "
        yield b"]\n}\n" if before.startswith("\n") else b"\n  ]\n}\n"


def _server(service: Service) -> ServerStatus:
    return ServerStatus(
        version=rdzv_protocol.VERSION,
        epoch=service.epoch,
        ready=service.trouble is None,
        trouble=service.trouble,
        leads=service.leads,
        leader=service.leader,
        leadership=service.leadership,
        shards=list(service.shards),
        uptime_s=round(service.now() - service.started_at, 3),
    )


async def _written(run: RunStatus) -> str:
    """A run's status in lines; its nodes, of which there may be thousands, a few at a time."""
    before, after = _json(replace(run, nodes=[]), 2).split(NO_NODES)
    lines: list[str] = []
    for begin in range(0, len(run.nodes), AT_ONCE):
        some = _json(run.nodes[begin : begin + AT_ONCE], 3)
        lines.append(some[1 : some.rindex("\n")])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    nodes = NO_NODES[:-1] + ",".join(lines) + "\n" + " " * INDENT * 3 + "]" if lines else NO_NODES
    return before + nodes + after


def _json(value: Any, level: int) -> str:
    """The value in lines, as a part of a document, so many levels deep."""
    return json.dumps(to_builtins(value), indent=INDENT).replace("\n", "\n" + " " * INDENT * level)
