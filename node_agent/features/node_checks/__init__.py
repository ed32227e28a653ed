"""Checks of a node before it joins: the user's own command, and the agent's built-in checks."""
