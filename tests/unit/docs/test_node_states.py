"""docs/reference/page.md explains each state of a node that the page shows."""

import inspect
import re
from pathlib import Path
from typing import get_args

from rdzv_server.core.policies import POLICIES
from rdzv_server.core.views.run_view import NodeState
from rdzv_server.core.views.watch_view import Quiet

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/page.md").read_text()
SCRIPT = (ROOT / "rdzv_server/web/static/nodes.js").read_text()


def remarks() -> set[str]:
    """Return the words of the policies' remarks about a node."""
    return {word for policy in POLICIES for word in re.findall(r'\{"(\w+)":', inspect.getsource(policy.node_remarks))}


def of_script() -> set[str]:
    """Return the states that only the page's script makes."""
    (missing,) = re.findall(r'state: "(\w+)"', SCRIPT)
    (kept_out,) = re.findall(r'excluded \? "(\w+)" : "(\w+)"', SCRIPT)
    return {missing, *kept_out}


def test_the_page_explains_each_state_of_a_node() -> None:
    (table,) = re.findall(r"\| state \| the node \|\n\|-+\|-+\|\n((?:\|.*\n)+)", PAGE)
    explained = {state for row in table.splitlines() for state in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert explained == {*get_args(NodeState), *get_args(Quiet), *remarks(), *of_script()} - {""}
