"""Times in seconds that both sides of a long poll must agree on."""

HOLDS_PER_LEASE = 2
"""Number of times that a parked poll is answered in a lease, so that a live agent renews it in time."""
LONGEST_HOLD_S = 10.0
"""Most seconds for which a poll is parked, even with a long lease. An agent that hears nothing for longer has lost its
server."""
ANSWER_TIMEOUT_S = LONGEST_HOLD_S + 5.0
"""Longest silence in seconds after which an agent gives up a connection and tries another one; see
`answer_timeout_s`."""

TCP_RTO_MAX_MS = 44
"""Socket option of Linux 6.15 and later, for which Python has no name: longest pause until TCP sends a lost packet
again."""
LONGEST_PAUSE_S = 1.0
"""Most seconds between two tries of TCP to send a lost packet, on kernels that have the option. Otherwise the pauses
double, and on a lossy network an agent can be silent for longer than its lease."""

LEADER_HOLD_S = 60.0
"""Most seconds for which an agent waits when it asks a server for a later leader. Nothing depends on how often it
asks."""


def hold_s(lease_s: float, holds_per_lease: float = HOLDS_PER_LEASE) -> float:
    """Return the most seconds for which a poll is parked, so that a live agent renews a lease of `lease_s` in time."""
    return min(lease_s / holds_per_lease, LONGEST_HOLD_S)


def answer_timeout_s(lease_s: float) -> float:
    """Return the seconds of silence after which an agent gives up a connection.

    If its server hangs and another one takes over, the new one gives each agent a lease. Within that lease, the agent
    must have given up and asked again.
    """
    held_s = hold_s(lease_s)
    return min(held_s + max(held_s / 2, 1.0), ANSWER_TIMEOUT_S)
