"""Limits of all connections together: time limits, and the memory that peers can make the server hold."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rdzv_server.http.garbage_collection import GarbageCollector
from rdzv_server.service.fair_scheduler import FairScheduler
from rdzv_server.service.operator_scheduler import OperatorScheduler
from rdzv_server.service.timeouts import Timeouts

Holder = TypeVar("Holder", bound=Hashable)

MOST_HELD_BYTES = 64 << 20
"""Most bytes of incomplete requests and unread answers in total; one peer may have half of them."""
EACH_BYTES = 4_096
"""Bytes that each of them takes besides its content."""


class HeldMemory(Generic[Holder]):
    """Memory that is held until peers send the rest, or read.

    Beyond the limit, `over` is called with the oldest holder.
    """

    def __init__(self, most: int, over: Callable[[Holder], None]) -> None:
        self._most, self._over = most, over
        self._sizes: OrderedDict[Holder, tuple[str, int]] = OrderedDict()
        """Peer and bytes of each holder; the oldest is first."""
        self._of_peer = defaultdict[str, OrderedDict[Holder, None]](OrderedDict)
        self._peer_bytes = Counter[str]()
        self._bytes = 0

    def add(self, peer: str, holder: Holder, size: int) -> None:
        """Count memory that is held for the peer, and free the oldest if it is too much."""
        _, before = self._sizes.get(holder, (peer, 0))
        size += 0 if before else EACH_BYTES
        self._sizes[holder] = peer, before + size
        self._of_peer[peer][holder] = None
        self._bytes += size
        self._peer_bytes[peer] += size
        while self._peer_bytes[peer] > self._most // 2:
            self._free(next(iter(self._of_peer[peer])))
        while self._bytes > self._most:
            self._free(next(iter(self._sizes)))

    def remove(self, holder: Holder) -> None:
        """Forget the memory of this holder, if it has any."""
        if holder not in self._sizes:
            return
        peer, size = self._sizes.pop(holder)
        self._bytes -= size
        self._peer_bytes[peer] -= size
        del self._of_peer[peer][holder]
        if not self._of_peer[peer]:
            del self._of_peer[peer], self._peer_bytes[peer]

    def _free(self, holder: Holder) -> None:
        self.remove(holder)
        self._over(holder)


@dataclass(frozen=True, slots=True)
class ConnectionLimits(Generic[Holder]):
    """Limits of one listener's connections."""

    arriving: Timeouts[Holder]
    """Time limits of requests that are arriving."""
    unread: Timeouts[Holder]
    """Time limits of answers that are not read."""
    held: HeldMemory[Holder]
    garbage: GarbageCollector
    """Collector that is notified of requests."""
    turns: FairScheduler
    looks: OperatorScheduler
    """Scheduler of operators' reads."""
