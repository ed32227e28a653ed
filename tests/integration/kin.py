"""What a test can see of a process that is not its own child: its state, its children, who guards it."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.desk import process_ended
from tests.integration.programs import PATIENCE_S


def state(pid: int) -> str:
    """The letter of /proc/PID/stat; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid: int) -> set[int]:
    """Its children, zombies and those that it has adopted included."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that is gone
            found.update(map(int, (task / "children").read_text().split()))
    return found


def command_line(pid: int) -> str:
    """Empty for a process that is gone, and for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def guardians(agent: int) -> list[int]:
    """The processes that would end what the agent's workers leave behind."""
    return [pid for pid in children(agent) if "orphans_helper.py" in command_line(pid)]


async def ended(pid: int, within_s: float = PATIENCE_S) -> None:
    """Return when the process has ended."""
    async with asyncio.timeout(within_s):
        await process_ended(pid).wait()


async def until(holds: Callable[[], object]) -> None:
    """Return once it is so; for what nobody tells of."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Freezer:
    """A cgroup whose processes are frozen: in uninterruptible sleep, where SIGKILL waits until they are thawed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def freeze(self, *pids: int) -> None:
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))
        self._turn("FROZEN")

    def thaw(self) -> None:
        self._turn("THAWED")

    def _turn(self, to: str) -> None:
        (self._folder / "freezer.state").write_text(to)

    async def remove(self) -> None:
        """Thaw, and wait until whatever was killed meanwhile is gone."""
        self.thaw()
        await until(lambda: not (self._folder / "cgroup.procs").read_text())
        self._folder.rmdir()


@asynccontextmanager
async def freezing(mount: Path) -> AsyncIterator[Freezer]:
    """A freezer of our own, in a hierarchy that is mounted here for the time being."""
    mount.mkdir()  # noqa: ASYNC240
    command = ("mount", "-t", "cgroup", "-o", "freezer", "freezer", str(mount))
    if subprocess.run(command, capture_output=True).returncode:  # noqa: ASYNC221
        pytest.skip("this user, or this kernel, has no cgroup freezer (version 1)")
    folder = mount / f"rdzv{os.getpid()}-{os.urandom(3).hex()}"
    try:
        folder.mkdir()
        freezer = Freezer(folder)
        try:
            yield freezer
        finally:
            await freezer.remove()
    finally:
        subprocess.run(["umount", "-l", mount], check=True)  # noqa: ASYNC221
