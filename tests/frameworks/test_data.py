"""Data in its place, in the examples of `examples/gallery/` that use `node_agent.data`: workers and nodes are killed
between checkpoints, and others join. Each step has the same samples and the same loss as in an undisturbed run.
"""

import ast
import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.frameworks.test_gallery import (
    GALLERY,
    INTERRUPTED,
    PATIENCE_S,
    QUIET,
    restarts_of,
    story,
    undisturbed,
)
from tests.support.cluster import PATIENT
from tests.support.launchers import FSDP_MODULES, warm_python
from tests.support.process_info import until
from tests.support.programs import Program, Server, start_agent

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600), pytest.mark.usefixtures("programs")]


class Nodes:
    """A server, and nodes with one worker each, of a run of 2 to 5 nodes."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str], *interruptions: tuple[str, int, str]) -> None:
        self._script, self.folder = GALLERY / f"{name}.py", folder
        self._env = {**QUIET, **env, "INTERRUPTIONS": json.dumps(interruptions)}
        os.mkdir(folder)

    async def serve(self) -> None:
        self.server = await Server.listen("--store", "memory")

    async def join(self, node_id: str) -> Program:
        flags = (
            "--endpoint",
            self.server.endpoint,
            "--node-id",
            node_id,
            "--nnodes",
            "2:5",
            "--max-restarts",
            "1",
            *PATIENT,
        )
        return await start_agent(*flags, str(INTERRUPTED), env=self._env, cwd=self.folder, script=self._script)

    async def interrupted(self, number: int) -> None:
        """Return when the interruption with this number has happened."""
        await until((self.folder / f"interruption-{number}").exists, PATIENCE_S)

    def worlds(self) -> list[int]:
        """Return the numbers of ranks, one after the other."""
        sizes = [int(size) for size in re.findall(r"rank=0 of (\d)", (self.folder / "printed-0").read_text())]
        return [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]


@pytest.mark.xdist_group(FSDP_MODULES)
async def test_every_sample_is_trained_on_once_an_epoch_by_five_four_three_five_and_two_ranks(tmp_path: Path) -> None:
    """A checkpoint is saved every 3 steps, and each change is between two checkpoints. Neither is 50 samples a multiple
    of the global batch of 8, nor 8 of 3 or 5. The last batch of an epoch has fewer samples than there are ranks.
    """
    python = warm_python(FSDP_MODULES, tmp_path, QUIET)
    nodes = Nodes(
        "elastic_sampler", tmp_path / "changed", python,
        ("step=2 ", 4, "kill agent"),
        ("step=5 ", 3, "kill agent"),
        ("step=8 ", 2, "kill worker"),
        ("step=10 rank=0 of 3", 0, "wait"),  # until two more have joined
        ("step=17 rank=0 of 5", 0, "wait"),  # until three leave
    )  # fmt: skip
    await nodes.serve()
    expected, _ = await asyncio.gather(undisturbed("elastic_sampler", tmp_path, python), nodes_come_and_go(nodes))
    found = story(nodes.folder)
    assert nodes.worlds() == [5, 4, 3, 5, 2]
    assert found.keys() == expected.keys() == set(range(1, 22))
    for step, (loss, samples) in expected.items():
        assert found[step] == (pytest.approx(loss, rel=1e-12), samples)
    trained = [json.loads(samples.removeprefix(" samples=")) for _, (_, samples) in sorted(found.items())]
    for epoch in (trained[:7], trained[7:14], trained[14:]):
        assert Counter(number for batch in epoch for number in batch) == dict.fromkeys(range(50), 1)


async def nodes_come_and_go(nodes: Nodes) -> None:
    agents = [await nodes.join(node_id) for node_id in "abcde"]
    await nodes.interrupted(3)
    agents = [agent for agent in agents if agent.is_running]
    assert len(agents) == 3
    agents += [await nodes.join(node_id) for node_id in "fg"]
    await nodes.interrupted(4)
    for agent in agents[2:]:
        agent.signal(signal.SIGTERM)
    assert [await agent.exit_code(PATIENCE_S) for agent in agents[:2]] == [0, 0]
    assert (await restarts_of(nodes.server)).keys() == {"worker_failure", "node_lost", "node_arrived", "node_left"}


# The page.

PAGE = (GALLERY.parents[1] / "docs" / "how-to" / "resume-data.md").read_text()
WITH_A_LIST, WITH_SHARDS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


async def run_of(folder: Path, ranks: int, env: Mapping[str, str]) -> list[str]:
    """Return what the page's script, in this folder, prints as a run of this size."""
    flags = ("--standalone", "--nproc", str(ranks))
    agent = await start_agent(*flags, str(folder / "train.py"), env={**QUIET, **env}, cwd=folder)
    assert await agent.exit_code(PATIENCE_S) == 0, agent.err
    return agent.out


@pytest.mark.xdist_group(FSDP_MODULES)
async def test_the_pages_script_continues_with_another_number_of_ranks(tmp_path: Path) -> None:
    """It ends in the middle of an epoch, as if its two ranks were killed there, and three ranks continue."""
    python = warm_python(FSDP_MODULES, tmp_path, QUIET)
    ends = "            print(loader.state_dict())\n"
    assert ends in WITH_A_LIST
    (tmp_path / "train.py").write_text(
        WITH_A_LIST.replace(ends, f"{ends}        if loader.state_dict()['samples'] == 48:\n            os._exit(0)\n")
    )
    shown = await run_of(tmp_path, 2, python)
    assert shown[0] == re.findall(r"^```text\n(.*?)\n```", PAGE, re.M)[0]
    (tmp_path / "train.py").write_text(WITH_A_LIST)
    continued = [ast.literal_eval(line) for line in await run_of(tmp_path, 3, python)]
    assert [(line["epoch"], line["samples"]) for line in continued] == [
        (0, 72), (0, 96), (1, 0), (1, 24), (1, 48), (1, 72), (1, 96), (2, 0)
    ]  # fmt: skip


@pytest.mark.xdist_group(FSDP_MODULES)
async def test_the_pages_script_reads_each_line_once_an_epoch(tmp_path: Path) -> None:
    """Two ranks end after the first steps, and three ranks read the rest. Ranks have different numbers of batches."""
    python = warm_python(FSDP_MODULES, tmp_path, QUIET)
    os.mkdir(tmp_path / "shards")
    lines = [f"{shard}.{line:02}" for shard in range(5) for line in range(1 + 4 * shard)]
    for shard in range(5):
        mine = [line for line in lines if line.startswith(f"{shard}.")]
        (tmp_path / "shards" / f"{shard}.txt").write_text("\n".join(mine) + "\n")
    first = WITH_SHARDS.replace("while True:", "for _ in range(3):").replace("while loader.epoch < 2:", "if True:")
    (tmp_path / "train.py").write_text(first)
    begun = await run_of(tmp_path, 2, python)
    (tmp_path / "train.py").write_text(WITH_SHARDS)
    rest = await run_of(tmp_path, 3, python)
    assert 0 < len(begun) < len(lines)
    assert Counter(begun + rest) == dict.fromkeys(lines, 2)
