"""Programs that run under torchrun run under node-agent with the same command line, and print exactly the same losses.

Each worker's stdout goes to a separate file, by torchrun's flags, so that lines do not mix. Workers are forked by a
process that has imported torch. In the second case, ours is `--preload`'s.
"""

import asyncio
import importlib.util
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from node_agent.features.warm import words as warm_words
from tests.support.launchers import (
    LONG_S,
    NODE_AGENT,
    PROGRAMS,
    SLOW_MODULES,
    TORCHRUN,
    free_port,
    start,
    warm_python,
    warm_torch,
)
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.support.programs import Program

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("programs")]

TO_FILES = ("--log-dir", "logs", "--redirects", "3")
FAIR = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Separates torchrun's restarts from the keys that the previous round left in its store."""
PORT_TAKEN = "EADDRINUSE"
"""With `FAIR`, torchrun chooses a free port for each round. Until rank 0 listens there, which takes seconds on a busy
machine, another program can take the port. Then the round fails, so such a run of torchrun does not count."""
QUICK = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=10"
TWO_STATIC_NODES = tuple(f"--nnodes 2 --node-rank {rank} --master-addr 127.0.0.1 --master-port PORT" for rank in (0, 1))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with its arguments, and each node's flags. `PORT` is a free port."""

    program: str
    nodes: tuple[str, ...] = ("--standalone --nproc-per-node 2",)
    environment: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 0
    error: str = ""
    """Text of the error file of rank 1, which fails without restarts left."""


# Each case takes many seconds of processor time, most of it for imports of torch, so each one shows several things.
# Success and failure, both after and without a restart, with and without `--standalone`, each occur once in this file.
CASES = {
    "an ImageNet-style script on two static nodes": Case(program="image_classifier.py -j 1", nodes=TWO_STATIC_NODES),
    "an elastic @record script that crashes, continues, and fails": Case(
        program="elastic.py --crash-after 2 --fail-after 4",
        nodes=("--standalone --nproc-per-node 2 --max-restarts 1",),
        environment=FAIR | {"PET_PRELOAD": SLOW_MODULES},  # torchrun does not have this variable
        exit_code=1,
        error="DataIsBroken: batch 4 of rank 1 has no label",
    ),
}

Printed = list[tuple[str, list[str]]]
"""Attempt and lines of each worker."""


@pytest.mark.xdist_group("warm torch")
@pytest.mark.parametrize("name", CASES)
async def test_the_same_losses(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    warm = replace(case, environment={**case.environment, **warm_torch(tmp_path)})
    theirs = await run(TORCHRUN, warm, tmp_path)
    ours = await run(NODE_AGENT, case if "PET_PRELOAD" in case.environment else warm, tmp_path)
    assert ours == theirs
    assert all(any(" loss " in line for line in lines) for _, lines in ours)
    errors = [recorded_errors(tmp_path / launcher) for launcher in (TORCHRUN, NODE_AGENT)]
    assert errors[0] == errors[1]
    assert [text for text, _ in errors[1]] == [case.error] * bool(case.error)


async def test_a_public_program(tmp_path: Path) -> None:
    """Hugging Face's own check of a distributed setup, unmodified: it trains, and compares with one process."""
    found = importlib.util.find_spec("accelerate")
    if found is None or found.origin is None:
        pytest.skip("accelerate is not installed")
    path = Path(found.origin).parent / "test_utils" / "scripts" / "test_script.py"
    # The last is for DeepSpeed, which accelerate imports if it is installed. Otherwise DeepSpeed warns that it finds
    # none, with the time.
    environment = {"ACCELERATE_USE_CPU": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    python = warm_python("accelerate.test_utils,torch._dynamo", tmp_path, environment)
    case = Case(program=str(path), environment=environment | python)
    theirs, ours = [await run(launcher, case, tmp_path) for launcher in (TORCHRUN, NODE_AGENT)]
    assert ours == theirs
    assert any("Training yielded the same results" in line for _, lines in ours for line in lines)


def recorded_errors(folder: Path) -> list[tuple[str, set[str]]]:
    """Return the texts of the error files of rank 1, and what else they contain."""
    messages = [json.loads(file.read_text())["message"] for file in folder.glob("logs/*/attempt_1/1/error.json")]
    return [(message["message"], {*message, *message["extraInfo"]}) for message in messages]


@pytest.mark.xdist_group("warm torch")
async def test_training_continues_alike_when_a_node_leaves(tmp_path: Path) -> None:
    python = warm_torch(tmp_path)
    theirs, ours = [await lose_a_node(launcher, tmp_path, FAIR | python) for launcher in (TORCHRUN, NODE_AGENT)]
    # On a busy machine torchrun forms one more round, in which workers are stopped before they print anything.
    assert [lines for _, lines in ours] == [lines for _, lines in theirs if lines]
    assert ("attempt_1", "rank 0 of 1 begins at epoch 3") in [(attempt, lines[0]) for attempt, lines in ours]


async def lose_a_node(launcher: str, folder: Path, env: Mapping[str, str]) -> Printed:
    """Tell one of two nodes, which hosts nothing, to leave after three epochs."""
    folder = folder_for(launcher, folder)
    flags = "--nnodes=1:2 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=nightly --log-dir=logs --tee=1"
    program = [str(PROGRAMS / "elastic.py"), "--wait-after", "3"]
    with free_port() as port:
        agents: list[Program] = []
        for rank, conf in enumerate(("is_host=1", "is_host=0")):
            place = [f"--rdzv-endpoint=127.0.0.1:{port}", f"--node-rank={rank}", f"--rdzv-conf={conf},{QUICK}"]
            agents.append(await start(launcher, [*flags.split(), *place, *program], env=env, cwd=folder))
        await until(lambda: any("rank 1 waits" in lines for _, lines in printed(folder)), LONG_S)
        agents[1].signal(signal.SIGTERM)
        await agents[1].exit_code(LONG_S)
        code = await agents[0].exit_code(LONG_S)
    if launcher == TORCHRUN and has_lost_its_port(agents, folder):
        shutil.rmtree(folder)
        return await lose_a_node(launcher, folder.parent, env)
    assert code == 0, launcher
    return printed(folder)


async def run(launcher: str, case: Case, folder: Path) -> Printed:
    """Run the case to its end."""
    folder = folder_for(launcher, folder)
    with free_port() as port:
        program = str(PROGRAMS / case.program).split()
        nodes = [[*node.replace("PORT", port).split(), *TO_FILES, *program] for node in case.nodes]
        agents = [await start(launcher, node, env=case.environment, cwd=folder) for node in nodes]
        codes = await asyncio.gather(*(agent.exit_code(LONG_S) for agent in agents))
    if launcher == TORCHRUN and has_lost_its_port(agents, folder):
        shutil.rmtree(folder)
        return await run(launcher, case, folder.parent)
    assert set(codes) == {case.exit_code}, (launcher, codes)
    is_warm = any(has_message(line, warm_words.start_warm) for agent in agents for line in agent.err)
    assert is_warm is (launcher == NODE_AGENT and "PET_PRELOAD" in case.environment)
    return printed(folder)


def has_lost_its_port(agents: Sequence[Program], folder: Path) -> bool:
    """Return whether a worker could not listen at the port that its launcher had chosen."""
    errors = [line for agent in agents for line in agent.err]
    errors += [file.read_text() for file in folder.glob("logs/*/attempt_*/*/stderr.log")]
    return any(PORT_TAKEN in text for text in errors)


def folder_for(launcher: str, folder: Path) -> Path:
    """Return the current folder of a launcher and its workers."""
    (folder / launcher).mkdir()
    return folder / launcher


def printed(folder: Path) -> Printed:
    files = folder.glob("logs/*/attempt_*/*/stdout.log")
    return sorted((file.parents[1].name, file.read_text().splitlines()) for file in files)
