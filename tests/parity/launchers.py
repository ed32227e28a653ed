"""The launchers, as command lines of one node's agent. What follows, such as `--nnodes` and the script, is common."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Protocol

from benchmarks.stage import free_port
from tests.parity.stage import Program, Stage

ADDRESS = "127.0.0.1"
RUN_ID = "defects"
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""With it, no round reuses the store of the round before."""
KEEP_ALIVE_S = 1
KEEP_ALIVES = 3
"""torchrun's own are 5 s and 3: it would need 15 s to miss a node."""


class Launcher(Protocol):
    """What a scenario may know of a launcher."""

    name: str
    variant: str
    """What is special about it, for the table; empty for nothing."""
    is_ours: bool
    standalone: tuple[str, ...]
    """The command of one node alone."""
    environment: Mapping[str, str]
    standing_by: str
    """What a spare node's agent writes once it is one."""

    def open(self, stage: Stage, token_file: str | None = None) -> "Endpoint":
        """Prepare a run of several nodes."""


class Endpoint(Protocol):
    """Where the agents of a run meet."""

    port: int

    def agent(self, is_first: bool, last_call_s: float) -> list[str]:
        """An agent's command up to the flags that both launchers have."""


class Torchrun:
    """With its timers as short as its flags allow.

    `shares_store`: as it comes, where a new round reuses the first round's store. Without it, no round does so.
    """

    name = "torchrun"
    is_ours = False
    standalone: tuple[str, ...] = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    standing_by = "to the redundancy list"

    def __init__(self, *, shares_store: bool) -> None:
        self.variant = "as it comes" if shares_store else f"with `{OWN_STORE}`"
        name, _, value = OWN_STORE.partition("=")
        self.environment: Mapping[str, str] = {
            name: "0" if shares_store else value,
            "TORCH_LOGS": "+torch.distributed.elastic.rendezvous.dynamic_rendezvous",
        }

    def open(self, stage: Stage, token_file: str | None = None) -> "TorchrunEndpoint":
        return TorchrunEndpoint(free_port())


class TorchrunEndpoint:
    """The first agent hosts the store."""

    def __init__(self, port: int) -> None:
        self.port = port

    def agent(self, is_first: bool, last_call_s: float) -> list[str]:
        conf = {
            "is_host": str(is_first).lower(),
            "last_call_timeout": f"{last_call_s:.0f}",
            "keep_alive_interval": KEEP_ALIVE_S,
            "keep_alive_max_attempt": KEEP_ALIVES,
        }
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--local-addr", ADDRESS),
            *("--rdzv-endpoint", f"{ADDRESS}:{self.port}", "--rdzv-id", RUN_ID),
            *("--rdzv-conf", ",".join(f"{name}={value}" for name, value in conf.items())),
        ]


class NodeAgent:
    """With a server of its own for each run, and the defaults of both."""

    name = "node-agent"
    variant = ""
    is_ours = True
    standalone: tuple[str, ...] = (sys.executable, "-m", "node_agent", "--standalone")
    environment: Mapping[str, str] = {}
    standing_by = "standing by"

    def open(self, stage: Stage, token_file: str | None = None) -> "NodeAgentEndpoint":
        token = ("--token-file", token_file) if token_file else ()
        server = stage.start("server", [sys.executable, "-m", "rdzv_server", "--host", ADDRESS, "--port", "0", *token])
        stage.expect(lambda: _listening(server), "rdzv-server listens")
        return NodeAgentEndpoint(_listening(server), token)


class NodeAgentEndpoint:
    def __init__(self, port: int, token: tuple[str, ...]) -> None:
        self.port = port
        self._token = token
        self._agents = 0

    def agent(self, is_first: bool, last_call_s: float) -> list[str]:
        self._agents += 1
        return [
            *(sys.executable, "-m", "node_agent", "--endpoint", f"{ADDRESS}:{self.port}", "--run-id", RUN_ID),
            *("--node-id", f"node{self._agents}", "--last-call-timeout", f"{last_call_s:g}", *self._token),
        ]


def torch_is_installed() -> bool:
    return os.path.exists(os.path.join(os.path.dirname(sys.executable), "torchrun"))


def _listening(server: Program) -> int:
    """The port that the server names once it listens; 0 until then."""
    named = re.search(rf"listening on http://{re.escape(ADDRESS)}:(\d+)", server.text())
    return int(named[1]) if named else 0
