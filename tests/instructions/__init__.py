"""Instructions of the hot paths, counted by valgrind: a limit that CI can check on any machine (ADR 20)."""
