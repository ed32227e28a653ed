"""A small disk for a server's state, which can be full."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Self


class Disk:
    """A separate file system with 16 MB of room, as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def __enter__(self) -> Self:
        self.path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", self.path], check=True)
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", self.path], check=True)

    def fill(self) -> None:
        """Fill the disk, so that nothing can be written any more."""
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


@cache
def why_no_disk() -> str | None:
    """Return why this user cannot have such disks, None if it can."""
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
        return "this user may not mount a file system"
    return None
