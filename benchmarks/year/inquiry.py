"""Questions to rdzv-server about the run of a measurement."""

import json
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.year.contenders import ADDRESS

TIMEOUT_S = 10.0


def ask(port: int, path: str, body: dict[str, object] | None = None) -> Any:
    """The server's answer; an action, with a body. Raises `OSError`."""
    data = json.dumps(body).encode() if body else None
    request = Request(f"http://{ADDRESS}:{port}{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def events(port: int, run_id: str) -> list[dict[str, Any]]:
    """All events of the run, in their order. Raises `OSError`."""
    found: list[dict[str, Any]] = []
    path, after = f"/v1/runs/{run_id}/events?limit=1000", 0
    while page := ask(port, f"{path}&after={after}")["events"]:
        found += page
        after = page[-1]["number"]
    return found
