"""How much one server takes from its network before it says no."""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

MOST_PEERS = 100_000
"""Peers that one `Buckets` remembers; the longest known are forgotten first."""

ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second in the long run, and so many at once."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Durations are seconds. Rates are for one peer: an IPv4 address, or an IPv6 network of 64 bits."""

    connections: int = 4_096
    """Of these, one peer may have half without having been let in by a request."""
    handshake_s: float = 5.0
    """From a connection's begin to its first byte, and from there to the end of TLS's handshake."""
    request_s: float = 10.0
    """From the first byte of a request, or the begin of the connection, to the last byte of its body."""
    unread_s: float = 10.0
    """How long a peer may leave an answer unread."""
    idle_s: float = 75.0
    """From an answer to the next request."""
    requests: Rate = Rate(5_000, 50_000)
    """10,000 agents behind one address poll 2,000 times a second; a round's end and the next take three requests."""
    refusals: Rate = Rate(10, 100)
    """Requests without the right token. Beyond it, the peer's requests are refused whatever token they bear, unless
    their connection has been let in with the same one: else the answer would tell which guess was right."""


class Buckets:
    """One bucket for each peer, by the time at which it will be full again. The clock is the caller's."""

    def __init__(self, rate: Rate) -> None:
        self._each_s = 1 / rate.per_s
        self._all_s = rate.burst / rate.per_s
        self._full_at: dict[str, float] = {}

    def has_any(self, peer: str, now: float) -> bool:
        """Whether the peer has one left."""
        return self._full_at.get(peer, now) - now <= self._all_s - self._each_s + ROUNDING_S

    def take(self, peer: str, now: float) -> None:
        """Take one, or what is left of it."""
        full_at = max(now, self._full_at.get(peer, now)) + self._each_s
        self._full_at[peer] = min(full_at, now + self._all_s)
        if len(self._full_at) > MOST_PEERS:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Those that are full need no memory; if all the others are too many, half of them have to go."""
        busy = [(peer, at) for peer, at in self._full_at.items() if at > now]
        self._full_at = dict(busy if len(busy) < MOST_PEERS else busy[MOST_PEERS // 2 :])


@lru_cache(maxsize=16_384)
def peer_of(address: str) -> str:
    """Whom an address belongs to: who has an IPv6 network has all of its addresses."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
