"""docs/reference/page.md explains each state of a node that the page shows."""

import re
from pathlib import Path
from typing import get_args

from rdzv_server.core.views.run_view import NodeState

PAGE = (Path(__file__).parents[3] / "docs/reference/page.md").read_text()


def test_the_page_explains_each_state_of_a_node() -> None:
    (table,) = re.findall(r"\| state \| the node \|\n((?:\|.*\n)+)", PAGE)
    assert set(get_args(NodeState)) <= set(re.findall(r"`(\w+)`", table))
