"""Unintended input: the server's answers to it, and that the server is unharmed afterwards."""
