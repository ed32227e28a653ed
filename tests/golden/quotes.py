"""Sentences of the product that tests quote.

A string of a test quotes if it has five or more words of `messages.txt`. If the test expects it in an output, three
words are enough, provided they are a whole clause of a message.
"""

import ast
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.golden.makers import FILE

TESTS = FILE.parents[1]
PAGE_TESTS = TESTS / "browser"
"""Tests of the page, whose own texts are in its scripts and not in `messages.txt`."""
WORDS = 5
_STRING = re.compile(r"""["'][^"'\n]*(?:[a-z][a-z'-]*[^a-z"'\n]+){4}""", re.IGNORECASE)
"""Beginning of a string with five words. A file without one needs no parsing."""
_WORD = re.compile(r"[a-z][a-z'-]*")
_FIELD = re.compile(r"\d+|<[^>]*>|\n")
CLAUSE_WORDS = 3
_CLAUSE_END = re.compile(r"[.,:;] |[.,:;]?(?:\n|$)")
_OF_THE_SYSTEM = {os.strerror(code).lower() for code in errno.errorcode}
_AWAITS = {"line", "until"}
"""Methods that wait for a text in an output."""


def quotes(folder: Path = TESTS) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, the line and the text of each string in tests that quotes a message.

    Sentences that a user's script may parse, such as torchrun's error box, are in `parsed_by_scripts.py`. Tests take
    them from there.
    """
    known, clauses = set(_runs(FILE.read_text())), set(_clauses(FILE.read_text()))
    for file in sorted(folder.rglob("*.py") if folder.is_dir() else [folder]):
        if file.parent == FILE.parent:
            continue
        has_strings, is_of_page = _STRING.search(source := file.read_text()), file.parent == PAGE_TESTS
        if is_of_page and not has_strings:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        if has_strings:
            yield from ((file, line, text) for line, text in _strings(nodes) if not known.isdisjoint(_runs(text)))
        if not is_of_page:
            yield from ((file, line, text) for line, text in _expected(nodes) if not clauses.isdisjoint(_clauses(text)))


def _strings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file that may have five words, with their lines. Docstrings do not count.

    In `nodes` a parent is before its children.
    """
    docstrings = set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") >= WORDS - 1
            and id(node) not in docstrings
        ):
            yield node.lineno, node.value


def _expected(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the strings that a file asserts, matches or waits for, with their lines."""
    for node in nodes:
        within: list[ast.AST] = []
        if isinstance(node, ast.Assert):
            within = [node.test]
        elif isinstance(node, ast.Call):
            within = [each.value for each in node.keywords if each.arg == "match"]
            within += node.args if isinstance(node.func, ast.Attribute) and node.func.attr in _AWAITS else []
        for each in (each for part in within for each in ast.walk(part)):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.lineno, each.value


def _clauses(text: str) -> Iterator[str]:
    """Yield the clauses with three or more words and no field, except errors of the operating system."""
    for clause in map(str.strip, _CLAUSE_END.split(text.lower())):
        if len(clause.split()) >= CLAUSE_WORDS and not _FIELD.search(clause) and clause not in _OF_THE_SYSTEM:
            yield clause


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each five consecutive words. A field's value ends a run of words."""
    for part in _FIELD.split(text.lower()):
        words = _WORD.findall(part)
        yield from zip(*(words[at:] for at in range(WORDS)), strict=False)
