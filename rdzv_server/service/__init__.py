"""Rendezvous service: the driver of the core, long polls, and the clock."""
