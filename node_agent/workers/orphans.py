"""Orphans that workers leave behind: descendants that left their process group, such as daemons.

While the agent lives it is their subreaper: the kernel makes it the parent of every descendant that loses its own, so
that it finds them among its children, whatever session they are in. A guardian covers the agent's own sudden death: a
shell that waits for the end of its stdin, then ends whatever carries the agent's mark in its environment, and removes
the agent's temporary folder. One that is killed is replaced.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

from node_agent.workers import orphans_helper
from node_agent.workers.helper import Helper
from node_agent.workers.orphans_helper import has_ended, is_marked
from node_agent.workers.process import DEVNULL, KILL_TIMEOUT_S, STDERR, CommandProcess, outlived_kill, own_children

MARK = "NODE_AGENT_ID"
"""Variable in the environment of every worker, and so of whatever it starts."""

REPLACEMENT_S = 0.5
"""Wait before a guardian that was killed is replaced."""

_PR_SET_CHILD_SUBREAPER = 36
_WAIT_THEN_REAP = "trap '' TERM INT HUP QUIT; read -r word; exec \"$@\""
"""Program of the guardian. It ignores the signals that a scheduler sends to every process of a node."""


class Orphans:
    """Orphans of one agent, whose process is its own. `mark` is unique to it."""

    def __init__(self, mark: str) -> None:
        self.mark = {MARK: mark}
        """Variable that the workers' environment must hold."""
        self._entry = os.fsencode(f"{MARK}={mark}")
        self._guardian: Helper | None = None
        self._killed: set[int] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, reap)

    def guard(self, environment: Mapping[str, str], folder: str) -> None:
        """Let the agent's sudden death take its workers' descendants along, and its temporary folder."""
        if self._guardian is not None or self._is_closed:
            return
        helper = (sys.executable, "-IS", orphans_helper.__file__, os.fsdecode(self._entry), folder)
        command = ("/bin/sh", "-c", _WAIT_THEN_REAP, "sh", *helper)
        with suppress(OSError):  # no descriptor is left, or there is no shell here
            self._guardian = Helper(
                lambda life: CommandProcess(command, environment, DEVNULL, STDERR, stdin=life, outlives_agent=True),
                partial(self._guardian_ended, environment, folder),
            )

    def end(self) -> int:
        """End what the round's workers, which are gone, have left behind. How many processes that were."""
        ended: set[int] = set()
        while strays := [pid for pid in children() - own_children - ended if is_marked(pid, self._entry)]:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            ended.update(strays)
            reap()
        self._killed |= ended
        return len(ended)

    def close(self) -> list[int]:
        """End the guardian, for the agent ends well. Returns pids of helpers and orphans that nothing could end."""
        self._is_closed = True
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._guardian:
            self._guardian.close()  # killed before its stdin ends, which it would take for the agent's death
        until = monotonic() + KILL_TIMEOUT_S
        left = self._killed & children() - own_children
        return [*outlived_kill, *(pid for pid in left if not has_ended(pid, until - monotonic()))]

    def _guardian_ended(self, environment: Mapping[str, str], folder: str, guardian: Helper) -> None:
        """Replace a guardian that was killed; one that gave up by itself would do so again."""
        self._guardian = None
        if (guardian.exit_code or 0) < 0:
            self._loop.call_later(REPLACEMENT_S, self.guard, environment, folder)


def children() -> set[int]:
    """The children of this process, those that it has adopted included."""
    found: set[int] = set()
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # no descriptor is left
        return found
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/children") as listed:
                found.update(map(int, listed.read().split()))
        except OSError:  # a thread that is gone
            continue
    return found


def reap() -> None:
    """Reap adopted children that have ended."""
    for pid in children() - own_children:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
