"""Outages of a server: an agent's lines about them, as patterns for `Program.line`, and flags to outlast them."""

from math import inf

from node_agent import words
from tests.support.message_search import pattern

LOST = pattern(words.connection.server_lost, longest_s=inf)
REACHED = pattern(words.connection.server_reached)
PATIENT = ("--last-call-timeout", "500", "--lease", "60", "--join-timeout", "500", "--shutdown-timeout", "500")
"""Flags of agents without a timer that ends during an outage."""
