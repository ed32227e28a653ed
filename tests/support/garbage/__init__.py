"""Garbage of a server that another process runs: see `sitecustomize`."""

import json
import signal
from pathlib import Path

from tests.support.programs import Server

MARK = "garbage: "
"""Beginning of the line with what is garbage."""


def reporting() -> dict[str, str]:
    """Return the environment of a server that reports its garbage."""
    return {"PYTHONPATH": str(Path(__file__).parent)}


async def garbage_of(server: Server) -> dict[str, int]:
    """Free the server's garbage. Return how many objects of each kind it had since the last call."""
    reported = sum(line.startswith(MARK) for line in server.out)
    server.signal(signal.SIGRTMIN)
    line = await server.line(f"^{MARK}", nth=reported + 1)
    return dict(json.loads(line.string.removeprefix(MARK)))
