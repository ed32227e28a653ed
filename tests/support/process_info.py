"""Facts about processes that are not the test's children: state, parents, children, end, and open resources."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 30.0
PAGE_BYTES = 4096
PR_SET_CHILD_SUBREAPER = 36


def stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat, beginning with the state; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat, empty if the process is gone."""
    return "".join(stat(pid)[:1])


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    return state(pid) not in ("", "Z", "X")


def parent(pid: int) -> int:
    """Return the parent's pid of an existing process."""
    return int(stat(pid)[1])


def children(pid: int) -> set[int]:
    """Return the pids of children, including zombies and adopted ones, from all threads of the process.

    A thread that ends passes its children to another one, which may have been read already. All are then read again.
    """
    while True:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        with suppress(FileNotFoundError, ProcessLookupError):
            return {int(child) for thread in threads for child in (thread / "children").read_text().split()}


def tree(pid: int) -> Iterator[str]:
    """Yield a line for the process and each descendant: pid, state, masks of its signals, and command line."""
    with suppress(OSError):
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        masks = " ".join(f"{name} {status[name]}" for name in ("ShdPnd", "SigBlk", "SigIgn", "SigCgt"))
        words = command_line(pid).replace("\0", " ")
        yield f"{pid} {status['State']} {masks} {words}"
        for child in children(pid):
            yield from tree(child)


@contextmanager
def subreaper() -> Iterator[None]:
    """Let this process adopt orphans meanwhile, as an agent does."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def command_line(pid: int) -> str:
    """Return the command line, empty if the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def helpers(pid: int, script: str) -> list[int]:
    """Return the pids of the children that execute this script."""
    return [child for child in children(pid) if script in command_line(child)]


def guardians(agent: int) -> list[int]:
    """Return the processes that would end the orphans of the agent's workers."""
    return helpers(agent, "\0guardian\0")


def process_ended(pid: int) -> asyncio.Event:
    """Return an event that is set when the process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set()
        return ended

    def note() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        ended.set()

    loop.add_reader(pidfd, note)
    return ended


async def ended(pid: int, within_s: float = PATIENCE_S) -> None:
    """Return when the process has ended."""
    async with asyncio.timeout(within_s):
        await process_ended(pid).wait()


async def until(holds: Callable[[], object], within_s: float = PATIENCE_S, pause_s: float = 0.01) -> None:
    """Poll until the condition is true, for conditions without an event.

    `pause_s`: seconds between two looks, longer if each look starts a program.
    """
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory in MB, and open file descriptors."""

    rss_mb: float
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(round(pages * PAGE_BYTES / 1e6, 1), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def kill_unnoticed(pid: int) -> None:
    """Kill a child. The event loop has not noticed it when this returns."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
