"""Times that both sides of a long poll must agree on. Seconds."""

HOLDS_PER_LEASE = 2
"""A parked poll is answered this often in a lease, so that a live agent renews it in time."""
LONGEST_HOLD_S = 10.0
"""No poll is parked for longer, however long the lease: an agent that hears nothing for longer has lost the server."""
ANSWER_TIMEOUT_S = LONGEST_HOLD_S + 5.0
"""Silence after which an agent gives a line up and tries another."""

LEADER_HOLD_S = 60.0
"""Longest wait of an agent that asks a server for a later leader. Nothing depends on how often it asks."""
