"""Answers of servers: JSON maps that also have values for fields that an older server does not send."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rdzvctl.errors import TooOld

DEFAULTS: dict[str, Any] = {
    # of a server
    "agents_endpoint": None, "version": "of an unknown version",
    # of a run
    "ending": None, "own_budgets": {},
    # of a restart
    "cost": None,
    # of the nodes that a forming round waits for
    "refused": {},
    # of a node that is gone
    "had_ranks": (), "log_dir": "",
    # of an event, which leaves out what does not apply
    "at": None, "by": "",
}  # fmt: skip
"""Values of fields that an older server does not send: the values without the feature."""


class Fields(dict[str, Any]):
    """JSON map in a server's answer. A missing field has its value from before the field was introduced.

    A newer field that only follows from older ones is derived from them. Raises `TooOld` for a missing field without
    such a value.
    """

    def __missing__(self, name: str) -> Any:
        if name in DERIVED:
            return DERIVED[name](self)
        if name not in DEFAULTS:
            raise TooOld(name)
        return DEFAULTS[name]


def is_absent(node: Fields) -> bool:
    """Return whether the node's agent is silent in a run that has not ended."""
    return not node["connected"] and node["lease_left_s"] is not None


def _next_of(health: Fields) -> Mapping[str, Any]:
    """Return the steps by state. An older server does not say which steps are about the lack of nodes."""
    return {health["state"]: () if health["state"] == "lacks_nodes" else health["next"]}


DERIVED: Mapping[str, Callable[[Fields], Any]] = {
    "next_of": _next_of,
    "quiet": lambda node: "disconnected" if is_absent(node) else "",
    "restarts_used": lambda run: run["max_restarts"] - run["restarts_left"],
}
"""Newer fields of a run or node, each with the function that derives it from older ones."""


def decoded(text: bytes | str) -> Any:
    """Return the JSON value of the text, with each map in it as `Fields`. Raises `ValueError` if it is not JSON."""
    return json.loads(text, object_hook=Fields)
