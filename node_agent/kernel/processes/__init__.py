"""Processes that an agent starts: how they start, get signals and end, and the folders and ports that they use."""
