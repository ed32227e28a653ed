"""Wall clocks that tests set: libfaketime gives a program its own clock, which can jump while the program runs."""

from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")


def libfaketime() -> Path:
    for library in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"):
        return library
    pytest.skip("libfaketime is missing: tests/install-debian-packages.sh installs it")


class WallClock:
    """The wall clock of programs started with its environment, and of their children."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)
        self.env = {
            "LD_PRELOAD": str(libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, offset_s: int) -> None:
        """Set the wall clock this much ahead of the true time, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n")
        new.replace(self._file)


def sweep() -> None:
    """Remove the memory that libfaketime keeps for killed programs."""
    for file in SHARED_MEMORY.glob("*faketime_*"):
        if not Path("/proc", file.name.rpartition("_")[2]).exists():
            file.unlink(missing_ok=True)
