"""Runs as a server reports them, and messages about them that several tests expect."""

from typing import cast

from msgspec import json

from rdzv_server.core.views import status_view
from rdzvctl import words as ctl
from rdzvctl.answers import Fields, decoded
from rdzvctl.views import state
from rdzvctl.views.state import Servers
from tests.support.scenario import Scenario

SERVER = Servers("a:29400,b:29400")
START = ctl.steps.agent("run", SERVER.endpoint)
UNTOLD = ctl.steps.untold("run")
"""Next step for a run whose workers report no progress."""
CORDON = ctl.servers.cordon("admin", "", "its fan", excluded=False)


def uncordon(node_id: str) -> str:
    return ctl.steps.uncordon(node_id, CORDON)


def told(run: Scenario) -> Fields:
    """Return the run as a server reports it."""
    return cast(Fields, decoded(json.encode(status_view.view(run.run, run.now))))


def cordons_of(nodes: str) -> dict[str, Fields]:
    """Return cordons of the nodes, as a server reports them."""
    cordon = {"by": "admin", "reason": "its fan", "until": None, "drained": True, "excluded": False}
    return state.cordons([Fields(cordons=[Fields(cordon, node_id=node_id) for node_id in nodes])])


LOOP = "fail a; join a b; fail a; join a b; fail a; join a b"
