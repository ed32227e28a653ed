"""Transports to a server: HTTP, failover over several servers, in process, and a hosted subprocess."""
