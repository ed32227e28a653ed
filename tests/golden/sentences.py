"""Sentences that a package contains outside its `words` modules, where no one reviews them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

WORDS = 5
_RUN = re.compile(rf"(?:(?<![\w$-])[a-z][a-z'-]*[,;:]? +){{{WORDS - 1}}}[a-z]", re.IGNORECASE)
"""Words in a row, which are no code of a shell."""
_FOR_DEVELOPERS = {"add_argument", "AssertionError"}
"""Functions whose arguments are never messages: they declare a flag, or report an error of ours."""


def sentences(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, the line and the text of each string with five or more words in a row. A field is one word.

    Strings in `words` modules do not count. Neither do strings that are no messages by their place: docstrings,
    assertions, and declarations. A declaration is a call in the body of a module or class. It describes a flag, a
    field, a metric or a path of the API. `help.txt` and the pages of the reference show these.
    """
    for file in sorted(folder.rglob("*.py")):
        if "words" not in file.relative_to(folder).with_suffix("").parts:
            for node in _possible_messages(ast.parse(file.read_text())):
                if _RUN.search(text := _text(node)):
                    yield file, node.lineno, text


def _possible_messages(node: ast.AST, *, in_function: bool = False, in_declaration: bool = False) -> Iterator[ast.expr]:
    """Yield the strings below `node` that a person may be told."""
    if isinstance(node, ast.JoinedStr | ast.Constant):
        if not in_declaration:
            yield node
        return
    if _is_docstring(node) or (isinstance(node, ast.Call) and _name(node.func) in _FOR_DEVELOPERS):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        in_function, in_declaration = True, False
    elif isinstance(node, ast.Call) and not in_function:
        in_declaration = True
    for child in [node.test] if isinstance(node, ast.Assert) else ast.iter_child_nodes(node):
        yield from _possible_messages(child, in_function=in_function, in_declaration=in_declaration)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _text(node: ast.AST) -> str:
    """Return the text of a string, with a word in place of each field; empty for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "field" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
