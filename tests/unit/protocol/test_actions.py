"""The table of actions, and what follows from it: paths, fields of the page's dialog, and flags of `rdzvctl`."""

from argparse import ArgumentParser
from pathlib import Path

import pytest
from rdzv_protocol.actions import ACTIONS, Action

import rdzv_server
from rdzv_server.http.page import Button, _environment
from rdzvctl import cli

SEEN = {"round": "round: shown.run.round"}
"""Fields that page and rdzvctl fill in with what they show, each with the page's code for that."""
WEB = Path(rdzv_server.__file__).parent / "web"


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
    parser = ArgumentParser()
    cli._action(action, parser)
    flags = [word for each in action.inputs if each.asked.flag for word in (each.asked.flag, "2")]
    sizes = ["1:2"] if any(not each.asked.flag for each in action.inputs) else []
    given = vars(parser.parse_args(["x", *sizes, *flags]))
    asked = [field for field in action.fields if field not in SEEN]
    assert [field for field in asked if not given[field]] == []
    dialog = _environment().get_template("dialog.html").render(buttons=[Button(each) for each in ACTIONS])
    script = (WEB / "static/actions.js").read_text()
    assert all(f'data-ask="{field}"' in dialog for field in ("reason", *asked))
    assert all(SEEN[field] in script for field in action.fields if field in SEEN)
