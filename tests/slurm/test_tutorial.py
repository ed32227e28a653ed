"""The tutorial about Slurm, block by block, on a real Slurm."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.test_command_blocks import BLOCKS, Command, pattern_of
from tests.support.process_info import until
from tests.support.slurm import PATIENCE_S, Slurm

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("programs")]

ROOT = Path(__file__).parents[2]
PAGE = "docs/tutorials/slurm-with-a-spare.md"
JOB, LOST = r"(?<=[ :-])8\b", r"\bn4\b"
"""The job and the lost node of the page."""
NODE = re.compile(r"\bn[1-4]\b")
ONCE = ("cat", "sbatch", "scontrol update")
"""Commands that change something. The others are repeated until they show what the page shows."""


class Reader:
    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        (slurm.folder / "deploy").symlink_to(ROOT / "deploy")
        self._job = self._lost = ""

    async def do(self, command: Command) -> None:
        line = re.sub(LOST, self._lost, re.sub(JOB, self._job, command.line)).replace("sleep(1)", "sleep(0.5)")
        if not command.line.startswith(ONCE):
            with suppress(TimeoutError):
                await until(lambda: not self._missing(command, self._output(f"{line} || true")), PATIENCE_S, 0.2)
        output = self._output(line)
        assert self._missing(command, output) == [], output
        if command.line.startswith("sbatch"):
            self._job = output.split()[-1]
        elif not self._lost:
            ranked = re.findall(r"^(n\d): .* round 1: node", output, re.MULTILINE)
            self._lost = next((node for node in ranked if node != "n1"), "")

    def _output(self, line: str) -> str:
        return self._slurm.call("bash", "-c", line)

    def _missing(self, command: Command, output: str) -> list[str]:
        """Return the lines of the page that the output has not. Any node may be in the place of another."""
        return [line for line in command.shown if not re.search(NODE.sub("n[1-4]", pattern_of(line)), output)]


async def test_the_tutorial_runs_as_it_stands(slurm: Slurm) -> None:
    reader = Reader(slurm)
    for block in BLOCKS[PAGE]:
        for command in block.commands():
            await reader.do(command)
