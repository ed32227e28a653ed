"""Launchers of the year on real processes: how each is started on a node, and requests to rdzv-server."""

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.launchers import OWN_STORE

TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py")
RUN_ID = "year"
OURS, FAIR, USUAL = "node-agent", "torchrun, retry loop", "torchrun"
EXCLUSION = ("--exclude-after", "3/60s", "--exclude-for", "30s")
"""Flags of rdzv-server. The time of an exclusion is scaled, and stands for half an hour."""
TIMEOUT_S = 10.0
AGENT_TOKEN, ADMIN_TOKEN = "agent-token", "admin-token"
TOKENS = {AGENT_TOKEN: secrets.token_hex(16), ADMIN_TOKEN: secrets.token_hex(16)}
"""Tokens by the names of their files. A server without tokens lets operators act only from its loopback."""
HANGS = ("--progress-timeout", "start=30,step=5,checkpoint=5")
"""Flags of node-agent: seconds without progress after which it suspects a hang."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One launcher. `environment`: variables of its agents."""

    name: str
    about: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: tuple[str, ...] = ()
    """torchrun's settings of its rendezvous."""
    retries: bool = False
    """Whether a loop on each node starts the launcher again whenever it fails."""

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    def server(self, endpoint: str, folder: str) -> list[str] | None:
        """Return the command of the server; None if the agent of node 0 contains it."""
        if not self.is_ours:
            return None
        store = f"sqlite:{os.path.join(folder, 'state.db')}"
        host, _, port = endpoint.rpartition(":")
        where = ("--host", host, "--port", port, "--store", store)
        tokens = [f"--token-file={folder}/{AGENT_TOKEN}", f"--admin-token-file={folder}/{ADMIN_TOKEN}"]
        return [sys.executable, "-m", "rdzv_server", *where, *tokens, *EXCLUSION]

    def agent(self, node: int, nnodes: str, endpoint: str, address: str, folder: str) -> list[str]:
        """Return the launcher's command on this node at this address. `endpoint`: of the server, or of node 0."""
        if self.is_ours:
            token = f"--token-file={folder}/{AGENT_TOKEN}"
            where = ("--endpoint", endpoint, token, "--run-id", RUN_ID, "--node-id", node_id(node))
            return [sys.executable, "-m", "node_agent", *where, "--nnodes", nnodes, *self.flags, TRAINER]
        conf = ",".join((f"is_host={'true' if node == 0 else 'false'}", *self.conf))
        flags = (*self.flags, "--rdzv-conf", conf)
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", RUN_ID, "--local-addr", address)
        command = [sys.executable, "-m", "torch.distributed.run", *where, "--nnodes", nnodes, *flags, TRAINER]
        return ["sh", "-c", f"until {shlex.join(command)}; do sleep 1; done"] if self.retries else command


def node_id(node: int) -> str:
    return f"node{node}"


def all_contenders() -> list[Contender]:
    ours = ("--max-restarts", "20", "--restart-window", "120", "--shutdown-timeout", "1", *HANGS)
    least = ("last_call_timeout=5",)  # with less, 18 agents did not form a round on two busy CPUs
    fair = ("--max-restarts", "20", "--shutdown-timeout", "1", "--monitor-interval", "0.1")
    usual = ("--max-restarts", "3")
    return [
        Contender(OURS, " ".join((*ours, "and of the server", *EXCLUSION)), ours, OWN_STORE),
        Contender(FAIR, " ".join((*fair, "--rdzv-conf", ",".join(least))), fair, OWN_STORE, least, retries=True),
        Contender(USUAL, " ".join(usual), usual),
    ]


def ask(endpoint: str, path: str, body: dict[str, object] | None = None) -> Any:
    """Return the server's answer; with a body, that to an action. Raises `OSError`."""
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS[ADMIN_TOKEN]}"}
    request = Request(f"http://{endpoint}{path}", data, headers)
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def events(endpoint: str, run_id: str) -> list[dict[str, Any]]:
    """Return all events of the run, in order. Raises `OSError`."""
    found: list[dict[str, Any]] = []
    path, after = f"/v1/runs/{run_id}/events?limit=1000", 0
    while page := ask(endpoint, f"{path}&after={after}")["events"]:
        found += page
        after = page[-1]["number"]
    return found
