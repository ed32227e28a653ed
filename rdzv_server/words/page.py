"""Sentences that the live page and the plain pages share."""

SHARES_RUNS = "This server shares the runs with others."
FOLLOWS = "This server follows; another server leads."
LEADER_UNKNOWN = "The leader is unknown"


def cannot_decide(reason: str) -> str:
    return f"The server cannot decide anything now: {reason}"
