"""The workers' store beside group rank 0's agent: torch's own TCPStore, in a helper process that imports torch.

The agent itself listens on MASTER_PORT before the workers start, so that they may connect at any time, and hands the
listening socket over once the helper is up. The helper starts when a process on this machine begins to import torch,
so that its import runs beside the workers' own, or at the latest when somebody connects: workers that do without torch
pay nothing. It outlives the workers, and each round gets a fresh store.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from node_agent.output.inotify import IN_OPEN, Watch
from node_agent.workers.process import CommandProcess, Process, signal_group

if TYPE_CHECKING:
    from node_agent.workers.warm.pool import Reserve

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_helper.py")
BACKLOG = 4096
STDERR = 2


def torch_folder() -> str | None:
    """Where this interpreter finds torch; None if it has none."""
    for finder in sys.meta_path:
        spec = finder.find_spec("torch", None)
        if spec is not None:
            return next(iter(spec.submodule_search_locations or ()), None)
    return None


class StoreHost:
    """Hosts the store of one round after another. `broken` is told, with one line, when the helper ends by itself."""

    def __init__(
        self, environment: Mapping[str, str], broken: Callable[[str], None], warm: "Reserve | None" = None
    ) -> None:
        self._environment = environment
        self._broken = broken
        self._warm = warm
        shared = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
        self._torch = torch_folder() if shared else None
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._watch: Watch | None = None
        self._helper: _Helper | None = None

    @property
    def is_available(self) -> bool:
        """Whether this agent can host a store. The user may have asked torch not to share one."""
        return self._torch is not None

    def open(self, listener: socket.socket) -> None:
        """Host a fresh store at this bound socket. Call it before the workers start."""
        listener.listen(BACKLOG)
        self._listener = listener
        if self._helper:
            self._helper.open(listener)
        elif self._warm is None:
            self._await_use()

    def hurry(self) -> None:
        """Start the helper, if a store is open and it has not started: the workers will not import torch any more."""
        if self._listener and not self._helper:
            self._start()

    def shut(self) -> None:
        """The round's workers are gone: its store goes, too."""
        self._stop_awaiting()
        self._listener = None
        if self._helper:
            self._helper.shut()

    def close(self) -> None:
        """Let everything go."""
        self._stop_awaiting()
        if self._helper:
            self._helper.kill()

    def _await_use(self) -> None:
        assert self._listener and self._torch
        self._loop.add_reader(self._listener, self._start)
        try:
            self._watch = Watch(self._torch, IN_OPEN)
        except OSError:  # no watches left on this machine: do not wait for a sign
            self._start()
        else:
            self._loop.add_reader(self._watch, self._start)

    def _stop_awaiting(self) -> None:
        if self._listener and not self._helper:
            self._loop.remove_reader(self._listener)
        if self._watch:
            self._loop.remove_reader(self._watch)
            self._watch.close()
            self._watch = None

    def _start(self) -> None:
        assert self._listener
        self._stop_awaiting()
        self._helper = _Helper(self._environment, self._ended, self._warm)
        self._helper.open(self._listener)

    def _ended(self, exit_code: int) -> None:
        assert self._helper
        pid, self._helper = self._helper.pid, None
        if self._listener:
            self._broken(f"the workers' store (process {pid}) ended by itself with exit code {exit_code}")


class _Helper:
    """The process that has torch. Told what to do over a socket: a listening descriptor, or none to shut the store."""

    def __init__(self, environment: Mapping[str, str], ended: Callable[[int], None], warm: "Reserve | None") -> None:
        self._ended = ended
        environment = {**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # a store needs no accelerator
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:  # stdout is for the workers' lines alone
            self._process = _start(environment, theirs.fileno(), warm)
        self.pid = self._process.pid
        asyncio.get_running_loop().add_reader(self._process.fileno(), self._reap)

    def open(self, listener: socket.socket) -> None:
        socket.send_fds(self._orders, [b"open"], [listener.fileno()], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def shut(self) -> None:
        self._orders.send(b"shut", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def kill(self) -> None:
        signal_group(self.pid, signal.SIGKILL)
        self._let_go()

    def _reap(self) -> None:
        self._ended(self._let_go())

    def _let_go(self) -> int:
        asyncio.get_running_loop().remove_reader(self._process.fileno())
        self._orders.close()
        return self._process.reap()


def _start(environment: Mapping[str, str], stdin: int, warm: "Reserve | None") -> Process:
    command = (sys.executable, "-P", PROGRAM)
    with open(os.devnull, "w") as nowhere:
        process = warm.start(command, environment, (stdin, nowhere.fileno(), STDERR)) if warm else None
        return process or CommandProcess(command, environment, nowhere.fileno(), STDERR, stdin=stdin)
