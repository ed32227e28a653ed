"""Evidence of agents about workers that hang: a gloo collective that one rank skips, examined through torch itself."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from rdzv_protocol.evidence import ProcessState

from node_agent.features.evidence import gather as module
from node_agent.features.evidence.gather import Target, gather
from node_agent.kernel.environment import WORKER_SERVER
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.stack_summary import summarize
from tests.support.launchers import free_port

pytestmark = pytest.mark.torch

TRAIN = """
import time, torch, torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main
def train():
    dist.init_process_group("gloo")
    for step in range(4):
        if step == 3 and dist.get_rank() == 1:
            skip_it()
        print("up", flush=True)
        dist.all_reduce(torch.ones(4))
def skip_it():
    print("up", flush=True)
    time.sleep(1000)
with worker_main():
    train()
"""


@pytest.fixture
async def deadlocked(tmp_path: Path) -> AsyncIterator[list[Target]]:
    """Two ranks, one of which waits for the other forever."""
    (tmp_path / "train.py").write_text(TRAIN)
    targets, processes = [], []
    with free_port() as port:
        for rank in range(2):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            asked_at = {WORKER_SERVER: f"{tmp_path}/{rank}.server"}
            process = await asyncio.create_subprocess_exec(
                sys.executable, "train.py", stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
                env={**os.environ, **place, **asked_at},
            )  # fmt: skip
            processes.append(process)
            targets.append(Target(rank=rank, pid=process.pid, environment=asked_at))
        for process in processes:
            assert process.stdout
            assert [await process.stdout.readline() for _ in range(4)] == [b"up\n"] * 4
    yield targets
    for process in processes:
        process.kill()
        await process.communicate()


async def test_the_rank_that_skips_a_collective_is_named(
    deadlocked: list[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks py-spy, then torch's worker server if py-spy fails."""
    monkeypatch.setattr(module, "LONGEST_S", 60.0)  # torch's import on a busy machine
    environment = dict(os.environ)
    await is_named(deadlocked, tmp_path / "py-spy-works", environment)
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "py-spy").chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    await is_named(deadlocked, tmp_path / "py-spy-fails", environment)


async def is_named(deadlocked: list[Target], folder: Path, environment: Mapping[str, str]) -> None:
    evidence = await gather(deadlocked, str(folder), [sys.executable], environment, 75.0)
    assert evidence.problems == ()
    assert [(group.ranks, group.collective) for group in evidence.groups] == [((0,), 4), ((1,), 3)]
    summary = summarize({"a": evidence}, {})
    places = [words.place("all_reduce", "train.py", 10), words.place("skip_it", "train.py", 13)]
    ranks = [words.ranks_at([rank], 2, place, ProcessState.ALIVE) for rank, place in enumerate(places)]
    assert summary.sentence == "; ".join([*ranks, words.blame([1], words.OUTSIDE_COLLECTIVE)])
    assert "missing ranks: {1}" in evidence.flight_recorder
