"""Journals: the places in a store for facts that belong to no run. A run's facts have its run id and attempt as key."""

Key = tuple[str, int]
"""Key of facts that belong together in a store: a run id and an attempt's number, or the key of a journal."""

NODES: Key = "", 0
"""Journal of the facts about nodes and of requests to forget a run. No run has an empty id."""
NUMBERS: Key = "", 1
"""Journal of the numbers that forgotten runs have used."""
