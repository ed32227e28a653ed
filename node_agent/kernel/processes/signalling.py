"""Processes to be stopped: which ones get the signal at once, and which ones later.

A program that saves its work when it is stopped needs its own processes: a PyTorch DataLoader fails if one of them is
gone. So a Python program that handles the signal gets it first. The processes that it has started get it when the
program has ended, or shortly before the grace period ends. Without its reader, a program dies at its next line. So the
readers of its output, as in `train.py | tee log`, get the signal some seconds after the program has ended.

All other processes get the signal at once. A shell with its own handler, for example, waits for its command before it
acts (ADR 63).
"""

import os
import signal
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from node_agent.kernel.processes.orphans import family, main_children
from node_agent.kernel.processes.orphans_helper import Process, look_at
from node_agent.kernel.processes.process import expects, outlasts, signal_group, waits_for

REST_SHARE, REST_S = 0.1, 3.0
"""Last part of the grace period, and its maximum in seconds, for processes that have not been signalled by then."""
READER_S = 2.0
"""Seconds from the end of the last writer until a reader of its output gets the signal, if it still runs."""
_PYTHON = ("python", "pypy")
"""Beginnings of the names of Python's interpreters."""
_TO_ALL = (signal.SIGINT, signal.SIGKILL)
"""Signals that all processes get at once. Every Python program handles SIGINT, which a terminal sends to all."""


def remaining_signalled_after_s(grace_s: float) -> float:
    """Return the seconds until all processes that were not signalled get the signal."""
    return grace_s - min(grace_s * REST_SHARE, REST_S)


def is_signalled_first(pid: int, signum: int) -> bool:
    """Return whether this is a Python program that handles the signal."""
    return _is_python(pid) and waits_for(pid, signum) is not False


def handlers(worker: int, signum: int) -> list[int]:
    """Return the worker if it certainly handles the signal. If it is a wrapper, return the programs in it that do."""
    if waits_for(worker, signum):
        return [worker]
    return [pid for pid in wrapped(worker) if expects(pid, signum)]


def may_exit_on(signums: Collection[int], worker: int) -> bool | None:
    """Return whether a worker may exit 0 because of one of these signals.

    That is so if the worker catches, blocks or ignores one of them. It is also so for a wrapper, such as a shell, of a
    program that handles one. A Python program is no wrapper here: torch lets the processes of a DataLoader handle
    SIGTERM.

    Return None if one of them blocks all signals, perhaps only for a moment: look again later.
    """
    found = {outlasts(worker, *signums), *(waits_for(program, *signums) for program in wrapped(worker))}
    return True if True in found else None if None in found else False


def wrapped(pid: int) -> Iterator[int]:
    """Yield the descendants of a process up to the first Python program, none if it is one itself."""
    if not _is_python(pid):
        for child in main_children(pid):
            yield child
            yield from wrapped(child)


def _is_python(pid: int) -> bool:
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # it is gone, or another user's
        return False
    return program.startswith(_PYTHON)


def _readers(writers: Collection[int], others: Collection[int]) -> Iterator[int]:
    """Yield the other processes whose stdin is a pipe from a writer's stdout or stderr, and their readers."""
    if not writers or not others:
        return
    pipes = _written(writers)
    found = [pid for pid in others if _pipe(pid, 0) in pipes]
    yield from found
    yield from _readers(found, [pid for pid in others if pid not in found])


def _written(writers: Collection[int]) -> set[tuple[int, int]]:
    """Return the pipes that are stdout or stderr of these processes."""
    return {pipe for pid in writers for number in (1, 2) if (pipe := _pipe(pid, number))}


def _pipe(pid: int, number: int) -> tuple[int, int] | None:
    """Return what identifies the pipe that is this descriptor of the process, None if it is no pipe."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:  # the process is gone, or another user's, or has closed it
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISFIFO(found.st_mode) else None


def _ancestors(pid: int, found: Mapping[int, Process]) -> Iterator[int]:
    while (pid := found[pid].parent) in found:
        yield pid


class SignalledProcesses:
    """Processes that have been signalled and need no second signal, which many take for "at once"."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._processes: set[tuple[int, int]] = set()
        self._readers: dict[tuple[int, int], tuple[int, int] | None] = {}
        """Readers of the output of programs that got the signal first, each with its pipe. Most end by themselves,
        after the last line.
        """

    def held(self, found: Mapping[int, Process], signum: int) -> set[int]:
        """Return those of the processes that get the signal later.

        They descend from a program among them that gets it first, or read the output of such a program.
        """
        if signum in _TO_ALL:
            return set()
        first = {pid for pid in found if is_signalled_first(pid, signum)}
        for pid in _readers(first, found.keys() - first):
            self._readers.setdefault((pid, found[pid].began), _pipe(pid, 0))
        read = {pid for pid, process in found.items() if (pid, process.began) in self._readers}
        return read | {pid for pid in found if not first.isdisjoint(_ancestors(pid, found))}

    def idle_readers(self, found: Mapping[int, Process]) -> set[int]:
        """Return those of the processes that `held` has returned as readers, and for which none of them writes now."""
        readers = {pid: key for pid, process in found.items() if (key := (pid, process.began)) in self._readers}
        written = _written(found) if readers else set()
        return {pid for pid, key in readers.items() if self._readers[key] not in written}

    def signal(self, leader: int, signum: int, adopted: Collection[int]) -> None:
        """Signal a worker and its group, except the processes that are signalled later. Continue stopped processes.

        `adopted`: processes that this one has adopted, with their descendants. Some may be in the worker's group.
        """
        is_alone = signum not in _TO_ALL and is_signalled_first(leader, signum)  # then other processes are not examined
        found = dict(_members(leader, {leader} if is_alone else family([leader]).union(adopted)))
        later = self.held(found, signum)
        if not is_alone and not later:
            self._groups.add(leader)
            signal_group(leader, signum)
        else:
            for pid in found.keys() - later:
                self.record(pid, found[pid])
                _send(pid, signum)
        signal_group(leader, signal.SIGCONT)  # a process that a debugger has left stopped could not save

    def signal_remaining(self, leader: int, signum: int, adopted: Collection[int]) -> None:
        """Signal the worker's descendants and its group, except processes that were already signalled."""
        descendants = family([leader]) - {leader}
        found = {pid: process for pid in descendants if (process := look_at(pid))}
        for pid, process in (found | dict(_members(leader, adopted))).items():
            if self.record(pid, process):
                _send(pid, signum)

    def record(self, pid: int, process: Process) -> bool:
        """Record that this process is signalled now. Return False if it was signalled before."""
        key = (pid, process.began)
        is_new = process.group not in self._groups and key not in self._processes
        self._processes.add(key)
        return is_new


def _members(leader: int, pids: Collection[int]) -> Iterator[tuple[int, Process]]:
    """Yield the given processes that are members of the group with this leader."""
    for pid in pids:
        if (process := look_at(pid)) and process.group == leader:
            yield pid, process


def _send(pid: int, signum: int) -> None:
    with suppress(OSError):  # it is gone, or another user's
        os.kill(pid, signum)
