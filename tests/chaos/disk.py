"""A slow disk, and where small and slow disks are possible."""

import asyncio
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.disk import why_no_disk
from tests.support.programs import PATIENCE_S, Program

SYNCS = "fsync,fdatasync"


class SlowSyncs:
    """For a process every sync takes so long, as an async context manager: strace holds the system call up."""

    def __init__(self, pid: int, delay_s: float) -> None:
        self._pid = pid
        self._inject = f"inject={SYNCS}:delay_enter={delay_s * 1e6:.0f}"

    async def __aenter__(self) -> None:
        command = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={SYNCS}", "-e", self._inject)
        self._strace = await Program.start(*command, "-p", str(self._pid))
        async with asyncio.timeout(PATIENCE_S):
            while not all(map(_is_traced, _threads(self._pid))):  # noqa: ASYNC110 - nobody tells when it is
                await asyncio.sleep(0.01)

    async def __aexit__(self, *error: object) -> None:
        self._strace.process.terminate()
        await self._strace.exit_code()


@cache
def why_impossible() -> str | None:
    """Why this machine cannot have such disks; None if it can."""
    if shutil.which("strace") is None:
        return "strace is missing: tests/install-debian-packages.sh installs it"
    if traced := subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True).stderr.strip():
        return f"strace may not trace here: {traced}"
    return why_no_disk()


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _is_traced(thread: Path) -> bool:
    return "\nTracerPid:\t0\n" not in (thread / "status").read_text()
