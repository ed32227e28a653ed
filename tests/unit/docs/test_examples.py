"""The examples of the gallery, as text: their frameworks take long to import."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[3] / "examples" / "gallery"
JOINS = {"init_process_group", "init_distributed", "Accelerator", "Fabric", "Trainer", "TrainingArguments", "Manager"}
"""Calls that join the other workers of the launcher, or read its variables."""


@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_reads_its_flags_before_it_joins_so_help_needs_no_launcher(path):
    body = ast.parse(path.read_text()).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    program = [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = list(_called(program, functions))
    parses = [place for place, name in enumerate(names) if name == "parse_args"]
    joins = [place for place, name in enumerate(names) if name in JOINS]
    assert parses and joins and max(parses) < min(joins)


def _called(nodes: Iterable[ast.AST], functions: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    """Yield the names of all calls in their order, with those that the example's own functions make."""
    for node in nodes:
        yield from _called(ast.iter_child_nodes(node), functions)
        match node:
            case ast.Call(ast.Attribute(attr=name)):
                yield name
            case ast.Call(ast.Name(name)):
                yield name
                yield from _called(functions[name].body if name in functions else (), functions)
