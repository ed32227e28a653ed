"""Memory cgroups of the machine that runs the tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup with 256 MiB for the processes that join it."""
    name, limit = f"node-agent-test-{os.getpid()}", str(256 << 20)
    for root, limits in (
        ("/sys/fs/cgroup", ("memory.max", "memory.swap.max")),
        ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
    ):
        folder = Path(root) / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limits[0]).exists():
                continue
            (folder / limits[0]).write_text(limit)
            if (folder / limits[1]).exists():
                (folder / limits[1]).write_text("0" if "swap" in limits[1] else limit)
            yield folder
            return
        finally:
            folder.rmdir()
    pytest.skip("no memory cgroup can be made here: that takes root and a writable /sys/fs/cgroup")
