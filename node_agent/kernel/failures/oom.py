"""Detects whether the kernel killed a worker for lack of memory, by the count of such kills in the worker's cgroup.

It does not use other counters. Those of the machine and of cgroups below also count kills of other programs, and a
wrong cause is worse than none. Without the counter, the report only says that the worker was killed from outside.

A worker's cgroup is usually the agent's. `systemd-run`, a job step or a container may give it another one, in which it
then continues. The counts there before are needed, so the agent looks while the worker runs.
"""

import os
from collections.abc import Iterable

from node_agent import words

MOUNT = "/sys/fs/cgroup"
_COUNTERS = ("memory.events.local", "memory.events", "memory.oom_control")
"""Files with the counter: of the cgroup only; including those below, for kernels before 5.2; of cgroup version 1."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_UNLIMITED = 1 << 60
"""Least number of bytes that means "no limit". Version 1 writes a number near 2**63."""


class OomWatch:
    """Counters of the cgroups of an agent's workers: the agent's own, and others that the workers have moved to.

    Create it after their start, and ask it when a worker was killed. A counter that cannot be read counts as 0.
    """

    def __init__(self, mount: str = MOUNT, proc: str = "/proc") -> None:
        self._mount, self._proc = mount, proc
        self._own = self._group_of("self")
        self._before = {self._own: self._count(self._own)}
        """Number of kills in each cgroup at the first look or the last verdict."""
        self._latest = dict(self._before)
        """Latest number of kills in each cgroup: a cgroup may be removed with its last process."""
        self._moved: dict[int, list[str]] = {}
        """Cgroups other than the agent's own, by the worker that was seen there."""

    def look(self, worker: int, programs: Iterable[int] = ()) -> None:
        """Check which cgroup a running worker is in. `programs`: those that it wraps, such as a shell does."""
        for pid in (worker, *programs):
            group = self._group_of(pid)
            if group and group != self._own:
                moved = self._moved.setdefault(worker, [])
                moved += [] if group in moved else [group]
                if group not in self._before:
                    self._before[group] = self._latest[group] = self._count(group)

    def exited(self, worker: int) -> None:
        """Read the counters of a worker's own cgroups, which may be about to be removed: the worker has exited."""
        for group in self._moved.get(worker, ()):
            self._kills(group)

    def verdict(self, worker: int) -> str:
        """Return why this worker was killed since the start or the previous verdict, empty if unknown."""
        for group in self._groups(worker):
            before, self._before[group] = self._before[group], self._kills(group)
            if self._before[group] > before:
                return words.failures.out_of_memory(self._limit(group))
        return ""

    def killed_any(self, worker: int) -> str:
        """Return advice if the kernel has killed a process of the worker's cgroups since the start or the last verdict.

        It is empty otherwise.
        """
        groups = (group for group in self._groups(worker) if self._kills(group) > self._before[group])
        return next((words.failures.killed_beside(self._limit(group)) for group in groups), "")

    def _groups(self, worker: int) -> list[str]:
        return [*self._moved.get(worker, ()), self._own]

    def _group_of(self, pid: int | str) -> str:
        return _memory_cgroup(self._mount, _read(f"{self._proc}/{pid}/cgroup"))

    def _kills(self, group: str) -> int:
        """Return the number of kills in a cgroup, the latest one known if it has been removed."""
        self._latest[group] = max(self._latest[group], self._count(group))
        return self._latest[group]

    def _count(self, group: str) -> int:
        for name in _COUNTERS:
            for line in _read(f"{group}/{name}").splitlines():
                counter, _, count = line.partition(" ")
                if counter == "oom_kill" and count.isdecimal():
                    return int(count)
        return 0

    def _limit(self, folder: str) -> str:
        """Return the limit of a cgroup or the nearest one above that has one, for people; empty if there is none."""
        while folder.startswith(self._mount):
            for name in _LIMITS:
                text = _read(f"{folder}/{name}").strip()
                if text.isdigit() and int(text) < _UNLIMITED:
                    return _size(int(text))
            folder = os.path.dirname(folder)
        return ""


def _memory_cgroup(mount: str, membership: str) -> str:
    """Return the folder with the counter. In a container the path may be the host's; the mount itself then counts."""
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = f"{mount}/memory" if controllers else mount
        for folder in (f"{base}{path}".rstrip("/"), base):
            if any(os.path.exists(f"{folder}/{name}") for name in _COUNTERS):
                return folder
    return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _size(count: int) -> str:
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}
    return next((f"{count / size:.3g} {unit}" for unit, size in units.items() if count >= size), "0 bytes")
