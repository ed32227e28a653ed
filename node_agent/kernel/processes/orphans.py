"""Orphans of workers: descendants that have left their process group, such as daemons.

While the agent lives, it is their subreaper: the kernel makes it the parent of every descendant whose parent ends. So
it finds orphans among its children, in any session and with any environment.

A guardian handles the agent's sudden death. It is a shell that waits for the end of its stdin. Then it ends all
processes that have the agent's mark in their environment or are related to the agent's roster. It also removes the
agent's temporary folder.

A guardian that is killed is replaced. While it waits, its command line names nothing of this package, so that `pkill -9
-f node-agent` does not kill it with its agent.

An agent may adopt processes that no worker has started. As a container's first process, it adopts those of `docker
exec`. If a shell script has become the agent (`exec node-agent`), it has the script's children. Such an agent ends an
orphan only if the orphan has the mark, was in a worker's session, or was seen as a worker's descendant.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

from node_agent.kernel.processes import orphans_helper
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.orphans_helper import (
    EMPTY_LOOKS,
    MARK,
    Roster,
    began,
    end,
    has_ended,
    is_marked,
    look_at,
    write_roster,
)
from node_agent.kernel.processes.process import (
    DEVNULL,
    KILL_TIMEOUT_S,
    STDERR,
    OutlivingProcess,
    outlived_kill,
    own_children,
)
from node_agent.kernel.processes.system_calls import PR_SET_CHILD_SUBREAPER, memfd_create, prctl

REPLACEMENT_S = 0.5
"""Seconds before a killed guardian is replaced."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.5, 10.0
"""Least seconds between two scans of the workers' descendants: at first, and after repeated doubling."""
END_S = 1.0
"""Most seconds to wait for killed orphans. The agent is blocked meanwhile."""

MOST_LOOKS = 20
"""Most looks for orphans after a round, so that a program which keeps starting processes cannot block the agent."""

GUARDIAN = "NODE_AGENT_GUARDIAN"
"""Variable in the environment of every guardian: the path of its program."""
_PYTHON, _FOLDER = "NODE_AGENT_GUARDIAN_PYTHON", "NODE_AGENT_GUARDIAN_FOLDER"
_WAIT_THEN_REAP = f'trap \'\' $1; read -r word; exec "${_PYTHON}" -IS "${GUARDIAN}" "{MARK}=${MARK}" "${_FOLDER}" "$2"'
"""Program of the guardian. It gets the numbers of the signals to ignore, and the descriptor of the roster."""


def new_mark() -> str:
    """Return a mark of this process, an agent. Later agents can tell by the mark whether this one has ended."""
    return f"{os.getpid()}-{began(os.getpid())}-{os.urandom(8).hex()}"


def has_ended_agent(mark: str) -> bool:
    """Return whether the agent that made this mark has ended. False if the mark does not show that."""
    pid, _, rest = mark.partition("-")
    when, _, _ = rest.partition("-")
    return pid.isdecimal() and when.isdecimal() and began(int(pid)) != int(when)


class Orphans:
    """Orphans of one agent that is a process of its own. `mark`: unique to the agent."""

    def __init__(self, mark: str) -> None:
        self.mark = {MARK: mark}
        """Variable that the workers' environment must contain."""
        self._entry = os.fsencode(f"{MARK}={mark}")
        self._guardian: Helper | None = None
        self._killed: dict[int, int] = {}
        """Orphans that were killed, and when each began. The agent does not wait again for an orphan that survives."""
        self._roster = Roster({}, {})
        self._roster_file = _new_roster()
        self._look_at, self._pause_s = 0.0, MIN_INTERVAL_S
        """Time of the next look at the descendants, and the pause after it."""
        self._adopts_others = os.getpid() == 1 or bool(children())
        """Whether this process may become the parent of processes that no worker has started."""
        self._is_closed = False
        self.expects: Callable[[int], bool] = lambda pid: False
        """Return whether an adopted child will soon be one that other code of the agent waits for."""
        self._loop = asyncio.get_running_loop()
        adopt_orphans()
        self._loop.add_signal_handler(signal.SIGCHLD, reap)

    def guard(self, environment: Mapping[str, str], folder: str, ignored: Iterable[int]) -> None:
        """Start the guardian: if the agent dies suddenly, it ends the workers' descendants and removes the folder.

        It ignores signals that a scheduler sends to every process of a node. Its working folder is /: a shell complains
        if the agent's was removed.
        """
        if self._guardian is not None or self._is_closed:
            return
        variables = {GUARDIAN: orphans_helper.__file__, _PYTHON: sys.executable, _FOLDER: folder, **self.mark}
        passed = () if self._roster_file < 0 else (self._roster_file,)
        numbers = " ".join(map(str, map(int, ignored)))
        command = ("/bin/sh", "-c", _WAIT_THEN_REAP, "guardian", numbers, str(self._roster_file))
        known = {**environment, **variables}
        with suppress(OSError):  # no descriptor is left, or there is no shell
            self._guardian = Helper(
                lambda life: OutlivingProcess(command, known, DEVNULL, STDERR, stdin=life, pass_fds=passed, folder="/"),
                partial(self._guardian_ended, environment, folder, ignored),
            )

    def started(self, workers: Iterable[int]) -> None:
        """Enter the workers of a round in the roster."""
        self._enter({pid: began(pid) for pid in workers}, {})
        self._look_at, self._pause_s = monotonic() + MIN_INTERVAL_S, MIN_INTERVAL_S

    def exited(self, worker: int) -> None:
        """Remove an exited worker, which is about to be reaped, from the roster: its pid may be used again.

        The processes in its session are entered first, because they cannot be found afterwards.
        """
        workers, others = self._roster.workers, self._roster.others
        if self._adopts_others:
            others = others | {pid: began(pid) for pid in self._orphans()}
        self._enter({pid: when for pid, when in workers.items() if pid != worker}, others)

    def look(self) -> None:
        """Enter the descendants of the roster's workers, unless the last look was a moment ago."""
        if monotonic() >= self._look_at:
            self._pause_s = min(2 * self._pause_s, MAX_INTERVAL_S)
            self._look_at = monotonic() + self._pause_s
            workers = self._roster.workers
            found = family([*workers, *self._orphans()], main_children) - workers.keys() - own_children
            self._enter(workers, {pid: began(pid) for pid in found})

    def end(self) -> int:
        """End the processes that the round's ended workers have left behind. Return their number."""
        number = end_until_none(self.leftovers, END_S, self._killed)
        self._enter({}, {})
        return number

    def leftovers(self) -> set[int]:
        """Return the orphans and their descendants."""
        return family(self._orphans()) - own_children

    def _orphans(self) -> list[int]:
        """Return the adopted children that descend from workers."""
        return [pid for pid in children() - own_children if self._is_ours(pid) and not self.expects(pid)]

    def _is_ours(self, orphan: int) -> bool:
        if not self._adopts_others or is_marked(orphan, self._entry):
            return True
        process = look_at(orphan)
        return process is not None and (
            process.session in self._roster.workers
            or self._roster.others.get(orphan) == process.began
            or (process.is_leaderless and is_marked(orphan, self._entry, is_leaderless=True))
        )

    def _enter(self, workers: dict[int, int], others: dict[int, int]) -> None:
        self._roster = Roster(workers, others)
        if self._roster_file >= 0:
            with suppress(OSError):  # memory is short: the mark still works
                write_roster(self._roster_file, self._roster)

    def close(self) -> list[int]:
        """End what the agent's helpers have left behind, and the guardian, since the agent exits in order. Return the
        pids of helpers and orphans that could not be ended.

        For example, a module that is imported before the workers may have started a process.
        """
        self._is_closed = True
        self.end()
        if self._roster_file >= 0:
            os.close(self._roster_file)
            self._roster_file = -1
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._guardian:
            self._guardian.close()  # killed before its stdin ends, which it would take for the agent's death
        until = monotonic() + KILL_TIMEOUT_S
        left = self._killed.keys() & children() - own_children
        return [*outlived_kill, *(pid for pid in left if not has_ended(pid, until - monotonic()))]

    def _guardian_ended(
        self, environment: Mapping[str, str], folder: str, ignored: Iterable[int], guardian: Helper
    ) -> None:
        """Replace a guardian that was killed. A guardian that exited by itself would do so again."""
        self._guardian = None
        if (guardian.exit_code or 0) < 0:
            self._loop.call_later(REPLACEMENT_S, self.guard, environment, folder, ignored)


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants, except where a child already is. Return False if impossible."""
    return bool(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _new_roster() -> int:
    """Return an unnamed file that the guardian reads when the agent is gone, -1 if no descriptor is left."""
    try:
        return memfd_create("node-agent-roster")
    except OSError:
        return -1


def children(pid: int | str = "self") -> set[int]:
    """Return the children of a process, including those that it has adopted."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it is gone, or no descriptor is left
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                found.update(map(int, listed.read().split()))
        except OSError:  # a thread that has ended
            continue
    return found


def main_children(pid: int) -> set[int]:
    """Return the children that the process's main thread has started. Workers have hundreds of threads, each with a
    file.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return set(map(int, listed.read().split()))
    except OSError:
        return set()


def family(pids: Iterable[int], children_of: Callable[[int], set[int]] = children) -> set[int]:
    """Return these processes and all their descendants."""
    found, unseen = set[int](), list(pids)
    while unseen:
        if (pid := unseen.pop()) not in found:
            found.add(pid)
            unseen += children_of(pid)
    return found


def end_until_none(find: Callable[[], Iterable[int]], within_s: float, killed: dict[int, int]) -> int:
    """Kill the processes that `find` returns, wait up to `within_s` seconds in all, and reap them. Return their number.

    Further looks find processes that started during the first look or were left by killed processes. `killed`: start
    times of those that were killed before, which are not waited for again. The function adds to it.
    """
    number, until, empty_looks = 0, monotonic() + within_s, 0
    for _ in range(MOST_LOOKS):
        found = {pid: when for pid in find() if (when := began(pid)) >= 0 and killed.get(pid) != when}
        end(found, until - monotonic())
        killed |= found
        number += len(found)
        reap()
        empty_looks = 0 if found else empty_looks + 1
        if empty_looks == EMPTY_LOOKS:
            break
    return number


def reap() -> None:
    """Reap adopted children that have ended."""
    for pid in children() - own_children:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
