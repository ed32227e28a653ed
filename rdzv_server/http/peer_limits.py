"""Limits for each peer, checked before a request's body is read: how often it comes, and with which tokens."""

import logging
import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from rdzv_protocol import errors
from rdzv_protocol.text import printable

from rdzv_server.auth.authorization import Access, Action, Caller, Permit, action_of
from rdzv_server.config import Limits
from rdzv_server.token_buckets import Rate, TokenBuckets
from rdzv_server.words import http as words

log = logging.getLogger("rdzv_server")

LOG_LINES = Rate(1, 20)
SILENCE_S = 600.0
"""Seconds for which a refusal that has been logged is not logged again."""
MOST_REMEMBERED = 1_000
_SECONDS = r"\b\d+(\.\d+)? s\b"
"""Seconds in a refusal, such as those after which to try again. Without them, repeated refusals are the same."""
_ROUTINE = (
    errors.AgentFenced,
    errors.StaleRound,
    errors.NotLeader,
    errors.RunSucceeded,
    errors.RunFailed,
    errors.UnknownRun,
    errors.NoStandby,
    errors.UnknownRank,
    errors.QueryRefused,
    errors.NoAnswer,
)
"""Refusals that are not logged: they are routine, or their sender sees them at once."""


class Gatekeeper:
    """Gatekeeper of one server, which checks every request. `access` may be replaced, for later requests."""

    def __init__(self, access: Access, limits: Limits) -> None:
        self.access = access
        self._requests = TokenBuckets(limits.requests)
        self._refusals = TokenBuckets(limits.refusals)

    def check(self, method: str, path: str, caller: Caller, credential: str | None, now: float) -> Permit:
        """Return the permit of the request. `credential`: the one with which its connection was let in before.

        Raises `TooManyRequests`, `Unauthorized` or `Forbidden`.
        """
        peer = peer_of(caller.peer)
        if not self._requests.take(peer, now):
            raise errors.TooManyRequests(words.too_many_requests(peer))
        if caller.credential != credential and action_of(method, path) is not Action.PROBE:
            self.check_guess(caller, now)
        return self.access.check(method, path, caller)

    def check_guess(self, caller: Caller, now: float) -> None:
        """Raise `TooManyRequests` if the caller's peer has sent too many wrong tokens to try another one."""
        peer = peer_of(caller.peer)
        if not self._refusals.has_any(peer, now):
            raise errors.TooManyRequests(words.too_many_guesses(peer))

    def note_refusal(self, caller: Caller, now: float) -> None:
        """Count a request that was refused because it had no valid token."""
        self._refusals.take(peer_of(caller.peer), now)


class RefusalLog:
    """Log of refusals that a person should look into: each once in `SILENCE_S`, however often it is repeated."""

    def __init__(self) -> None:
        self._logged_at: dict[tuple[str, str], float] = {}
        self._lines = TokenBuckets(LOG_LINES)
        self._suppressed = 0

    def note(self, peer: str, refusal: errors.ProtocolError, now: float) -> None:
        """Log a refusal, unless it was logged recently or too many are logged."""
        if isinstance(refusal, _ROUTINE):
            return
        key = (peer, re.sub(_SECONDS, "", str(refusal)))
        if self._logged_at.get(key, now - SILENCE_S) > now - SILENCE_S:
            return
        if not self._lines.take("", now):
            self._suppressed += 1
            return
        log.warning(words.refused(peer, printable(str(refusal)), self._suppressed))
        self._suppressed = 0
        if len(self._logged_at) >= MOST_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[key] = now


def address_of(address: str) -> str:
    """Return the address as people write it: IPv4 even if the connection came through an IPv6 socket, and no zone."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=16_384)
def peer_of(address: str) -> str:
    """Return the peer that an address belongs to: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
