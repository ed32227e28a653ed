"""Messages about servers that answer, and about the nodes that they keep out."""

from collections.abc import Sequence

from rdzv_protocol.text import age


def server(version: str, address: str, state: str, role: str, uptime_s: float) -> str:
    """`state`: whether it is ready. `role`: what it leads; empty if the server does not say."""
    return f"rdzv-server {version} at {address}: {state}{role and f'; {role}'}; up {age(uptime_s)}"


SOME_ENDPOINT = "HOST:PORT"
"""Placeholder for the address at which other machines reach the server, if it is unknown."""
READY = "ready"


ANSWER_AGAIN = "the servers answer again"


def not_ready(why: str) -> str:
    return f"not ready: {why}"


LEADS = "leads"
NONE_LEADS = "no server leads"


def follows(leader: str) -> str:
    return f"follows {leader}"


def leads_shards(shards: Sequence[int]) -> str:
    return f"leads shards {', '.join(map(str, shards))}" if shards else "leads no shard"


def cannot_decide(address: str, why: str) -> str:
    return f"rdzv-server at {address} cannot decide anything now: {why}."


def cordon(by: str, until: str, reason: str, *, excluded: bool, since: str = "") -> str:
    """`until`: when it ends; empty if it does not. `excluded`: whether it is the server's own. `since`: when it began;
    empty if that is not known.
    """
    who = "excluded" if excluded else f"cordoned by {by}"
    return f"{who}{since and f' since {since}'}{until and f' until {until}'}{reason and f': {reason}'}"


def kept_out(node_id: str, cordon: str) -> str:
    return f"node {node_id}: {cordon}"
