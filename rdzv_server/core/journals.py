"""Journals: the places in a store of facts that are about no run. A run's facts stand under its run id and attempt."""

Key = tuple[str, int]
"""Key of what belongs together in a store: the run id and the number of an attempt, or a journal's."""

NODES: Key = "", 0
"""Journal of the facts about nodes, and of requests to forget a run. No run has an empty id."""
NUMBERS: Key = "", 1
"""Journal of the numbers that forgotten runs have used."""
