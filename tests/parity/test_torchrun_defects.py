"""Scenarios of `python -m tests.parity`, which has more: node-agent is right, and a few of torchrun's defects occur.

They run as a user runs them: the program ends every process that it started, also when it is told to stop.
"""

import json
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.parity.scenarios import DEFECTS
from tests.support.launchers import warm_torch
from tests.support.programs import Program

pytestmark = pytest.mark.torch

ROOT = str(Path(__file__).parents[2])
LONG_S = 80.0
"""Seconds for several imports of torch on a small machine."""
SEEN_ON = "2.13."
TAKES_MINUTES = {"one-crash"}
STEP_TOGETHER = {"scale-up", "replacement", "leave"}
"""Scenarios whose workers import torch."""
NAMES = [defect.name for defect in DEFECTS]
QUICK_UNDER_TORCHRUN = ("restart-count", "orphans", "pet-standalone")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group("warm torch")] * (name in STEP_TOGETHER))
        for name in NAMES
        if name not in TAKES_MINUTES
    ],
)
async def test_node_agent_does_not_have_this_defect(name: str, tmp_path: Path, programs: None) -> None:
    assert await verdict(name, "node-agent", tmp_path) == "right"


@pytest.mark.skipif(not version("torch").startswith(SEEN_ON), reason=f"the defects were seen on torch {SEEN_ON}x")
@pytest.mark.parametrize("name", QUICK_UNDER_TORCHRUN)
async def test_torchrun_has_this_defect(name: str, tmp_path: Path) -> None:
    assert await verdict(name, "torchrun", tmp_path) == "defect shown"


def test_the_page_names_the_programs_that_run_here() -> None:
    page = (Path(ROOT) / "docs" / "explanation" / "torchrun-defects.md").read_text()
    table, _, notes = page.partition("\n- The test suite runs every line")
    assert {name for name in NAMES if f"`--only {name}`" in table} == {*NAMES}
    assert {name for name in NAMES if f"`{name}`" in notes} == {*QUICK_UNDER_TORCHRUN, *TAKES_MINUTES}


async def verdict(name: str, launcher: str, folder: Path) -> str:
    """Run one scenario under one launcher."""
    program = await Program.start(
        *(sys.executable, "-m", "tests.parity", "--only", name, "--launcher", launcher),
        *("--repeat", "1", "--json", str(folder / "found.json")),
        cwd=ROOT,
        env=warm_torch(folder) if name in STEP_TOGETHER else {},
    )
    try:
        await program.exit_code(LONG_S)
    finally:
        if program.process.returncode is None:
            program.signal(signal.SIGTERM)
            await program.exit_code()
    print("\n".join(program.err))
    (defect,) = json.loads((folder / "found.json").read_text())["defects"]
    (finding,) = defect["findings"]
    return str(finding["verdict"])
