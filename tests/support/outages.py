"""Lines of an agent about an outage of its server and its end: patterns for `Program.line`."""

from math import inf

from node_agent import words
from tests.support.message_search import pattern

LOST = pattern(words.connection.server_lost, longest_s=inf)
REACHED = pattern(words.connection.server_reached)
