"""`torchx run -s slurm`, on a real Slurm: the jobs that TorchX submits for our components."""

from pathlib import Path

import pytest

from node_agent import words
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.support.programs import Program
from tests.support.slurm import PATIENCE_S, Slurm

pytest.importorskip("torchx.runner", reason="the extra torchx", exc_type=ImportError)
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("programs")]
TRAIN = """\
import os, pathlib, time
here, size, rank = pathlib.Path.cwd(), os.environ["WORLD_SIZE"], os.environ["RANK"]
(here / f"{size}-{rank}-{os.uname().nodename}").touch()
while not (here / "finish").exists():
    time.sleep(0.05)
if (here / "finish").read_text() == rank:
    raise ValueError("no such data set")
"""


async def submit(slurm: Slurm, folder: Path, *arguments: str) -> str:
    """Return the id of TorchX's job for a script that reports where it runs, and waits for a file `finish`.

    Slurm does not keep accounts here, so TorchX can submit jobs but not show their states.
    """
    (folder / "train.py").write_text(TRAIN)
    words = ("python", "-W", "ignore", "-m", "torchx.cli.main", "run", "-s", "slurm", "rdzv.ddp", *arguments)
    command = slurm.on_login(*words, "--script", "train.py")
    program = await Program.start(*command, env=slurm.env, cwd=folder)
    return (await program.line(r"^slurm://torchx/(\d+)", PATIENCE_S))[1]


async def nodes_of_round(folder: Path, size: int) -> list[str]:
    """Return the names of the nodes by rank, once a round of this size runs."""

    def workers() -> list[Path]:
        return sorted(folder.glob(f"{size}-?-*"))

    await until(lambda: len(workers()) == size)
    return [each.name.split("-")[2] for each in workers()]


async def test_an_elastic_job_loses_a_node_and_succeeds(slurm: Slurm, tmp_path: Path) -> None:
    job = await submit(slurm, tmp_path, "-j", "2:3x1", "--cpu", "4", "--server", "role", "--env", "LOGLEVEL=INFO")
    nodes = await nodes_of_round(tmp_path, 3)
    lost = next(node for node in nodes if node != slurm.job(job)["BatchHost"])
    slurm.lose(lost)
    assert sorted([*await nodes_of_round(tmp_path, 2), lost]) == sorted(nodes)
    (tmp_path / "finish").touch()
    assert await slurm.ended(job) == "COMPLETED"
    output = {replica: (tmp_path / f"slurm-{job}-train-{replica}.err").read_text() for replica in range(3)}
    assert all(
        has_message(text, words.progress.joining, node_id=f"train-{replica}") for replica, text in output.items()
    )
    assert sum("run succeeded" in text for text in output.values()) == 2


async def test_a_failed_job_shows_the_root_cause(slurm: Slurm, tmp_path: Path) -> None:
    job = await submit(slurm, tmp_path, "-j", "2x1", "--cpu", "4")
    await nodes_of_round(tmp_path, 2)
    (tmp_path / "finish").write_text("1")
    assert await slurm.ended(job) == "FAILED"
    for replica in (0, 1):
        assert "ValueError: no such data set" in (tmp_path / f"slurm-{job}-train-{replica}.err").read_text()
