"""Transports to a server: HTTP with name look-up, connection handling and retries."""
