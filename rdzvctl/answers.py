"""Answers of servers: JSON maps that also have values for fields that an older server does not send."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_protocol.states import ENDS

from rdzvctl.errors import TooOld

DEFAULTS: dict[str, Any] = {
    # of a server
    "agents_endpoint": None, "cordons": (), "peers": (), "version": "of an unknown version",
    # of a run
    "broken_links": (), "ending": None, "failed_rounds": 0, "finishing": None, "free_seats": 0, "health": None,
    "legal_sizes": (), "is_stopped": False, "last_failure": None, "next_size": None, "node_unit": 1, "own_budgets": {},
    "restart_costs": None, "time_s": {}, "unheard_s": None,
    # of an action
    "changed": True,
    # of what a round waits for
    "more_gone": 0,
    # of a restart
    "cost": None, "took_s": None,
    # of the restarts together
    "kept_steps": 0, "repeated_steps": 0,
    # of a hang
    "withheld": "",
    # of a node
    "cordon": None, "drain_left_s": None, "excluded": False, "log_dir": "", "slow": "",
    # of a node that is gone
    "had_ranks": (),
    # of a failure
    "both_streams": False, "error": "", "hint": "", "singled_out": True, "stderr_tail": (), "traceback": (),
    # of an event, which also leaves out what does not apply
    "at": None, "by": "",
}  # fmt: skip
"""Values of fields that an older server does not send: the values without the feature."""
OLDER_NAMES = {"largest_size": "max_nodes"}
"""Newer fields, each with the older field whose value is used if a server sends only that one."""


class Fields(dict[str, Any]):
    """JSON map in a server's answer. A missing field has its value from before the field was introduced.

    A newer field that only follows from older ones is derived from them. Raises `TooOld` for a missing field without
    such a value.
    """

    def __missing__(self, name: str) -> Any:
        if name in OLDER_NAMES:
            return self[OLDER_NAMES[name]]
        if name in DERIVED:
            return DERIVED[name](self)
        if name not in DEFAULTS:
            raise TooOld(name)
        return DEFAULTS[name]


# What readers of older servers must derive themselves.


def lost_in_s(run: Fields, node: Fields) -> float | None:
    """Return the most seconds until a disconnected node is lost; None if it is connected, or if the run waits."""
    left_s: float | None = None
    if "lost_in_s" in node:
        left_s = node["lost_in_s"]
    elif is_absent(node) and not run["waits_for_agents"]:
        left_s = min(node["lease_left_s"], run["settings"]["disconnect_grace_s"])
    return left_s


def departures_of_missing(run: Fields) -> list[Fields]:
    """Return the departures of participants of the last round whose nodes a forming round lacks."""
    missing = run["missing"]
    if not missing or "departures" in missing:
        return missing["departures"] if missing else []
    there = {node["node_id"] for node in run["nodes"]}
    return [
        gone
        for gone in run["departures"]
        if gone["node_id"] in missing["gone"] and gone["node_id"] not in there and gone["round"] == run["round"] - 1
    ]


def is_absent(node: Fields) -> bool:
    """Return whether the node's agent is silent in a run that has not ended."""
    return not node["connected"] and node["lease_left_s"] is not None


def quiet_word(node: Fields) -> str:
    """Return why the server does not hear the node's agent; empty if it does."""
    return str(node.get("quiet", "disconnected" if is_absent(node) else ""))


def _waits_for_agents(run: Fields) -> bool:
    led = [node for node in run["nodes"] if node["lease_left_s"] is not None]
    is_any_there = not led or not all(map(is_absent, led)) or run["phase"] not in ("running", "finishing")
    return run["unheard_s"] is not None or not is_any_there


def _present(run: Fields) -> int:
    """Return how many nodes of the running round are not drained, or how many wait for the forming round."""
    if run["phase"] in ("forming", "restarting"):
        return sum(node["state"] == "waiting" for node in run["nodes"])
    return sum(node["group_rank"] is not None and node["drain_left_s"] is None for node in run["nodes"])


def _next_of(health: Fields) -> Mapping[str, Any]:
    """Return the steps by state. An older server does not say which steps are about the lack of nodes."""
    return {health["state"]: () if health["state"] == "lacks_nodes" else health["next"]}


DERIVED: Mapping[str, Callable[[Fields], Any]] = {
    "can_be_forgotten": lambda run: run["phase"] in (*ENDS, "unhealthy"),
    "next_of": _next_of,
    "present": _present,
    "remarks": lambda node: {"slow": node["slow"]} if node["slow"] else {},
    "restarts_used": lambda run: run["max_restarts"] - run["restarts_left"],
    "standbys": lambda run: sum(node["state"] == "standby" for node in run["nodes"]),
    "waits_for_agents": _waits_for_agents,
    "workers_round": lambda run: run["round"] - (run["phase"] in ("forming", "restarting")),
}
"""Newer fields of a run or node, each with the function that derives it from older ones."""


def decoded(text: bytes | str) -> Any:
    """Return the JSON value of the text, with each map in it as `Fields`. Raises `ValueError` if it is not JSON."""
    return json.loads(text, object_hook=Fields)
