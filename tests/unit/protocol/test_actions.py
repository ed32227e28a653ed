"""The table of actions, and what follows from it: paths, fields of the page's dialog, and flags of `rdzvctl`."""

from pathlib import Path

import pytest
from rdzv_protocol.actions import ACTIONS, Action

import rdzv_server
from rdzvctl import cli

DIALOG = Path(rdzv_server.__file__).parent / "web" / "templates" / "dialog.html"


def test_names_and_messages_are_used_once() -> None:
    for each in ("name", "request", "label", "path"):
        assert len({getattr(action, each) for action in ACTIONS}) == len(ACTIONS)


def test_an_action_on_a_run_and_one_on_a_node_have_paths_of_their_own() -> None:
    assert {action.path for action in ACTIONS if action.of_node} == {
        "/v1/nodes/drain", "/v1/nodes/cordon", "/v1/nodes/uncordon",
    }  # fmt: skip
    assert all(action.path == f"/v1/runs/{action.name}" for action in ACTIONS if not action.of_node)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_page_and_rdzvctl_can_fill_in_every_field(action: Action) -> None:
    flags = {*cli.TIMES_OF_ACTIONS, "min_nodes", "max_nodes"}
    assert set(action.fields) <= flags
    assert all(f'data-ask="{field}"' in DIALOG.read_text() for field in ("reason", *action.fields))
