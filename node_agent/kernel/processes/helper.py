"""Helper processes of the agent: the store's, the fork server, the guardian, a plug-in's, a hosted server."""

import asyncio
import signal
import socket
from collections.abc import Callable

from node_agent.kernel.processes.process import KILL_TIMEOUT_S, ChildProcess, signal_group


class Helper:
    """A program of this package in a separate process, watched by the event loop, with a socket between the two.

    `start` gets the descriptor of the program's end of the socket. `ended` is called when the program has exited by
    itself, before the agent's end is closed. Raises `OSError` if the program cannot be started.
    """

    def __init__(
        self,
        start: Callable[[int], ChildProcess],
        ended: Callable[["Helper"], None],
        kind: int = socket.SOCK_STREAM,
    ) -> None:
        self.exit_code: int | None = None
        """Exit code, None while the program runs."""
        self._ended = ended
        self.loop = asyncio.get_running_loop()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                self._process = start(theirs.fileno())
        except BaseException:
            self.socket.close()
            raise
        self.pid = self._process.pid
        self.loop.add_reader(self._process.fileno(), self._exited)

    def kill(self) -> None:
        """Kill the program. The loop waits for its end."""
        signal_group(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the program if it still runs, and wait for its end for a bounded time."""
        if self.exit_code is None:
            self.loop.remove_reader(self._process.fileno())
            self.exit_code = self._process.end(KILL_TIMEOUT_S)
            self._hang_up()

    def abandon(self) -> None:
        """Kill the program if it still runs, without waiting for its end."""
        if self.exit_code is None:
            self.loop.remove_reader(self._process.fileno())
            self._process.abandon()
            self._hang_up()

    def release(self) -> None:
        """Let the program continue by itself if it still runs, without waiting for its end."""
        if self.exit_code is None:
            self.loop.remove_reader(self._process.fileno())
            self._process.disown()
            self._hang_up()

    def _exited(self) -> None:
        self.loop.remove_reader(self._process.fileno())
        self.exit_code = self._process.reap()
        self._ended(self)
        self._hang_up()

    def _hang_up(self) -> None:
        self.loop.remove_reader(self.socket)
        self.socket.close()
