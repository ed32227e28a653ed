"""Commands with a time limit and bounded output, which never block the agent's event loop."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from node_agent.kernel.processes.process import DEVNULL, CommandProcess, signal_group

TAIL_BYTES = 16_384
"""Most bytes kept of a command's output."""
_READS = 8
"""Number of reads that empty a pipe, even if a process still writes to it."""

Outcome = tuple[int | None, str]
"""Exit code of a command, None if it took too long, and the end of its output."""


async def run_bounded(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float, stdin: int = DEVNULL
) -> Outcome:
    """Run a command that reads `stdin` for at most `limit_s` seconds. Raises `OSError` if it cannot be started.

    Cancelling the call kills the command.
    """
    running = _Running(command, environment, limit_s, stdin)
    try:
        return await running.outcome
    finally:
        running.give_up()


class _Running:
    """A running command. Raises `OSError` if it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], limit_s: float, stdin: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._is_told = False
        """Whether the outcome is known, even if the caller has been cancelled."""
        self._output = b""
        self._pipe, theirs = os.pipe()
        try:
            os.set_blocking(self._pipe, False)
            self._process = CommandProcess(command, environment, theirs, theirs, stdin=stdin)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        self._loop.add_reader(self._pipe, self._read)
        self._loop.add_reader(self._process.fileno(), self._exited)
        self._timer = self._loop.call_later(limit_s, self._took_too_long)

    def give_up(self) -> None:
        """Kill the command without waiting, unless its outcome is known."""
        if self._is_told:
            return
        self._timer.cancel()
        self._close_pipe()
        self._loop.remove_reader(self._process.fileno())
        self._process.abandon()

    def _took_too_long(self) -> None:
        """Kill the command and report that it took too long. It is reaped when it ends, without a wait."""
        signal_group(self._process.pid, signal.SIGKILL)
        self._read()
        self._tell(None)

    def _exited(self) -> None:
        self._loop.remove_reader(self._process.fileno())
        signal_group(self._process.pid, signal.SIGKILL)  # its remaining children; before the wait
        for _ in range(_READS):
            self._read()
        self._close_pipe()
        self._tell(self._process.reap())

    def _tell(self, exit_code: int | None) -> None:
        self._timer.cancel()
        self._is_told = True
        if not self.outcome.done():  # else the caller has just been cancelled
            self.outcome.set_result((exit_code, self._output.decode(errors="replace")))

    def _read(self) -> None:
        """Read what is there, at most a bounded amount at a time, so that the loop can do other work."""
        if self._pipe < 0:
            return
        try:
            chunk = os.read(self._pipe, TAIL_BYTES)
        except BlockingIOError:
            return
        self._output = (self._output + chunk)[-TAIL_BYTES:]
        if not chunk:
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
