"""Launchers that are measured, and the plan of what to measure with each."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.stage import FOLDER

NPROC = 2
MAX_RESTARTS = "1000"
ADDRESS = "127.0.0.1"
RUN_ID = "benchmark"
OURS = "node-agent"


def _beside_interpreter(script: str) -> str:
    return os.path.join(os.path.dirname(sys.executable), script)


@dataclass(frozen=True, slots=True)
class NodeAgent:
    """node-agent. `flags`: what a measurement is about, such as a lease; they come last and override others."""

    name: str = OURS
    """Name in the table."""
    flags: tuple[str, ...] = ()
    installed: tuple[str, ...] = (_beside_interpreter("node-agent"),)
    """Command as a user types it: the script beside the interpreter."""
    module: tuple[str, ...] = (sys.executable, "-m", "node_agent")
    """The same as a module of the interpreter, which saves the few milliseconds of the script."""
    environment: Mapping[str, str] = field(default_factory=dict)
    nproc: int = NPROC

    @property
    def standalone(self) -> tuple[str, ...]:
        """Arguments for one node without a server; empty if a server is always needed."""
        return ("--standalone", "--nproc", str(self.nproc))

    def server(self, port: int, folder: str) -> list[str]:
        """Return the command of the rendezvous server, None if there is none. It keeps its state in `folder`."""
        store = f"sqlite:{os.path.join(folder, 'state.db')}"
        return [sys.executable, "-m", "rdzv_server", "--host", ADDRESS, "--port", str(port), "--store", store]

    def agent(self, number: int, nnodes: str, port: int, last_call_s: int | None = None) -> list[str]:
        """Return the command of agent `number`, from 0, with `nproc` workers. `last_call_s`: None for the default."""
        last_call = [] if last_call_s is None else ["--last-call-timeout", str(last_call_s)]
        return [
            *self.module,
            *("--endpoint", f"{ADDRESS}:{port}", "--run-id", RUN_ID, "--node-id", f"node{number}"),
            *("--nnodes", nnodes, "--nproc", str(self.nproc), "--max-restarts", MAX_RESTARTS),
            *(*last_call, *self.flags),
        ]


@dataclass(frozen=True, slots=True)
class Torchrun:
    """torchrun with its c10d backend. Agent 0 always hosts the store, which makes every figure better."""

    name: str = "torchrun"
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    installed: tuple[str, ...] = (_beside_interpreter("torchrun"),)
    module: tuple[str, ...] = (sys.executable, "-m", "torch.distributed.run")
    standalone: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(NPROC))

    def server(self, port: int, folder: str) -> list[str] | None:
        return None

    def agent(self, number: int, nnodes: str, port: int, last_call_s: int | None = None) -> list[str]:
        return self._agent("c10d", nnodes, port, last_call_s, {"is_host": "true" if number == 0 else "false"})

    def _agent(
        self, backend: str, nnodes: str, port: int, last_call_s: int | None, conf: Mapping[str, str]
    ) -> list[str]:
        last_call = {} if last_call_s is None else {"last_call_timeout": last_call_s}
        pairs = {**conf, **last_call, **self.conf}
        return [
            *(*self.module, "--rdzv-backend", backend, "--rdzv-endpoint", f"{ADDRESS}:{port}"),
            *("--rdzv-id", RUN_ID, "--local-addr", ADDRESS),
            *("--rdzv-conf", ",".join(f"{name}={value}" for name, value in pairs.items())),
            *("--nnodes", nnodes, "--nproc-per-node", str(NPROC), "--max-restarts", MAX_RESTARTS, *self.flags),
        ]


@dataclass(frozen=True, slots=True)
class TorchrunWithEtcd(Torchrun):
    """torchrun with its etcd-v2 backend. It has no `standalone`: one node needs the server, too."""

    standalone: tuple[str, ...] = ()

    def server(self, port: int, folder: str) -> list[str]:
        clients, peers = f"http://{ADDRESS}:{port}", f"http://{ADDRESS}:0"
        return [
            *("etcd", "--enable-v2", "--data-dir", os.path.join(folder, "etcd")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
        ]

    def agent(self, number: int, nnodes: str, port: int, last_call_s: int | None = None) -> list[str]:
        return self._agent("etcd-v2", nnodes, port, last_call_s, {"protocol": "http"})


@dataclass(frozen=True, slots=True)
class PlainAgent:
    """Launcher without features, at a server without decisions: the floor of a launch and of an agent's memory."""

    name: str = "a launcher without features"
    nproc: int = NPROC
    installed: tuple[str, ...] = (sys.executable, os.path.join(FOLDER, "plain_agent.py"))
    module: tuple[str, ...] = installed
    standalone: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def server(self, port: int, folder: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.bare_server", str(port), "1"]

    def agent(self, number: int, nnodes: str, port: int, last_call_s: int | None = None) -> list[str]:
        return [*self.module, str(port), str(self.nproc)]


Launcher = NodeAgent | Torchrun | PlainAgent

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment in which each round of torchrun has its own store, which keeps nothing of the round before."""
LEAST = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3, "last_call_timeout": 1}
"""torchrun's timers at their minimum, in whole seconds. With two attempts restarts hang; with one, rounds do not form.
"""
STOCK = Torchrun()
TORCHRUN_OWN_STORE = Torchrun("torchrun, own store", OWN_STORE)
TORCHRUN_LEAST_TIMERS = Torchrun("torchrun, least timers", OWN_STORE, LEAST, ("--monitor-interval", "0.01"))
TORCHRUN_ETCD = TorchrunWithEtcd("torchrun, etcd-v2", OWN_STORE)


def torch_is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None and os.path.exists(STOCK.installed[0])


def why_no_etcd() -> str:
    """Return why torchrun's etcd-v2 backend cannot run here; empty if it can."""
    if not shutil.which("etcd"):
        return "etcd is not on PATH"
    if importlib.util.find_spec("etcd") is None:
        return "python-etcd is not installed"
    said = subprocess.run(["etcd", "--help"], capture_output=True, text=True)
    return "" if "--enable-v2" in said.stdout + said.stderr else "this etcd has no --enable-v2"


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests of the command line, and abilities of this machine."""

    repeat: int
    """Most samples of a measurement."""
    torchrun: bool = True
    """Whether torchrun is measured too."""
    no_etcd: str = ""
    """Reason why torchrun's etcd-v2 backend cannot run; empty if it can."""
    nodes: int = 10_000
    """Number of nodes of the large run beside other runs."""

    def torchruns(self, *, least_timers: bool = False) -> list[Launcher]:
        """Return the forms of torchrun that can run here."""
        forms: list[Torchrun] = [STOCK, TORCHRUN_OWN_STORE]
        forms += [] if self.no_etcd else [TORCHRUN_ETCD]
        forms += [TORCHRUN_LEAST_TIMERS] if least_timers else []
        return [*forms] if self.torchrun else []
