"""Each Python example of the README and of docs/ compiles."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[3]
SIGNATURES = ROOT / "docs/reference/python-names.md"
"""Page whose blocks are signatures, not examples."""
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(dedent(block), id=f"{page.relative_to(ROOT)}-{number}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page != SIGNATURES
    for number, (_, block) in enumerate(BLOCK.findall(page.read_text()), 1)
]


def test_pages_have_python_examples() -> None:
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("block", BLOCKS)
def test_a_python_example_compiles(block: str) -> None:
    compile(block, "example", "exec")
