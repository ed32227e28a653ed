"""Conditions of nodes: the name and class by which schedulers know what a check has found.

A node's check ends its finding with both, such as "2.0 GiB free in /data (DiskFull, temporary)". The classes are those
of Kubernetes' node-problem-detector: a permanent condition stays until somebody repairs or restarts the node.
"""

import re

_CONDITION = r"\((?P<name>(?:[A-Z][a-z]+){2,5}), (?P<kind>permanent|temporary)\)"


def condition(reason: str) -> tuple[str, str]:
    """Return the name and the class of the first condition in a reason, empty if it has none."""
    found = re.search(_CONDITION, reason)
    return (found["name"], found["kind"]) if found else ("", "")
