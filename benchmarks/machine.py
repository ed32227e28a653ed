"""Facts about this machine and its processes, from /proc."""

import ctypes
import glob
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from tests.support.process_info import PR_SET_CHILD_SUBREAPER

_CPUCLOCK_SCHED = 2
"""Bits that select the clock of a process's exact CPU time in Linux (clock_getcpuclockid(3))."""
ALL_CPUS = os.sched_getaffinity(0)
"""All CPUs that the benchmarks may use."""


def machine(load: float) -> str:
    """Return a description of this machine with its load, for readers of the figures."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    release = ".".join(platform.release().split(".")[:2])
    return (
        f"{os.cpu_count()} CPUs (load {load:.1f}), {memory_gb:.0f} GB of memory, "
        f"{platform.system()} {release}, Python {platform.python_version()}, torch {torch_version()}"
    )


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def peak_rss_mb(pid: int) -> float:
    """Return the peak memory of the process in MB, without its children."""
    return _status(f"/proc/{pid}/status")["VmHWM"] / 1024


def rss_kb(pid: int) -> float:
    """Return the present memory of the process in kB."""
    return float(_status(f"/proc/{pid}/status")["VmRSS"])


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of the process."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def wake_ups(pid: int) -> int:
    """Return how many times the process's threads have slept and been woken."""
    threads = glob.glob(f"/proc/{pid}/task/*/status")
    return sum(_status(thread)["voluntary_ctxt_switches"] for thread in threads)


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    """Run on this CPU, if the machine has several, with all processes and threads that are started meanwhile.

    An inner `on_cpu` overrides an outer one.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu} & ALL_CPUS or ALL_CPUS)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent ends, so that it can end all of them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _status(path: str) -> dict[str, int]:
    """Return the numbers of a status file, which has lines such as `VmHWM: 1724 kB`."""
    with open(path, encoding="utf-8") as file:
        pairs = (line.split(":", 1) for line in file)
        words = ((name, rest.split()) for name, rest in pairs)
        return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}
