"""The workers' store beside group rank 0's agent: torch's own TCPStore, in a helper process that loads torch.

The agent listens on MASTER_PORT before the workers start, so that they can connect at any time. When a worker connects,
the agent starts the helper and passes the listening socket to it, so workers without torch do not pay for it. The
helper outlives the workers, and the signals that a scheduler sends to every process of a node. Each round gets a fresh
store.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from node_agent import words
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import STDERR, CommandProcess

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_helper.py")
BACKLOG = 4096
MOST_TRIES = 2
"""Number of helpers that may die before they take a round's listener, until that is an error."""
LONGEST_ANSWER = 64


def has_torch() -> bool:
    """Return whether this interpreter can import torch."""
    return any(finder.find_spec("torch", None) for finder in sys.meta_path)


class StoreHost:
    """Host of the store in each round. `on_error` is called with one line if the store can no longer be served.

    `at_once`: the workers have torch when they start, and connect soon. `ignored`: signals that do not end the store,
    because the workers may still need it for their last work.
    """

    def __init__(
        self, environment: Mapping[str, str], on_error: Callable[[str], None], *,
        at_once: bool = False, ignored: Collection[int] = (),
    ) -> None:  # fmt: skip
        self._environment = environment
        self._on_error = on_error
        self._at_once, self._ignored = at_once, ignored
        self.is_available = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1" and has_torch()
        """Whether this agent can host a store. The user can disable shared stores with torch's variable."""
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        """A descriptor that belongs to the host: the caller may close its own socket at any time."""
        self._helper: Helper | None = None
        """The process with torch. Its orders are "open N", with a listening descriptor that it sends back after reading
        it, and "close"."""
        self._opened = 0
        """Number of the round's store."""
        self._tries = 0
        """Number of helpers that have been given the round's listener."""

    def open(self, listener: socket.socket) -> None:
        """Host a fresh store on this bound socket, replacing the last one. Call it before the workers start."""
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
        """End the round's store, because its workers have ended. Does nothing if there is none."""
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
        """Pass the listener to the helper. Start a new helper if there is none or it has just died."""
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
            self._send(self._order, self._listener.fileno())  # if it has already died, `_helper_ended` is called

    @property
    def _order(self) -> bytes:
        return b"open %d" % self._opened

    def _drop_helper(self) -> None:
        if self._helper:
            self._helper.kill()
            self._helper = None

    def _start_helper(self, orders: int) -> CommandProcess:
        environment = {**self._environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # a store needs no accelerator
        with open(os.devnull, "w") as nowhere:  # stdout is only for the workers' lines
            command = (sys.executable, "-P", PROGRAM)
            return CommandProcess(
                command, environment, nowhere.fileno(), STDERR, stdin=orders, ignored=self._ignored
            )  # fmt: skip

    def _send(self, order: bytes, *descriptors: int) -> bool:
        """Send an order. Return whether it arrived, which needs a helper that lives and listens."""
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
            self._serve()  # it was already dying: it has not served a worker, and connections wait at the listener
        elif self._listener:
            self._report(words.workers.store_ended(helper.pid, helper.exit_code))

    def _has_read_order(self, helper: Helper) -> bool:
        """Return whether the helper took the round's listener, and may have accepted workers."""
        read = b""
        with suppress(OSError):
            while answer := helper.socket.recv(LONGEST_ANSWER, socket.MSG_DONTWAIT):
                read = answer
        return read == self._order

    def _report(self, line: str) -> None:
        self._loop.call_soon(self._on_error, line)  # the caller may be about to start the workers
