"""Scripts of pages and examples replace what they save in one step: a worker may be killed while it writes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
SAVES = re.compile(r"^.*(?:torch\.save\(|\.write_text\().*$", re.MULTILINE)
REPLACES = re.compile(r"os\.(?:replace|rename)\((.+?), ")
SURVIVES, GIVEN = "saved_by_survivors", ", path)"
"""Function that calls a script's save with the path of a new file and then renames that file, and how such a save ends.
"""


def unsafe(text: str) -> list[str]:
    """Return the lines that save a file under its final name."""
    new = REPLACES.findall(text)
    saves = [line for line in SAVES.findall(text) if not (SURVIVES in text and line.endswith(GIVEN))]
    return [line.strip() for line in saves if not any(name in line for name in new)]


@pytest.mark.parametrize(
    "script", [each for each in SCRIPTS if SAVES.search(each.read_text())], ids=lambda each: each.name
)
def test_a_script_replaces_what_it_saves_in_one_step(script: Path) -> None:
    assert unsafe(script.read_text()) == []


def test_a_file_that_is_written_under_its_final_name_is_found() -> None:
    assert unsafe('saved = Path("step")\nsaved.write_text(str(step))\n') == ["saved.write_text(str(step))"]
    assert unsafe("torch.save(state, path)\n") == ["torch.save(state, path)"]
