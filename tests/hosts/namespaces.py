"""Network namespaces with names that identify their maker, and ways to work inside one."""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import TypeVar

PREFIX = "rdzv"
NAMES = Path("/run/netns")
FILES = Path("/etc/netns")
"""Files in the folder of a namespace's name replace /etc's files of that name for programs inside."""
TUN = "/dev/net/tun"
CLONE_NEWNET = 0x40000000
TCP_TABLES, TCP_LISTEN = ("tcp", "tcp6"), "0A"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = count(1)
T = TypeVar("T")


class Namespace:
    """One network namespace, with its loopback up. Its name contains this process's pid, so parallel test runs do not
    collide.
    """

    def __init__(self) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        _run("ip", "netns", "add", self.name)
        self.configure("link set lo up")

    def configure(self, *commands: str) -> None:
        """Run commands of `ip` inside."""
        _run("ip", "-n", self.name, "-batch", "-", stdin="\n".join(commands))

    def command(self, *command: str) -> tuple[str, ...]:
        """Return the command that executes `command` inside. The started process becomes that program."""
        return ("ip", "netns", "exec", self.name, *command)

    def replace_file(self, name: str, text: str) -> None:
        """Let programs that start inside from now on read this text in /etc/`name`."""
        folder = FILES / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def tap(self, device: str) -> int:
        """Create a network device inside. Return a descriptor from which its frames are read and to which they are
        written.
        """
        return self._inside(lambda: _open_tap(device))

    def connect(self, port: int) -> socket.socket:
        """Return a connection to a program inside that listens at this port, bypassing all cables."""
        return self._inside(lambda: socket.create_connection(("localhost", port)))

    def pids(self) -> list[int]:
        """Return the processes inside."""
        return _pids(self.name)

    def listening(self) -> list[int]:
        """Return the TCP ports inside on which a program listens."""
        rows = self._inside(lambda: [row.split() for table in TCP_TABLES for row in _rows(table)])
        return sorted({int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in rows if state == TCP_LISTEN})

    def remove(self) -> None:
        """Kill the processes inside, and remove the namespace."""
        _kill(self.name)
        _remove(self.name)

    def _inside(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread inside, and return its result. Devices and sockets stay where they were made."""
        results: list[T] = []
        errors: list[OSError] = []

        def enter_and_work() -> None:
            try:
                _enter(NAMES / self.name)
                results.append(work())
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=enter_and_work)
        thread.start()
        thread.join()
        for error in errors:
            raise error
        return results[0]


@cache
def why_impossible() -> str | None:
    """Return why this machine cannot have such hosts, None if it can. Tries to make one."""
    if shutil.which("ip") is None:
        return "iproute2 is missing: tests/install-debian-packages.sh installs it"
    try:
        namespace = Namespace()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    try:
        os.close(namespace.tap("eth0"))
    except OSError as error:
        return f"no TAP devices here: {TUN}: {error.strerror}"
    finally:
        namespace.remove()
    return None


def remove_leftovers() -> None:
    """Remove what killed test runs have left: namespaces whose maker is gone, and the processes inside."""
    for name in _leftovers(path.name for path in (*_entries(NAMES), *_entries(FILES))):
        _kill(name)
        _remove(name)


def _leftovers(names: Iterable[str]) -> set[str]:
    makers = {name: match[1] for name in names if (match := re.fullmatch(rf"{PREFIX}(\d+)-\d+", name))}
    return {name for name, pid in makers.items() if not Path("/proc", pid).exists()}


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _pids(name: str) -> list[int]:
    try:
        return [int(pid) for pid in _run("ip", "netns", "pids", name).split()]
    except subprocess.CalledProcessError:  # no such namespace
        return []


def _kill(name: str) -> None:
    for pid in _pids(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove(name: str) -> None:
    shutil.rmtree(FILES / name, ignore_errors=True)
    with suppress(subprocess.CalledProcessError):  # another test run has removed it
        _run("ip", "netns", "del", name)


def _enter(path: Path) -> None:
    """Move the calling thread into the namespace for the rest of its life."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _rows(table: str) -> list[str]:
    """Return the rows, without the head, of this table of the calling thread's network."""
    return Path("/proc/thread-self/net", table).read_text().splitlines()[1:]


def _open_tap(device: str) -> int:
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _run(*command: str, stdin: str = "") -> str:
    """Return the output of the command. Raises `CalledProcessError` with the error output."""
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout
