"""`--rdzv-conf`: torchrun's settings of a rendezvous, as ours."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from node_agent.cli.values import Read, seconds, switch, whole
from node_agent.config import UsageError

KEYS: Mapping[str, Read] = {
    "join_timeout": seconds(),
    "last_call_timeout": seconds(),
    "close_timeout": seconds(),
    "timeout": seconds(),
    "read_timeout": seconds(),
    "keep_alive_interval": seconds(),
    "keep_alive_max_attempt": whole(1, 10**6),
    "is_host": switch,
}
NOT_OF_C10D = "timeout"
"""What torchrun's c10d leaves alone."""
SHORTEST_LEASE_S, LONGEST_LEASE_S = 0.1, 86_400
INTERVAL_S, ATTEMPTS = 5.0, 3
"""torchrun's defaults."""


class RdzvConf(NamedTuple):
    """What it asks for; None where it says nothing. Durations are seconds."""

    join_timeout_s: float | None = None
    last_call_timeout_s: float | None = None
    lease_s: float | None = None
    """The keep-alives' interval times their number."""
    connect_timeout_s: float | None = None
    """`read_timeout`: how long the server may take to answer."""
    farewell_timeout_s: float | None = None
    """`close_timeout`: how long the end may take to be told."""
    is_host: bool | None = None
    """Whether this node hosts the server."""
    ignored: tuple[str, ...] = ()
    """Keys that mean nothing here."""


def parse(text: str, source: str, backend: str) -> RdzvConf:
    """Read `k=v,k=v`; quotes around the whole of it are tolerated. Raises `UsageError`, which names the key.

    What torchrun does not know it leaves alone, and so it is left alone here, but not without a word.
    """
    given = _pairs(text, source)
    known = {key for key in KEYS if not (backend == "c10d" and key == NOT_OF_C10D)}
    values = {key: _value(KEYS[key], key, given[key], source) for key in given if key in known}
    return RdzvConf(
        join_timeout_s=values.get("join_timeout", values.get("timeout")),
        last_call_timeout_s=values.get("last_call_timeout"),
        lease_s=_lease(values, source),
        connect_timeout_s=values.get("read_timeout"),
        farewell_timeout_s=values.get("close_timeout"),
        is_host=values.get("is_host"),
        ignored=tuple(key for key in given if key not in known),
    )


def _pairs(text: str, source: str) -> dict[str, str]:
    text = text.strip().strip("'\"").strip()
    pairs = {}
    for pair in text.split(",") if text else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise UsageError(f"{source}: settings as KEY=VALUE,KEY=VALUE, not {pair!r}")
        pairs[key] = value
    return pairs


def _value(read: Read, key: str, text: str, source: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{source}: {key}: {error}") from None


def _lease(values: Mapping[str, Any], source: str) -> float | None:
    if not values.keys() & {"keep_alive_interval", "keep_alive_max_attempt"}:
        return None
    interval_s = values.get("keep_alive_interval", INTERVAL_S)
    lease_s = float(interval_s * values.get("keep_alive_max_attempt", ATTEMPTS))
    if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        raise UsageError(
            f"{source}: keep_alive_interval times keep_alive_max_attempt is a number of seconds from "
            f"{SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g}, not {lease_s:g}"
        )
    return lease_s
