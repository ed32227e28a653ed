"""What the status endpoint answers: the server and every run that it remembers, as JSON that people can read."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import protocol
from rdzv_server.core.status import view
from rdzv_server.service import Service

INDENT = 2


class StatusView:
    """The status of one server, for as many readers as there are.

    It may be large, a run's evidence alone some hundred kilobytes. So it is made run by run, one at a time among all
    readers, and whoever else waits for the server has a turn in between: an agent never waits for more than one run's.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turn = asyncio.Lock()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The document. Each run is as it stands when its piece is made."""
        before = "\n    "
        yield f'{{\n  "server": {_json(_server(self._service), 1)},\n  "runs": ['.encode()
        for run in self._service.runs():
            async with self._turn:
                piece = before + _json(view(run, self._service.now(run.run_id)), 2)
                await asyncio.sleep(0)
            yield piece.encode()
            before = ",\n    "
        yield b"]\n}\n" if before.startswith("\n") else b"\n  ]\n}\n"


def _server(service: Service) -> dict[str, Any]:
    return {
        "version": protocol.VERSION,
        "epoch": service.epoch,
        "ready": service.trouble is None,
        "trouble": service.trouble,
        "leads": service.leads,
        "leader": service.leader,
        "leadership": service.leadership,
        "shards": [asdict(shard) for shard in service.shards],
        "uptime_s": round(service.now() - service.started_at, 3),
    }


def _json(value: Any, level: int) -> str:
    """The value in lines, as a part of a document, so many levels deep."""
    return json.dumps(value, indent=INDENT).replace("\n", "\n" + " " * INDENT * level)
