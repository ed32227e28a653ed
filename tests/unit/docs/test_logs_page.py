"""docs/how-to/logs.md names each kind of line that an agent logs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from node_agent.kernel.core.effects import WAITING

ROOT = Path(__file__).parents[3]
LOGS = {"log", "_log", "show", "Log", "_log_change", "_log_outage"}
"""Functions that take a kind after the text."""


def kinds() -> Iterator[str]:
    """Yield the kinds that the agent's code gives to those functions, also as defaults and by tables of kinds."""
    for path in (ROOT / "node_agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOGS:
                yield from map(ast.unparse, [*node.args[1:], *(each.value for each in node.keywords)])
            elif isinstance(node, ast.FunctionDef) and node.name in LOGS:
                yield from map(ast.unparse, node.args.defaults)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_END":
                yield from re.findall("'run_[a-z]+'", ast.unparse(node.value))


def test_the_page_names_each_kind_of_an_agents_lines() -> None:
    (named,) = re.findall(
        r"An agent's lines have these kinds: (.+?)\.\n", (ROOT / "docs/how-to/logs.md").read_text(), re.DOTALL
    )
    given = {kind.strip("'") for kind in kinds() if re.fullmatch("'[a-z]+(_[a-z]+)*'", kind)}
    assert set(re.findall("`([a-z_]+)`", named)) == {*given, WAITING}
