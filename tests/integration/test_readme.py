"""The commands of the README, unchanged except for the host's name and a port that is free on this machine."""

import os
import re
import shlex
import sys
from pathlib import Path

from tests.support.programs import Program

ROOT = Path(__file__).parents[2]


def commands(section: str) -> list[list[str]]:
    """Return the commands of a section's first block."""
    block = re.search(rf"^## {section}\n.*?```console\n(.*?)```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert block, section
    lines = [shlex.split(line[2:]) for line in block[1].splitlines() if line.startswith("$ ")]
    return [[os.path.join(os.path.dirname(sys.executable), program), *rest] for program, *rest in lines]


async def test_one_node() -> None:
    (alone,) = commands("One node")
    agent = await Program.start(*alone, cwd=str(ROOT))
    assert await agent.exit_code() == 0, agent.err
    for rank in range(2):
        assert any(f"rank {rank} of 2, on node 0; arguments: ['--lr', '0.1']" in line for line in agent.out)
