"""Pages that list operators' actions name each action of the table, and no other."""

import re
from pathlib import Path

from rdzv_protocol.actions import ACTIONS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_the_page_of_actions_has_a_row_for_each_action() -> None:
    rows = re.findall(r"^\| `(/v1/\S+)` \|", (REFERENCE / "actions.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(action.path for action in ACTIONS)


def test_the_page_about_the_web_page_names_each_button() -> None:
    text = " ".join((REFERENCE / "page.md").read_text().split())
    (of_run, of_node), *_ = re.findall(r"For a run you can (.+?); for the chosen node you can (.+?)\. ", text)
    assert _names(of_run) == sorted(action.name for action in ACTIONS if not action.of_node)
    assert _names(of_node) == sorted(action.name for action in ACTIONS if action.of_node)


def _names(sentence: str) -> list[str]:
    return sorted(set(re.findall(r"\w+", sentence)) - {"and"})
