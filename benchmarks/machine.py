"""Facts of this machine and of its processes, from /proc."""

import ctypes
import glob
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version


def machine(load: float) -> str:
    """Description of this machine with its load, which a reader should know beside the figures."""
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


_PR_SET_CHILD_SUBREAPER = 36


def peak_rss_mb(pid: int) -> float:
    """Peak memory of the process in MB, without its children."""
    return _status(f"/proc/{pid}/status")["VmHWM"] / 1024


def rss_kb(pid: int) -> float:
    """Memory that the process holds now, in kB."""
    return float(_status(f"/proc/{pid}/status")["VmRSS"])


def cpu_s(pid: int) -> float:
    """CPU seconds of all of the process's threads."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def wake_ups(pid: int) -> int:
    """Number of times that the process's threads have gone to sleep and been woken."""
    threads = glob.glob(f"/proc/{pid}/task/*/status")
    return sum(_status(thread)["voluntary_ctxt_switches"] for thread in threads)


def is_running(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    """Work on this CPU, on machines that have several; also what is started meanwhile, and its threads."""
    all_cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu} & all_cpus or all_cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cpus)


def adopt_orphans() -> None:
    """Make every process whose parent dies, below this one, a child of this one: none can be lost sight of."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Pids of this process's own children, whichever of its threads started them.

    A thread that ends leaves its children to another one, which may have been looked at already: then all are again.
    """
    while True:
        with suppress(FileNotFoundError, ProcessLookupError):
            return [pid for path in glob.glob("/proc/self/task/*/children") for pid in _pids(path)]


def _pids(path: str) -> list[int]:
    with open(path, encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def _status(path: str) -> dict[str, int]:
    """The numbers of a status file: lines such as `VmHWM:  1724 kB`."""
    with open(path, encoding="utf-8") as file:
        pairs = (line.split(":", 1) for line in file)
        words = ((name, rest.split()) for name, rest in pairs)
        return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}
