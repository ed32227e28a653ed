"""Answers of servers: JSON maps that have a value also for fields that an older server does not send."""

import json
from typing import Any

from rdzvctl.errors import TooOld

UNTOLD: dict[str, Any] = {
    # of a server
    "cordons": (), "version": "of an unknown version",
    # of a run
    "broken_links": (), "finishing": None, "free_seats": 0, "legal_sizes": (), "next_size": None, "node_unit": 1,
    "time_s": {}, "unheard_s": None,
    # of a hang
    "withheld": "",
    # of a node
    "cordon": None, "drain_left_s": None, "excluded": False, "log_dir": "", "slow": "",
    # of a failure
    "error": "", "hint": "", "singled_out": True, "stderr_tail": (), "traceback": (),
    # of an event, which also leaves out what does not apply
    "at": None, "by": "",
}  # fmt: skip
"""Values of fields that an older server does not send: what they would be without the feature."""
SAME_AS = {"largest_size": "max_nodes"}
"""Newer fields, each with the older one whose value stands in where a server sends only that."""


class Fields(dict[str, Any]):
    """JSON map in a server's answer. A field that is missing has its value from before the field was introduced.

    Raises `TooOld` for a missing field that has no such value.
    """

    def __missing__(self, name: str) -> Any:
        if name in SAME_AS:
            return self[SAME_AS[name]]
        if name not in UNTOLD:
            raise TooOld(name)
        return UNTOLD[name]


def decoded(text: bytes | str) -> Any:
    """The JSON value of the text, each map in it as `Fields`. Raises `ValueError` if it is no JSON."""
    return json.loads(text, object_hook=Fields)
