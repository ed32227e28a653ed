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
FILLED_BY = dict.fromkeys(("min_nodes", "max_nodes"), "size")
"""Fields that an argument of another name fills in."""
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
    given = {argument.dest for argument in parser._actions}
    asked = [field for field in action.fields if field not in SEEN]
    assert all(field in given or FILLED_BY.get(field) in given for field in asked)
    dialog = _environment().get_template("dialog.html").render(buttons=[Button(each) for each in ACTIONS])
    script = (WEB / "static/actions.js").read_text()
    assert all(f'data-ask="{field}"' in dialog for field in ("reason", *asked))
    assert all(SEEN[field] in script for field in action.fields if field in SEEN)
