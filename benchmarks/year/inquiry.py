"""Questions to rdzv-server about the run of a measurement."""

import json
from typing import Any
from urllib.request import Request, urlopen

TIMEOUT_S = 10.0


def ask(endpoint: str, path: str, body: dict[str, object] | None = None) -> Any:
    """The server's answer; an action, with a body. Raises `OSError`."""
    data = json.dumps(body).encode() if body else None
    request = Request(f"http://{endpoint}{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def events(endpoint: str, run_id: str) -> list[dict[str, Any]]:
    """All events of the run, in their order. Raises `OSError`."""
    found: list[dict[str, Any]] = []
    path, after = f"/v1/runs/{run_id}/events?limit=1000", 0
    while page := ask(endpoint, f"{path}&after={after}")["events"]:
        found += page
        after = page[-1]["number"]
    return found
