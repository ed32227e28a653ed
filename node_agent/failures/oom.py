"""Whether the kernel killed a worker for lack of memory: its counters of such kills, before and after.

The counter of the agent's own cgroup, which its workers are part of, is as good as certain. That of the machine also
counts kills in other containers. What cannot be read counts nothing.
"""

import os

MOUNT = "/sys/fs/cgroup"
_COUNTERS = ("memory.events", "memory.oom_control")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number near 2**63."""


class OomWatch:
    """Made when the workers have started; asked when one was killed."""

    def __init__(self, mount: str = MOUNT, proc: str = "/proc") -> None:
        self._mount = mount
        self._group = _memory_cgroup(mount, _read(f"{proc}/self/cgroup"))
        self._vmstat = f"{proc}/vmstat"
        self._before = self._counts()

    def verdict(self) -> str:
        """What the counters say of a worker that was killed since the start or the last verdict; empty for nothing."""
        before, self._before = self._before, self._counts()
        group, machine = (now > then for now, then in zip(self._before, before, strict=True))
        if group:
            return "killed by the kernel: out of memory" + self._limit()
        return "probably killed by the kernel, which was out of memory on this machine" if machine else ""

    def _counts(self) -> tuple[int, int]:
        """Kills in the agent's cgroup, and on the machine."""
        return sum(_field(f"{self._group}/{name}", "oom_kill") for name in _COUNTERS), _field(self._vmstat, "oom_kill")

    def _limit(self) -> str:
        """The limit of the agent's cgroup, or of the nearest one above it that has one, in words."""
        folder = self._group
        while folder.startswith(self._mount):
            for name in _LIMITS:
                text = _read(f"{folder}/{name}").strip()
                if text.isdigit() and int(text) < _UNLIMITED:
                    return f" (cgroup limit {_size(int(text))})"
            folder = os.path.dirname(folder)
        return ""


def _memory_cgroup(mount: str, membership: str) -> str:
    """The folder that counts, if there is one. In a container the path may be the host's: then the mount itself."""
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


def _field(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"
