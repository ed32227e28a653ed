"""Hangs: from agents' suspicions to one failure that names a rank, and then to the action of the run's policy."""
