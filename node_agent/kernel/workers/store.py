"""The workers' store beside group rank 0's agent: torch's own TCPStore, in a helper process that loads torch.

The agent itself listens on MASTER_PORT before the workers start, so that they may connect at any time, and hands the
listening socket over to the helper, which starts when somebody connects: workers that do without torch pay nothing. It
outlives the workers and the signals that a scheduler sends to every process of a node, and each round gets a fresh
store.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from node_agent import words
from node_agent.kernel.workers.helper import Helper
from node_agent.kernel.workers.process import STDERR, CommandProcess

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_helper.py")
BACKLOG = 4096
MOST_TRIES = 2
"""Helpers that may die before they take a round's listener, until that is an error."""
LONGEST_ANSWER = 64


def has_torch() -> bool:
    """Whether this interpreter could import torch."""
    return any(finder.find_spec("torch", None) for finder in sys.meta_path)


class StoreHost:
    """Host of the store of one round after another. `on_error` gets one line when a store cannot be served any more.

    `at_once`: the workers have torch when they start, and connect soon.
    """

    def __init__(
        self, environment: Mapping[str, str], on_error: Callable[[str], None], *, at_once: bool = False
    ) -> None:
        self._environment = environment
        self._on_error = on_error
        self._at_once = at_once
        self.is_available = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1" and has_torch()
        """Whether this agent can host a store. The user may have asked torch not to share one."""
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        """A descriptor of our own: the caller may close its socket at any time."""
        self._helper: Helper | None = None
        """The process that has torch. Its orders are "open N", with a listening descriptor, which it sends back when
        it has read it, and "close"."""
        self._opened = 0
        """Number of the round's store."""
        self._tries = 0
        """Helpers that the round's listener was handed to."""

    def open(self, listener: socket.socket) -> None:
        """Host a fresh store at this bound socket, in place of the last one. Call it before the workers start."""
        self.close()
        try:
            listener.listen(BACKLOG)
            self._listener = listener.dup()
            self._opened, self._tries = self._opened + 1, 0
        except OSError as error:
            self._report(words.workers.store_cannot_listen(error.strerror or str(error)))
            return
        if self._helper or self._at_once:
            self._serve()
        else:
            self._loop.add_reader(self._listener.fileno(), self._serve)

    def close(self) -> None:
        """End the round's store: its workers are gone. Does nothing if there is none."""
        if self._listener:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            if not self._send(b"close"):
                self._drop_helper()

    def shutdown(self) -> None:
        """End the store and its helper."""
        self.close()
        if self._helper:
            self._helper.close()

    def _serve(self) -> None:
        """Hand the listener to the helper; to a new one if there is none, or if it has just died."""
        assert self._listener
        self._loop.remove_reader(self._listener.fileno())
        self._tries += 1
        if self._send(self._order, self._listener.fileno()):
            return
        self._drop_helper()
        try:
            self._helper = Helper(self._start_helper, self._helper_ended, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._report(words.workers.store_not_started(error.strerror or str(error)))
        else:
            self._send(self._order, self._listener.fileno())  # if it has died already, `_helper_ended` will say so

    @property
    def _order(self) -> bytes:
        return b"open %d" % self._opened

    def _drop_helper(self) -> None:
        if self._helper:
            self._helper.kill()
            self._helper = None

    def _start_helper(self, orders: int) -> CommandProcess:
        environment = {**self._environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # a store needs no accelerator
        with open(os.devnull, "w") as nowhere:  # stdout is for the workers' lines alone
            command = (sys.executable, "-P", PROGRAM)
            return CommandProcess(command, environment, nowhere.fileno(), STDERR, stdin=orders)

    def _send(self, order: bytes, *descriptors: int) -> bool:
        """Send an order. Whether it has arrived: there must be a helper, which lives and listens."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            return bool(self._helper and socket.send_fds(self._helper.socket, [order], descriptors, flags))
        except OSError:
            return False

    def _helper_ended(self, helper: Helper) -> None:
        if helper is not self._helper:
            return
        self._helper = None
        if self._listener and self._tries < MOST_TRIES and not self._has_read_order(helper):
            self._serve()  # it was dying already: no worker has been served, and connections wait at the listener
        elif self._listener:
            self._report(words.workers.store_ended(helper.pid, helper.exit_code))

    def _has_read_order(self, helper: Helper) -> bool:
        """Whether the helper took the round's listener, and may have accepted workers."""
        read = b""
        with suppress(OSError):
            while answer := helper.socket.recv(LONGEST_ANSWER, socket.MSG_DONTWAIT):
                read = answer
        return read == self._order

    def _report(self, line: str) -> None:
        self._loop.call_soon(self._on_error, line)  # the caller may be about to start the workers
