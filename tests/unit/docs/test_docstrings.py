"""Docstrings begin with a noun or a verb, so that they can be understood without the code above them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("rdzv_server", "node_agent", "protocol", "rdzvctl", "benchmarks", "examples", "tests")
DANGLING = {
    "also", "and", "as", "at", "but", "by", "else", "for", "from", "here", "however", "in", "it", "its", "longer",
    "of", "on", "or", "since", "that", "their", "then", "there", "these", "they", "this", "those", "to", "what",
    "when", "where", "which", "whichever", "who", "whom", "whose", "with", "within", "without",
}  # fmt: skip
"""Words that point back at a name or a value, or begin the rest of a sentence about it."""


def docstrings(file: Path) -> list[ast.Constant]:
    """Return the docstrings of modules, classes and functions, and the strings below attributes and constants."""
    scopes = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    statements = [
        each for scope in ast.walk(ast.parse(file.read_text())) if isinstance(scope, scopes) for each in scope.body
    ]
    values = [each.value for each in statements if isinstance(each, ast.Expr)]
    return [each for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_dangling_word(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [(file, each, str(each.value).split()) for file in files for each in docstrings(file)]
    assert [
        f"{file.relative_to(ROOT)}:{each.lineno}: {' '.join(words[:8])}"
        for file, each, words in found
        if words and words[0].strip(",:;").lower() in DANGLING
    ] == []
