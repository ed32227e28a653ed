"""Launchers that are put through the year on real processes, and how each is started on a node."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py")
RUN_ID = "year"
OURS, FAIR, USUAL = "node-agent", "torchrun, retry loop", "torchrun"
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
EXCLUSION = ("--exclude-after", "3/60s", "--exclude-for", "30s")
"""Flags of rdzv-server: an excluded node may come back after what stands for half an hour."""
HANGS = ("--progress-timeout", "start=30,step=5,checkpoint=5")
"""Flags of node-agent: seconds without progress after which workers are suspected."""


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
    """Whether a loop on each node starts the launcher again whenever it ends otherwise than well."""

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    def server(self, endpoint: str, folder: str) -> list[str] | None:
        """The program besides the agents; None: the agent of node 0 has it within."""
        if not self.is_ours:
            return None
        store = f"sqlite:{os.path.join(folder, 'state.db')}"
        host, _, port = endpoint.rpartition(":")
        where = ("--host", host, "--port", port, "--store", store)
        tokens = [f"--token-file={folder}/agent-token", f"--admin-token-file={folder}/admin-token"]
        return [sys.executable, "-m", "rdzv_server", *where, *tokens, *EXCLUSION]

    def agent(self, node: int, nnodes: str, endpoint: str, address: str, folder: str) -> list[str]:
        """The launcher on this node, whose address this is. `endpoint`: of the server, or of node 0."""
        if self.is_ours:
            token = f"--token-file={folder}/agent-token"
            where = ("--endpoint", endpoint, token, "--run-id", RUN_ID, "--node-id", node_id(node))
            return [sys.executable, "-m", "node_agent", *where, "--nnodes", nnodes, *self.flags, TRAINER]
        conf = ",".join((f"is_host={'true' if node == 0 else 'false'}", *self.conf))
        flags = (*self.flags, "--rdzv-conf", conf)
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", RUN_ID, "--local-addr", address)
        command = [sys.executable, "-m", "torch.distributed.run", *where, "--nnodes", nnodes, *flags, TRAINER]
        return ["sh", "-c", f"until {shlex.join(command)}; do sleep 1; done"] if self.retries else command


def node_id(node: int) -> str:
    return f"node{node}"


def _ours() -> Contender:
    flags = (
        *("--max-restarts", "20", "--restart-window", "120", "--shutdown-timeout", "1"),
        *HANGS,
    )
    return Contender(OURS, " ".join((*flags, "and of the server", *EXCLUSION)), flags, OWN_STORE)


def all_contenders() -> list[Contender]:
    least = ("last_call_timeout=5",)  # with less 18 agents formed no round on two busy CPUs
    fair = ("--max-restarts", "20", "--shutdown-timeout", "1", "--monitor-interval", "0.1")
    usual = ("--max-restarts", "3")
    return [
        _ours(),
        Contender(FAIR, " ".join((*fair, "--rdzv-conf", ",".join(least))), fair, OWN_STORE, least, retries=True),
        Contender(USUAL, " ".join(usual), usual),
    ]
