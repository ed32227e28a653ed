"""Survivors save the last completed step when a worker or a node dies: no step is trained twice, and losses are equal.

The programs are `survivors.py` and `hsdp_survivors.py` of `examples/gallery`. They have no checkpoint before their last
step, so without survivors every step would be trained again.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from node_agent import words
from tests.support.cluster import PATIENT
from tests.support.launchers import FSDP_MODULES, PROGRAMS, warm_python, warm_torch
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.support.programs import Program, Server, start_agent
from tests.support.rdzvctl import rdzvctl

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

PATIENCE_S = 280.0
GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
INTERRUPTED = str(PROGRAMS / "interrupted.py")
PRINTED = re.compile(r"^step=(\d+) rank=\d+ loss=(\S+)$", re.M)
STEPS = [*range(1, 11)]
PRECISIONS = {"survivors": 1e-12, "hsdp_survivors": 1e-5}
"""In its first step DistributedDataParallel adds the gradients of more than two ranks in another order. The other
program's type is less precise.
"""
PROMPT = (*PATIENT[:-1], "60")
"""Flags of a run without timers, whose workers have more time to save than they take."""


def printed(folder: Path) -> list[list[tuple[int, str]]]:
    """Return the steps of each rank, with their losses, in the order in which workers of that rank took them."""
    texts = [path.read_text() for path in sorted(folder.glob("printed-*"))]
    return [[(int(step), loss) for step, loss in PRINTED.findall(text)] for text in texts]


async def undisturbed(example: str, tmp_path: Path, python: Mapping[str, str]) -> dict[int, float]:
    (folder := tmp_path / "undisturbed").mkdir()
    flags = ("--standalone", "--nproc", "4", INTERRUPTED)
    agent = await start_agent(*flags, env=python, cwd=folder, script=GALLERY / f"{example}.py")
    assert await agent.exit_code(PATIENCE_S) == 0
    return {step: float(loss) for step, loss in printed(folder)[0]}


async def node(
    server: Server, node_id: str, folder: Path, env: Mapping[str, str], *flags: str, example: str = "survivors",
    kept: str = "kept",
) -> list[Program]:  # fmt: skip
    """Run a node's agent, again when it was killed. Return all of its agents. `kept`: where its survivors save."""
    script = (INTERRUPTED, str(GALLERY / f"{example}.py"))
    words = ("--endpoint", server.endpoint, "--node-id", node_id, *PROMPT, *flags, *script)
    agents: list[Program] = []
    while True:
        agents.append(await start_agent(*words, "--survivors", env=env, cwd=folder, script=kept))
        if (code := await agents[-1].exit_code(PATIENCE_S)) != -9:
            assert code == 0
            return agents


WARM = pytest.mark.xdist_group("warm torch")


@pytest.mark.parametrize(
    ("example", "is_shared"),
    [
        pytest.param("survivors", True, marks=WARM),
        pytest.param("survivors", False, marks=WARM),
        pytest.param("hsdp_survivors", True, marks=pytest.mark.xdist_group(FSDP_MODULES)),
    ],
    ids=["DDP, one disk", "DDP, a disk for each node", "HSDP, one disk"],
)
async def test_steps_are_not_repeated_after_the_death_of_a_worker_or_of_any_agent(
    example: str, is_shared: bool, tmp_path: Path
) -> None:
    """The first agent that dies is rank 0's, with the workers' store. A replica of HSDP has one node."""
    is_ddp = example == "survivors"
    python = warm_torch(tmp_path) if is_ddp else warm_python(FSDP_MODULES, tmp_path, {"OMP_NUM_THREADS": "1"})
    happens = [("step=3 ", 1, "kill worker"), ("step=5 ", 0, "kill agent"), ("step=8 ", 2, "kill agent")]
    server = await Server.listen("--store", "memory")
    (folder := tmp_path / "disturbed").mkdir()

    async def run(node_id: str) -> list[Program]:
        env = {**python, "INTERRUPTIONS": json.dumps(happens)}
        flags = ("--nnodes", "2", "--nproc", "2", "--max-restarts", "3")
        kept = "shared" if is_shared else node_id
        return await node(server, node_id, folder, env, *flags, example=example, kept=kept)

    losses, *_ = await asyncio.gather(undisturbed(example, tmp_path, python), run("a"), run("b"))
    found = printed(folder)
    for steps in found:
        assert [step for step, _ in steps] == sorted({step for step, _ in steps}), "no rank has taken a step twice"
    for step, loss in (taken for steps in found for taken in steps):
        assert float(loss) == pytest.approx(losses[step], rel=PRECISIONS[example])
    assert sorted({step for steps in found for step, _ in steps}) == STEPS
    run = await server.run()
    assert {cause: times for cause, times in run["restarts"].items() if times} == {"worker_failure": 1, "node_lost": 2}
    assert run["restart_costs"]["kept_steps"] == run["time_s"]["kept_steps"]
    assert run["time_s"]["kept_steps"] >= 3 and run["time_s"]["repeated_steps"] == 0


@WARM
async def test_a_worker_that_is_blocked_in_a_collective_operation_saves_when_it_is_stopped(tmp_path: Path) -> None:
    """Rank 1 does not come to the next step. Then rank 0's main thread does not run signal handlers."""
    python = warm_torch(tmp_path)
    server = await Server.listen("--store", "memory")
    env = {**python, "INTERRUPTIONS": json.dumps([("step=4 ", 1, "wait")])}
    running = asyncio.create_task(node(server, "a", tmp_path, env, "--nproc", "2"))
    await until(lambda: (tmp_path / "interruption-0").exists(), PATIENCE_S)
    assert (await rdzvctl("restart", "none", endpoint=server.endpoint)).code == 0
    (agent,) = await asyncio.wait_for(running, PATIENCE_S)
    saved = [line for line in agent.err if has_message(line, words.survivors.saved, step=4)]
    assert len(saved) == 1, "the other one has seen that it is saved"
    assert [[step for step, _ in steps] for steps in printed(tmp_path)] == [STEPS, STEPS]
