"""The examples run unchanged under both launchers."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.launchers import DIGITS, LONG_S, NODE_AGENT, TORCHRUN, start, warm_python, warm_torch
from tests.support.lazy_modules import need
from tests.support.programs import Program

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("programs")]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.xdist_group("warm torch")
async def test_a_minimal_program_runs(tmp_path: Path) -> None:
    python = warm_torch(tmp_path)
    for launcher in (TORCHRUN, NODE_AGENT):
        out = await launch(launcher, 2, "ddp_minimal.py", **python)
        assert sum("world_size" in line for line in out) >= 2


@pytest.mark.xdist_group(DIGITS)
async def test_training_continues_from_its_checkpoint_under_the_other_launcher_and_on_another_world_size(
    tmp_path: Path,
) -> None:
    """Once without `--preload`, once with it."""
    need("sklearn")
    training = ("train_digits.py", "--target-accuracy", "0", "--checkpoint", str(tmp_path / "digits.pt"))
    python = warm_python(DIGITS, tmp_path, {"OMP_NUM_THREADS": "1"})
    first = await launch(TORCHRUN, 1, *training, "--epochs", "1", **python)
    assert any("epoch=1 " in line for line in first)
    second = await launch(NODE_AGENT, 2, *training, "--epochs", "2", PET_PRELOAD=DIGITS, **python)
    assert any("resumed epochs_done=1" in line for line in second)
    assert any("epoch=2 " in line for line in second) and not any("epoch=1 " in line for line in second)


async def test_the_demo_kills_a_worker_and_shows_what_warm_workers_save() -> None:
    need("sklearn")
    demo = await Program.start(sys.executable, str(EXAMPLES / "demo.py"), "--timeout-s", str(LONG_S))
    assert await demo.exit_code(within_s=LONG_S) == 0, demo.out
    warm = r"new workers took (\S+) s, warm, without the imports; the first ones (\S+) s"
    ends = [re.search(warm, line) for line in demo.out[-3:]]
    (restart_s, start_s), *_ = [tuple(map(float, end.groups())) for end in ends if end]
    assert restart_s < start_s / 2
    assert any("restarts charged by the server: 1" in line for line in demo.out[-3:])


async def launch(launcher: str, workers: int, script: str, *args: str, **env: str) -> list[str]:
    """Run an example to its end, and return what it wrote to stdout."""
    words = ("--standalone", "--nproc-per-node", str(workers), str(EXAMPLES / script), *args)
    program = await start(launcher, words, env={"OMP_NUM_THREADS": "1", **env})
    assert await program.exit_code(within_s=LONG_S) == 0, program.err
    return program.out
