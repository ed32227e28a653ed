"""What a run leaves in the machine: processes, and ports at which somebody listens."""

import os
from pathlib import Path

from tests.hosts.network import Network
from tests.integration.kin import children

MARK = "TEST_FLEET"
"""In the environment of every process of a run: which run it is."""


def of(mark: str, network: Network) -> list[str]:
    """What there is of the run with this mark, in words."""
    inside = [f"process {pid} on host {name}" for name, pids in network.processes().items() for pid in pids]
    marked = [f"process {pid}" for pid in _pids() if f"{MARK}={mark}".encode() in _read(pid, "environ").split(b"\0")]
    listening = [
        f"port {port} on host {name}" for name, host in network.hosts.items() for port in host.namespace.listening()
    ]
    return [*inside, *marked, *listening]


def workers(agent: int, script: str) -> set[int]:
    """The agent's children that execute the script; not its own copies that are about to."""
    commands = {pid: _read(pid, "cmdline") for pid in children(agent)}
    return {pid for pid, command in commands.items() if script.encode() in command and b"node_agent" not in command}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone
        return b""
