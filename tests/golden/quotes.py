"""Sentences of the product that tests quote: five or more words of `messages.txt` in one string of a test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.golden.makers import FILE

TESTS = FILE.parents[1]
WORDS = 5
_STRING = re.compile(r"""["'][^"'\n]*(?:[a-z][a-z'-]*[^a-z"'\n]+){4}""", re.IGNORECASE)
"""Beginning of a string with five words. A file without one needs no parsing."""
_WORD = re.compile(r"[a-z][a-z'-]*")
_FIELD = re.compile(r"\d+|<[^>]*>|\n")


def quotes(folder: Path = TESTS) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, the line and the text of each string in tests that quotes a message.

    Sentences that a user's script may parse, such as torchrun's error box, are in `parsed_by_scripts.py`. Tests take
    them from there.
    """
    known = set(_runs(FILE.read_text()))
    for file in sorted(folder.rglob("*.py") if folder.is_dir() else [folder]):
        if file.parent != FILE.parent and _STRING.search(source := file.read_text()):
            yield from ((file, line, text) for line, text in _strings(source) if not known.isdisjoint(_runs(text)))


def _strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file that may have five words, with their lines. Docstrings do not count."""
    nodes, docstrings = [ast.parse(source)], set()
    for node in nodes:
        nodes.extend(ast.iter_child_nodes(node))  # type: ignore[arg-type]
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") >= WORDS - 1
            and id(node) not in docstrings
        ):
            yield node.lineno, node.value


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each five consecutive words. A field's value ends a run of words."""
    for part in _FIELD.split(text.lower()):
        words = _WORD.findall(part)
        yield from zip(*(words[at:] for at in range(WORDS)), strict=False)
