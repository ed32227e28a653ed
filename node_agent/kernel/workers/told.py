"""Processes that are told to end: which ones get the signal at once, and which ones later.

A program that saves its work when it is told to end needs its own processes for that: a PyTorch DataLoader fails if one
of them is gone. So a Python program that handles the signal gets it first, and the processes that it has started get it
later: when the program has ended, or shortly before the grace ends. All other processes get it at once. A shell with a
handler of its own, for example, waits for its command before it acts (ADR 63).
"""

import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from node_agent.kernel.workers.orphans import family
from node_agent.kernel.workers.orphans_helper import Process, look_at
from node_agent.kernel.workers.process import handles, signal_group

REST_SHARE, REST_S = 0.1, 3.0
"""Last part of the grace, and its longest time in seconds, for processes that no program has told to end till then."""
_PYTHON = ("python", "pypy")
"""Beginnings of the names of Python's interpreters."""
_TO_ALL = (signal.SIGINT, signal.SIGKILL)
"""Signals that all processes get at once. Every Python program handles SIGINT, which a terminal sends to all."""


def rest_is_told_after_s(grace_s: float) -> float:
    """Time until all processes are told that have not been told by then."""
    return grace_s - min(grace_s * REST_SHARE, REST_S)


def held(found: Mapping[int, Process], signum: int) -> set[int]:
    """Return those of these processes that descend from a program among them which gets the signal first."""
    if signum in _TO_ALL:
        return set()
    first = {pid for pid in found if is_told_first(pid, signum)}
    return {pid for pid in found if not first.isdisjoint(_ancestors(pid, found))}


def is_told_first(pid: int, signum: int) -> bool:
    """Whether this is a Python program that handles the signal."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # it is gone, or another user's
        return False
    return program.startswith(_PYTHON) and handles(pid, signum)


def _ancestors(pid: int, found: Mapping[int, Process]) -> Iterator[int]:
    while (pid := found[pid].parent) in found:
        yield pid


class Told:
    """Processes that have been told to end, and need not be told twice: many take a second signal for "at once"."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._processes: set[tuple[int, int]] = set()

    def tell(self, leader: int, signum: int, adopted: Collection[int]) -> None:
        """Signal a worker and its group, without those that are told later.

        `adopted`: processes that this one has adopted, and their descendants; some may be of the worker's group.
        """
        is_alone = signum not in _TO_ALL and is_told_first(leader, signum)  # then nothing else is looked at
        found = dict(_members(leader, {leader} if is_alone else family([leader]).union(adopted)))
        later = held(found, signum)
        if not is_alone and not later:
            self._groups.add(leader)
            signal_group(leader, signum)
            return
        for pid in found.keys() - later:
            self.is_new(pid, found[pid])
            _send(pid, signum)

    def tell_rest(self, leader: int, signum: int, adopted: Collection[int]) -> None:
        """Signal what has not been told of a worker's descendants and of its group."""
        descendants = family([leader]) - {leader}
        found = {pid: process for pid in descendants if (process := look_at(pid))}
        for pid, process in (found | dict(_members(leader, adopted))).items():
            if self.is_new(pid, process):
                _send(pid, signum)

    def is_new(self, pid: int, process: Process) -> bool:
        """Note that this process is told now. Return False if it was told before."""
        key = (pid, process.began)
        is_new = process.group not in self._groups and key not in self._processes
        self._processes.add(key)
        return is_new


def _members(leader: int, pids: Collection[int]) -> Iterator[tuple[int, Process]]:
    """Return the given processes that are members of the group with this leader."""
    for pid in pids:
        if (process := look_at(pid)) and process.group == leader:
            yield pid, process


def _send(pid: int, signum: int) -> None:
    with suppress(OSError):  # it is gone, or another user's
        os.kill(pid, signum)
