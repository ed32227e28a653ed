"""The disk's faults work as named."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent import words
from rdzv_server.words import silent_runs
from tests.chaos.disk import LAST_LOOKS, READS, SlowCalls
from tests.support.cluster import Cluster
from tests.support.disk import Disk
from tests.support.message_search import any_numbers, pattern
from tests.support.programs import Program
from tests.support.worker_hub import of_agent

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("possible")]

DELAY_S = 0.5
WRITER = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    for _ in sys.stdin:
        began = time.monotonic()
        file.write("x")
        os.fsync(file.fileno())
        print("synced in", time.monotonic() - began, flush=True)
"""


class Writer(Program):
    """Program that writes and syncs once for each line of its input."""

    async def sync_s(self) -> float:
        """Return the duration of a sync."""
        assert self.process.stdin
        before = len(self.out)
        self.process.stdin.write(b"\n")
        async with asyncio.timeout(10.0):
            while len(self.out) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return float(self.out[-1].split()[-1])


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    with Disk(tmp_path / "disk") as disk:  # in memory, where a sync takes no time
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(disk.path / "file"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        writer = Writer(process)
        yield writer
        await writer.end()


async def test_syncs_are_slow_for_a_while(writer: Writer) -> None:
    await writer.sync_s()
    async with SlowCalls(writer.pid, DELAY_S):
        assert await writer.sync_s() >= DELAY_S
    assert await writer.sync_s() < DELAY_S


def log_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.log"))


async def test_a_node_whose_log_files_hang_stays_in_its_run(cluster: Cluster, tmp_path: Path) -> None:
    """It simulates a network file system whose server hangs (docs/explanation/failures.md)."""
    flags = ("--nnodes", "2", "--lease", "2", "--log-dir", str(tmp_path), "-t", "3")
    workers = await cluster.nodes("ab", *flags, nproc=1)
    other = await cluster.node("c", "--nnodes", "1", "--run-id", "other", "--lease", "5")
    await cluster.hub.group(cluster.nproc)
    agent = cluster.agents["b"]
    (mute,) = of_agent(workers, agent.pid)
    async with SlowCalls(agent.pid, 1_000.0, READS, log_files(tmp_path)):
        mute.order("say written meanwhile")
        other.signal(signal.SIGSTOP)
        silent = any_numbers(pattern(silent_runs.awaited(5)))
        await cluster.server.line(f"run other .*{silent}")  # two leases of the others later
    await agent.line("written meanwhile")
    await cluster.agents.pop("c").kill()
    await cluster.finish(workers)


async def test_a_failure_is_reported_although_the_disk_hangs_at_the_end_of_a_worker(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The disk has five seconds, more than the lease: an agent that waited for it would lose its node."""
    flags = ("--nnodes", "2", "--max-restarts", "1", "--lease", "2", "--log-dir", str(tmp_path), "-t", "3")
    first = await cluster.nodes("ab", *flags, nproc=1)
    agent = cluster.agents["b"]
    (fails,) = of_agent(first, agent.pid)
    async with SlowCalls(agent.pid, 1_000.0, LAST_LOOKS):
        fails.kill()
        hangs = words.output.disk_hangs(5.0)
        await agent.line("failed: .*SIGKILL" + pattern(words.failures.with_broken_error_file, problem=hangs))
    both = await cluster.hub.group(2)
    assert await cluster.restarts() == {"worker_failure": 1}
    await cluster.finish(both)


def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk") as disk:
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.path / "file").write_bytes(b"x")
        disk.free()
        (disk.path / "file").write_bytes(b"x")
    assert list(disk.path.iterdir()) == [], "it is gone"
