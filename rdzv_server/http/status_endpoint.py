"""Status of the server and of every run that it remembers, as JSON."""

from collections.abc import AsyncIterator, Callable

import msgspec
import rdzv_protocol
from msgspec import Struct, structs

from rdzv_server.core.status_view import RunStatus, view
from rdzv_server.service.interface import ServerState, Service
from rdzv_server.service.operator_scheduler import checkpoint

INDENT = 2


class ServerStatus(ServerState, frozen=True, kw_only=True):
    """The server itself."""

    version: str
    ready: bool


class Status(Struct, frozen=True, kw_only=True):
    """The server and every run that it remembers."""

    server: ServerStatus
    runs: list[RunStatus]


class StatusView:
    """Status of one server, for as many readers as there are.

    It may be large, a run's evidence alone some hundred kilobytes. So it is made run by run, in slices: an agent never
    waits for more than one run.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def pieces(
        self, shows: Callable[[str], bool] = lambda run_id: True, *, in_lines: bool = False
    ) -> AsyncIterator[bytes]:
        """The document: the runs whose ids `shows` lets through, each as it stands when its piece is made."""
        start, between, end = (b"\n    ", b",\n    ", b"\n  ]\n}\n") if in_lines else (b"", b",", b"]}\n")
        before, server = start, _written(_server(self._service.state()), 1 * in_lines)
        yield b'{\n  "server": ' + server + b',\n  "runs": [' if in_lines else b'{"server":' + server + b',"runs":['
        for run in self._service.runs():
            if shows(run.run_id):
                await checkpoint()
                yield before + _written(view(run, self._service.now(run.run_id)), 2 * in_lines)
                before = between
        yield b"]\n}\n" if in_lines and before is start else end


def _server(state: ServerState) -> ServerStatus:
    is_ready = state.unhealthy_reason is None
    return ServerStatus(version=rdzv_protocol.VERSION, ready=is_ready, **structs.asdict(state))


def _written(value: ServerStatus | RunStatus, level: int) -> bytes:
    """The value as JSON; in lines if it is so many levels deep in the document, and not 0."""
    compact = msgspec.json.encode(value)
    if not level:
        return compact
    return msgspec.json.format(compact, indent=INDENT).replace(b"\n", b"\n" + b" " * INDENT * level)
