"""The examples of docs/reference/python-api.md run unchanged, and print the output shown below them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:```output\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE.read_text())


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_an_example_does_what_the_page_says(code: str, output: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 6 and sum(bool(output) for _, output in EXAMPLES) >= 6
