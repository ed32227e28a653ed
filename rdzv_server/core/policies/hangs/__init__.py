"""Hangs: from the suspicions of agents to one failure with a name, and to what the run's policy says."""
