"""Instructions that the hot paths take, counted by valgrind: what CI can hold them to on any machine (ADR 20)."""
