"""What workers leave behind: descendants that left their process group, such as daemons.

While the agent lives it is their subreaper: the kernel makes it the parent of every descendant that loses its own, so
that it finds them among its children, whatever session they are in. A guardian covers the agent's own sudden death: a
shell that waits for the end of a pipe, and then ends whatever carries the agent's mark in its environment.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping

from node_agent.processes import CommandProcess, own_children

MARK = "NODE_AGENT_ID"
"""In the environment of every worker, and so of whatever it starts."""
REAPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugins", "reaper.py")

_PR_SET_CHILD_SUBREAPER = 36
_DEVNULL = -3  # subprocess.DEVNULL
_STDERR = 2
_WAIT_THEN_REAP = 'read -r word; test -n "$word" || exec "$@"'


class Orphans:
    """Those of one agent, whose process is its own. `mark` is unique to it."""

    def __init__(self, mark: str) -> None:
        self.mark = {MARK: mark}
        """What the workers' environment must hold."""
        self._mark = f"{MARK}={mark}".encode()
        self._guardian: tuple[CommandProcess, int] | None = None
        self._loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, reap)

    def guard(self, environment: Mapping[str, str]) -> None:
        """From now on the agent's sudden death takes its workers' descendants along."""
        if self._guardian is None:
            reads, writes = os.pipe()
            command = ("/bin/sh", "-c", _WAIT_THEN_REAP, "sh", sys.executable, "-IS", REAPER, self._mark.decode())
            try:
                guardian = CommandProcess(command, environment, _DEVNULL, _STDERR, stdin=reads, outlives_agent=True)
            except OSError:  # no shell here
                os.close(writes)
            else:
                self._guardian = guardian, writes
            os.close(reads)

    def end(self) -> int:
        """End what the round's workers, which are gone, have left behind. How many processes that were."""
        ended: set[int] = set()
        while strays := [pid for pid in children() - own_children if pid not in ended and self._is_marked(pid)]:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            ended.update(strays)
            reap()
        return len(ended)

    def close(self) -> None:
        """The agent ends well: the guardian is not needed any more."""
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._guardian:
            guardian, writes = self._guardian
            os.write(writes, b"well\n")
            os.close(writes)
            guardian.reap()

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                return self._mark in environ.read().split(b"\0")
        except OSError:  # gone, or another user's by now
            return False


def children() -> set[int]:
    """The children of this process, those that it has adopted included."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as listed:
                found.update(map(int, listed.read().split()))
        except OSError:  # a thread that is gone
            continue
    return found


def reap() -> None:
    """Let go of the adopted ones that have ended."""
    for pid in children() - own_children:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
