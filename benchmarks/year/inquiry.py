"""Questions to rdzv-server about the run of a measurement."""

import json
import secrets
from typing import Any
from urllib.request import Request, urlopen

TIMEOUT_S = 10.0
TOKENS = {"agent-token": secrets.token_hex(16), "admin-token": secrets.token_hex(16)}
"""Tokens by their files' names. Without tokens a server lets operators act from its loopback alone."""


def ask(endpoint: str, path: str, body: dict[str, object] | None = None) -> Any:
    """The server's answer; an action, with a body. Raises `OSError`."""
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS['admin-token']}"}
    request = Request(f"http://{endpoint}{path}", data, headers)
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
