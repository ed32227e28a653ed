"""Detects whether the kernel killed a worker for lack of memory, by the count of such kills in the workers' cgroup.

It uses no other counter. Those of the machine and of cgroups below also count kills of other programs, and a wrong
cause is worse than none. Without the counter, the report only says that the worker was killed from outside.
"""

import os
import re

from node_agent import words

MOUNT = "/sys/fs/cgroup"
_COUNTERS = ("memory.events.local", "memory.events", "memory.oom_control")
"""Files with the counter: of the cgroup only; including those below, for kernels before 5.2; of cgroup version 1."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_UNLIMITED = 1 << 60
"""Least number of bytes that means "no limit". Version 1 writes a number near 2**63."""


class OomWatch:
    """Counter of the agent's cgroup, which its workers share. Create it after their start and ask it when one was
    killed.

    A counter that cannot be read counts as 0.
    """

    def __init__(self, mount: str = MOUNT, proc: str = "/proc") -> None:
        self._mount = mount
        self._group = _memory_cgroup(mount, _read(f"{proc}/self/cgroup"))
        self._before = self._count()

    def verdict(self) -> str:
        """Return why a worker was killed since the start or the previous verdict, empty if unknown."""
        before, self._before = self._before, self._count()
        return words.failures.out_of_memory(self._limit()) if self._before > before else ""

    @property
    def killed_any(self) -> str:
        """Advice if the kernel has killed a process of the cgroup since the start or the last verdict, else empty."""
        return words.failures.killed_beside(self._limit()) if self._count() > self._before else ""

    def _count(self) -> int:
        for name in _COUNTERS:
            if found := re.search(r"^oom_kill (\d+)$", _read(f"{self._group}/{name}"), re.MULTILINE):
                return int(found[1])
        return 0

    def _limit(self) -> str:
        """Return the limit of the cgroup or the nearest one above that has one, for people; empty if there is none."""
        folder = self._group
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
