"""A small disk for the server's state, which can be full or slow."""

import asyncio
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.programs import PATIENCE_S, Program

SYNCS = "fsync,fdatasync"


class Disk:
    """A file system of its own with 16 MB of room, as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def __enter__(self) -> "Disk":
        self.path.mkdir()
        _mount(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", self.path], check=True)

    def fill(self) -> None:
        """Nothing can be written from now on."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(descriptor, bytes(1 << 16))
        except OSError:  # full
            pass
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._filler.unlink()


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
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
        return "this user may not mount a file system"
    return None


def _mount(path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", path], check=True)


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _is_traced(thread: Path) -> bool:
    return "\nTracerPid:\t0\n" not in (thread / "status").read_text()
