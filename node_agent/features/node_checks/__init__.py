"""Checks of a node before it joins: the user's own command, and those that the agent has built in."""
