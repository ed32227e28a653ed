"""Sentences of the product that tests quote: five words or more of `messages.txt` in one string of a test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.golden.makers import FILE

TESTS = FILE.parents[1]
PARSED_BY_SCRIPTS = TESTS / "golden" / "parsed_by_scripts.py"
"""Sentences that a user's script may parse, such as torchrun's error box. Tests take them from this file."""
WORDS = 5


def quotes(folder: Path = TESTS) -> Iterator[tuple[Path, int, str]]:
    """Return the file, the line and the text of each string in tests that quotes a message."""
    known = set(_runs(FILE.read_text()))
    for file in sorted(folder.rglob("*.py") if folder.is_dir() else [folder]):
        if file.parent != FILE.parent or file.name.startswith("test_"):
            yield from ((file, line, text) for line, text in _strings(file) if not known.isdisjoint(_runs(text)))


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """Return the strings of a file, with their lines; docstrings are no quotes."""
    tree = ast.parse(file.read_text())
    statements = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in statements:
            yield each.lineno, each.value


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Return each five words that follow each other; a field's value ends a run of words."""
    for part in re.split(r"\d+|<[^>]*>|\n", text.lower()):
        words = re.findall(r"[a-z][a-z'-]*", part)
        yield from zip(*(words[at:] for at in range(WORDS)), strict=False)
