"""Token buckets: limits of how often something may happen."""

from msgspec import Struct

MOST_NAMES = 100_000
"""Most names that one `TokenBuckets` remembers; those known for longest are forgotten first."""

ROUNDING_S = 1e-6


class Rate(Struct, frozen=True):
    """Rate of requests: `per_s` a second in the long run, and `burst` at once."""

    per_s: float
    burst: int


class TokenBuckets:
    """Token buckets, one for each name, as the times at which they will be full again by the caller's clock."""

    def __init__(self, rate: Rate) -> None:
        self._each_s = 1 / rate.per_s
        self._all_s = rate.burst / rate.per_s
        self._full_at: dict[str, float] = {}

    def has_any(self, name: str, now: float) -> bool:
        """Return whether the name's bucket has a token left."""
        return self._full_at.get(name, now) - now <= self._all_s - self._each_s + ROUNDING_S

    def take(self, name: str, now: float) -> bool:
        """Take a token from the name's bucket; return False, with nothing taken, if it is empty."""
        if not self.has_any(name, now):
            return False
        full_at = max(now, self._full_at.get(name, now)) + self._each_s
        self._full_at[name] = min(full_at, now + self._all_s)
        if len(self._full_at) > MOST_NAMES:
            self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        """Forget full buckets, which need no memory; if the others are still too many, forget half of them."""
        busy = [(name, at) for name, at in self._full_at.items() if at > now]
        self._full_at = dict(busy if len(busy) < MOST_NAMES else busy[MOST_NAMES // 2 :])
