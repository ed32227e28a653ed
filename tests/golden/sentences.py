"""Sentences that a package contains outside its `words` modules, where no one reviews them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

WORDS = 5
_RUN = re.compile(rf"(?:(?<![\w$-])[a-z][a-z'-]*[,;:]? +){{{WORDS - 1}}}[a-z]", re.IGNORECASE)
"""Words in a row, which are no code of a shell."""


def sentences(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, the line and the text of each string with five or more words in a row. A field is one word.

    Docstrings do not count, nor strings in `words` modules.
    """
    for file in sorted(folder.rglob("*.py")):
        if "words" in file.relative_to(folder).with_suffix("").parts:
            continue
        tree = ast.parse(file.read_text())
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in ast.walk(node)} - {id(node)}
            if id(node) not in skipped and _RUN.search(text := _text(node)):
                yield file, node.lineno, text


def _text(node: ast.AST) -> str:
    """Return the text of a string, with a word in place of each field; empty for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "field" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
