"""How long to wait before the next try."""

FIRST_S, FACTOR, LONGEST_S = 0.05, 1.6, 1.0


def delay(attempt: int, jitter: float, longest_s: float = LONGEST_S) -> float:
    """Seconds before try number `attempt` (from 1). `jitter` from 0 to 1 spreads agents that lost the same server."""
    longest = min(longest_s, FIRST_S * FACTOR ** min(attempt - 1, 32))
    return longest * (0.5 + jitter / 2)
