"""The workers' store beside group rank 0's agent: torch's own TCPStore, in a helper process that imports torch.

The agent itself listens on MASTER_PORT before the workers start, so that they may connect at any time, and hands the
listening socket over once the helper is up. The helper starts when a process on this machine begins to import torch,
so that its import runs beside the workers' own, or at the latest when somebody connects: workers that do without torch
pay nothing. It outlives the workers and the signals that a scheduler sends to every process of a node, and each round
gets a fresh store.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from node_agent.workers.helper import Helper
from node_agent.workers.process import STDERR, ChildProcess, CommandProcess

if TYPE_CHECKING:
    from node_agent.workers.warm.pool import WarmPool

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_helper.py")
BACKLOG = 4096
_IN_OPEN = 0x20


def torch_folder() -> str | None:
    """Folder from which this interpreter would import torch; None if it has none."""
    for finder in sys.meta_path:
        spec = finder.find_spec("torch", None)
        if spec is not None:
            return next(iter(spec.submodule_search_locations or ()), None)
    return None


class StoreHost:
    """Host of the store of one round after another. `on_error` gets one line when a store cannot be served any more.

    `warm`: a pool whose processes have imported torch.
    """

    def __init__(
        self, environment: Mapping[str, str], on_error: Callable[[str], None], warm: "WarmPool | None" = None
    ) -> None:
        self._environment = environment
        self._on_error = on_error
        self._warm = warm
        shared = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
        self._torch = torch_folder() if shared else None
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        """A descriptor of our own: the caller may close its socket at any time."""
        self._signs = ExitStack()
        """Signs of use that are watched for."""
        self._helper: Helper | None = None
        """The process that has torch. Its orders are "open", with a listening descriptor, and "close"."""

    @property
    def is_available(self) -> bool:
        """Whether this agent can host a store. The user may have asked torch not to share one."""
        return self._torch is not None

    def open(self, listener: socket.socket) -> None:
        """Host a fresh store at this bound socket, in place of the last one. Call it before the workers start."""
        self.close()
        try:
            listener.listen(BACKLOG)
            self._listener = listener.dup()
        except OSError as error:
            self._report(f"the workers' store cannot listen: {error.strerror or error}")
            return
        if self._helper:
            self._serve()
        elif self._warm is None:
            self._await_use()

    def start_now(self) -> None:
        """Start the helper, if a store is open, where the workers have torch already, and so will not import it."""
        if self._listener and self._warm and not self._helper:
            self._serve()

    def close(self) -> None:
        """End the round's store: its workers are gone. Does nothing if there is none."""
        self._signs.close()
        if self._listener:
            self._listener.close()
            self._listener = None
            if not self._send(b"close"):
                self._drop_helper()

    def shutdown(self) -> None:
        """End the store and its helper."""
        self.close()
        if self._helper:
            self._helper.close()

    def _await_use(self) -> None:
        """Start the helper when somebody connects, or begins to import torch."""
        assert self._listener and self._torch
        self._watch(self._listener.fileno())
        try:
            opens = _watch_opens(self._torch)
        except OSError:  # no watches left on this machine: do not wait for a sign
            self._serve()
        else:
            self._signs.callback(os.close, opens)
            self._watch(opens)

    def _watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._serve)
        self._signs.callback(self._loop.remove_reader, descriptor)

    def _serve(self) -> None:
        """Hand the listener to the helper; to a new one if there is none, or if it has just died."""
        assert self._listener
        self._signs.close()
        if self._send(b"open", self._listener.fileno()):
            return
        self._drop_helper()
        try:
            self._helper = Helper(self._start_helper, self._helper_ended, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._report(f"the workers' store could not be started: {error.strerror or error}")
        else:
            self._send(b"open", self._listener.fileno())  # if it has died already, `_helper_ended` will say so

    def _drop_helper(self) -> None:
        if self._helper:
            self._helper.kill()
            self._helper = None

    def _start_helper(self, orders: int) -> ChildProcess:
        environment = {**self._environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # a store needs no accelerator
        command = (sys.executable, "-P", PROGRAM)
        with open(os.devnull, "w") as nowhere:  # stdout is for the workers' lines alone
            stdout = nowhere.fileno()
            process = self._warm.start(command, environment, (orders, stdout, STDERR)) if self._warm else None
            return process or CommandProcess(command, environment, stdout, STDERR, stdin=orders)

    def _send(self, order: bytes, *descriptors: int) -> bool:
        """Send an order. Whether it has arrived: there must be a helper, which lives and listens."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            return bool(self._helper and socket.send_fds(self._helper.socket, [order], descriptors, flags))
        except OSError:
            return False

    def _helper_ended(self, helper: Helper) -> None:
        if helper is self._helper:
            self._helper = None
            if self._listener:
                self._report(
                    f"the workers' store (process {helper.pid}) ended by itself with exit code {helper.exit_code}"
                )

    def _report(self, line: str) -> None:
        self._loop.call_soon(self._on_error, line)  # the caller may be about to start the workers


def _watch_opens(folder: str) -> int:
    """A descriptor that becomes readable when a file in the folder is opened. Raises `OSError`.

    Nothing but inotify tells of it, and Python has no binding: this is its one use, and needs two calls.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    queue = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if queue >= 0 and libc.inotify_add_watch(queue, os.fsencode(folder), _IN_OPEN) >= 0:
        return queue
    error = ctypes.get_errno()
    if queue >= 0:
        os.close(queue)
    raise OSError(error, os.strerror(error), folder)
