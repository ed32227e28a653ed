"""Questions, checks and properties change nothing that they are given."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ASKS = re.compile(r"_?(is|are|has|have|may|can|should|knows|needs|counts|holds|check)(_|$)")
CHANGES = re.compile("add|append|clear|discard|extend|insert|move_to_end|pop|popitem|popleft|remove|setdefault|update")
ROOT = Path(__file__).parents[3]
EXCEPT = {"root_log_dir": "torch's own property, which makes the folder", "client": "made at its first use"}
"""Questions that change something, and why."""


def questions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions whose names ask or check something, and the properties."""
    for function in filter(lambda node: isinstance(node, ast.FunctionDef), ast.walk(tree)):
        if ASKS.match(function.name) or "property" in map(ast.unparse, function.decorator_list):
            yield function


def changes(function: ast.FunctionDef) -> Iterator[str]:
    """Yield everything in the function that changes one of its arguments."""
    given = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        is_stored = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        is_changed = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and CHANGES.fullmatch(node.func.attr)
        )
        if (is_stored or is_changed) and _root(node) in given:
            yield ast.unparse(node)


def _root(node: ast.AST) -> str:
    """Return the name with which an expression such as `run.agents[each].state` begins."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "func", None) or getattr(node, "value", None)
        if inner is None:
            return ""
        node = inner
    return node.id


@pytest.mark.parametrize("package", ["rdzv_server", "node_agent", "rdzvctl", "protocol/rdzv_protocol"])
def test_a_question_does_not_change_its_arguments(package: str) -> None:
    files = [*(ROOT / package).rglob("*.py")]
    assert len(files) > 10
    found = {
        (file.name, function.name): [*changes(function)]
        for file in files
        for function in questions(ast.parse(file.read_text()))
        if function.name not in EXCEPT
    }
    assert {where: what for where, what in found.items() if what} == {}


def test_a_question_that_changes_its_arguments_is_found() -> None:
    tree = ast.parse("""
class Run:
    @property
    def late(self): self.ends.pop(); return self.at
    def is_over(self, other): del other.seats[0]
    def may_end(self): kept = dict(self.kept); kept.pop(1)
def check(run, event): run.agents[1].state = 2
def has_agent(run): return len([each for each in run.agents])
""")
    found = {function.name: [*changes(function)] for function in questions(tree)}
    assert found == {
        "late": ["self.ends.pop()"], "is_over": ["other.seats[0]"], "may_end": [], "check": ["run.agents[1].state"],
        "has_agent": [],
    }  # fmt: skip
