"""Traces that a run leaves in the machine: processes, and listening ports."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.hosts.network import Network
from tests.support.process_info import children

MARK = "TEST_FLEET"
"""Environment variable of every process of a run. Its value names the run."""


def of(mark: str, network: Network) -> list[str]:
    """Return the traces of the run with this mark, in words."""
    inside = [f"process {pid} on host {name}" for name, pids in network.processes().items() for pid in pids]
    marked = [f"process {pid}" for pid in _pids() if f"{MARK}={mark}".encode() in _read(pid, "environ").split(b"\0")]
    listening = [
        f"port {port} on host {name}" for name, host in network.hosts.items() for port in host.namespace.listening()
    ]
    return [*inside, *marked, *listening]


PF_FORKNOEXEC, FLAGS = 0x40, 6
"""Flag of a process in the kernel, and the index of its flags after the name in /proc/PID/stat: proc(5)."""
ESTABLISHED = "01"
"""State of a connection in /proc/PID/net/tcp."""
HELPERS: dict[str, Callable[[bytes, bytes], bool]] = {
    "store helper": lambda command, name: b"store_helper.py" in command,
    "guardian": lambda command, name: b"\0guardian\0" in command,
    "fork server": lambda command, name: name == b"fork-server",
    "warm processes": lambda command, name: name == b"warm-process",
}
"""Helpers of an agent, by command line and name."""


def workers(agent: int, script: str) -> set[int]:
    """Return the agent's children that execute the script, without forks that have not started it or have no task.

    If a shell starts them, return its children.
    """
    found = {pid for pid in children(agent) if _is_worker(pid, script.encode())}
    shells = {pid for pid in found if _read(pid, "comm").strip() == b"bash"}
    return (found - shells).union(*map(children, shells))


def helpers(agent: int, kind: str) -> list[int]:
    """Return the agent's children of this kind."""
    return [pid for pid in children(agent) if HELPERS[kind](_read(pid, "cmdline"), _read(pid, "comm").strip())]


def serves(store_helper: int, port: int) -> bool:
    """Return whether a store helper has a connection at this port. If not, it may still be about to take the store
    over.
    """
    places = Path(f"/proc/{store_helper}/fd")
    lines = b"".join(_read(store_helper, f"net/{table}") for table in ("tcp", "tcp6")).decode().splitlines()
    sockets = (line.split() for line in lines)
    at_port = {f"socket:[{line[9]}]" for line in sockets if line[1].endswith(f":{port:04X}") and line[3] == ESTABLISHED}
    try:
        return any(os.readlink(places / name) in at_port for name in os.listdir(places))
    except OSError:  # it is gone, or one of its descriptors
        return False


def _is_worker(pid: int, script: bytes) -> bool:
    command, name = _read(pid, "cmdline"), _read(pid, "comm").strip()
    is_warm = name not in (b"fork-server", b"warm-process") and _is_fork(pid)
    return script in command and (is_warm if b"fork_server_helper.py" in command else b"node_agent" not in command)


def _is_fork(pid: int) -> bool:
    """Return whether the process has not executed a program of its own, like workers that begin as forks."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(fields) and bool(int(fields[FLAGS]) & PF_FORKNOEXEC)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone
        return b""
