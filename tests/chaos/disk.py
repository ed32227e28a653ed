"""A disk that is slow or hangs, and a check whether small and slow disks are possible."""

import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.support.disk import why_no_disk
from tests.support.process_info import until
from tests.support.programs import Program

SYNCS = "fsync,fdatasync"
READS, LAST_LOOKS = "pread64", "fstatfs"
"""System calls with which an agent reads its workers' files, and with which it checks them after a worker's end."""


class SlowCalls:
    """Slow system calls: strace delays each such call of a process, or only those on some files.

    An async context manager. A call that is delayed at its end then continues.
    """

    def __init__(self, pid: int, delay_s: float, calls: str = SYNCS, files: Iterable[Path] = ()) -> None:
        self._pid = pid
        self._files = [f"--trace-path={file}" for file in files]
        self._calls = calls
        self._inject = f"inject={calls}:delay_enter={delay_s * 1e6:.0f}"

    async def __aenter__(self) -> None:
        command = (
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={self._calls}",
            "-e",
            self._inject,
            *self._files,
        )
        self._strace = await Program.start(*command, "-p", str(self._pid))
        await until(lambda: all(map(_is_traced, _threads(self._pid))))

    async def __aexit__(self, *error: object) -> None:
        self._strace.process.terminate()
        await self._strace.exit_code()


@cache
def why_impossible() -> str | None:
    """Return why this machine cannot have such disks, None if it can."""
    if shutil.which("strace") is None:
        return "strace is missing: tests/install-debian-packages.sh installs it"
    if traced := subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True).stderr.strip():
        return f"strace may not trace here: {traced}"
    return why_no_disk()


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _is_traced(thread: Path) -> bool:
    return "\nTracerPid:\t0\n" not in (thread / "status").read_text()
