"""What servers answer, as JSON maps that also know what an older server does not tell of."""

import json
from typing import Any

from rdzvctl.errors import TooOld

UNTOLD: dict[str, Any] = {
    # of a server
    "cordons": (), "version": "of an unknown version",
    # of a run
    "free_seats": 0, "legal_sizes": (), "next_size": None, "node_unit": 1, "time_s": {},
    # of a node
    "cordon": None, "drain_left_s": None, "excluded": False, "log_dir": "", "slow": "",
    # of a failure
    "error": "", "hint": "", "stderr_tail": (), "traceback": (),
    # of an event, which also leaves out what does not apply
    "at": None, "by": "",
}  # fmt: skip
"""Values of fields that an older server does not have yet: as if there were no such thing."""
SAME_AS = {"largest_size": "max_nodes"}
"""Fields that say more than an older one does, which stands in their place."""


class Fields(dict[str, Any]):
    """A JSON map of a server's. What it does not hold is what it was before there was the field.

    Raises `TooOld` for a field without which nothing can be said.
    """

    def __missing__(self, name: str) -> Any:
        if name in SAME_AS:
            return self[SAME_AS[name]]
        if name not in UNTOLD:
            raise TooOld(name)
        return UNTOLD[name]


def decoded(text: bytes | str) -> Any:
    """The JSON value, each map in it as `Fields`. Raises `ValueError`."""
    return json.loads(text, object_hook=Fields)
