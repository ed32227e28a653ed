"""The examples of the gallery, as text: their frameworks take long to import."""

import ast
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[3] / "examples" / "gallery"
JOINS = {"init_process_group", "init_distributed"}
"""Calls that fail without a launcher."""


@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_reads_its_flags_before_it_joins_so_help_needs_no_launcher(path):
    body = ast.parse(path.read_text()).body
    program = [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name == "main"]
    nodes = [node for each in program for node in ast.walk(each)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    parses = [node.lineno for node in calls if node.func.attr == "parse_args"]
    joins = [node.lineno for node in calls if node.func.attr in JOINS]
    assert parses and all(max(parses) < line for line in joins)
