"""The two launchers, as command lines. A script and its arguments follow each."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Protocol

NPROC = 2
MAX_RESTARTS = "1000"
ADDRESS = "127.0.0.1"


class Launcher(Protocol):
    """What a measurement needs to know of a launcher."""

    name: str
    installed: tuple[str, ...]
    """As the user types it: the script beside the interpreter."""
    module: tuple[str, ...]
    """As a module of the interpreter."""
    standalone: tuple[str, ...]
    """The arguments for one node of `NPROC` workers."""
    environment: Mapping[str, str]

    def server(self, port: int) -> list[str] | None:
        """The rendezvous server, if it is a program of its own."""

    def agent(self, number: int, nnodes: str, port: int) -> list[str]:
        """Agent 0 or 1 of a run with `NPROC` workers a node."""


def _beside_interpreter(script: str) -> str:
    return os.path.join(os.path.dirname(sys.executable), script)


class NodeAgent:
    name = "node-agent"
    installed: tuple[str, ...] = (_beside_interpreter("node-agent"),)
    module: tuple[str, ...] = (sys.executable, "-m", "node_agent")
    standalone: tuple[str, ...] = ("--standalone", "--nproc", str(NPROC))
    environment: Mapping[str, str] = {}

    def server(self, port: int) -> list[str]:
        return [sys.executable, "-m", "rdzv_server", "--host", ADDRESS, "--port", str(port)]

    def agent(self, number: int, nnodes: str, port: int) -> list[str]:
        return [
            *self.module,
            *("--endpoint", f"{ADDRESS}:{port}", "--run-id", "benchmark", "--node-id", f"node{number}"),
            *("--nnodes", nnodes, "--nproc", str(NPROC), "--max-restarts", MAX_RESTARTS),
        ]


class WarmNodeAgent(NodeAgent):
    """Its workers' torch is imported already."""

    name = "node-agent --preload torch"

    def agent(self, number: int, nnodes: str, port: int) -> list[str]:
        return [*super().agent(number, nnodes, port), "--preload", "torch"]


class Torchrun:
    """In its best form: agent 0 is the store's host for certain, and no round reuses the store of the one before."""

    name = "torchrun"
    installed: tuple[str, ...] = (_beside_interpreter("torchrun"),)
    module: tuple[str, ...] = (sys.executable, "-m", "torch.distributed.run")
    standalone: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(NPROC))
    environment: Mapping[str, str] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def server(self, port: int) -> None:
        return None

    def agent(self, number: int, nnodes: str, port: int) -> list[str]:
        return [
            *self.module,
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESS}:{port}", "--rdzv-id", "benchmark"),
            *("--rdzv-conf", f"is_host={'true' if number == 0 else 'false'}", "--local-addr", ADDRESS),
            *("--nnodes", nnodes, "--nproc-per-node", str(NPROC), "--max-restarts", MAX_RESTARTS),
        ]


def torch_is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None and os.path.exists(Torchrun.installed[0])
