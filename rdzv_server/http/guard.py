"""Judges every request before anything reads its body: whether it comes too often, and whether it may."""

from rdzv_protocol.errors import TooManyRequests

from rdzv_server.auth.authorization import Access, Caller, Deed, Permit, deed_of
from rdzv_server.limits import Buckets, Limits, peer_of


class Guard:
    """Of one server. `access` may be replaced: requests from then on are judged by the new one."""

    def __init__(self, access: Access, limits: Limits) -> None:
        self.access = access
        self._requests = Buckets(limits.requests)
        self._refusals = Buckets(limits.refusals)

    def check(self, method: str, path: str, caller: Caller, badge: str | None, now: float) -> Permit:
        """What the request may do. `badge`: the Authorization with which its connection was let in before.

        Raises `TooManyRequests`, `Unauthorized` or `Forbidden`.
        """
        peer = peer_of(caller.peer)
        if not self._requests.has_any(peer, now):
            raise TooManyRequests(f"too many requests from {peer}; each is tried again")
        self._requests.take(peer, now)
        is_judged = deed_of(method, path) is not Deed.NOTHING and caller.authorization != badge
        if is_judged and not self._refusals.has_any(peer, now):
            raise TooManyRequests(f"too many requests from {peer} without the right token; others have to wait, too")
        return self.access.check(method, path, caller)

    def note_refusal(self, caller: Caller, now: float) -> None:
        """A request of this caller's was refused for want of the right token."""
        self._refusals.take(peer_of(caller.peer), now)
