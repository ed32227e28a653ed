"""Nodes of a server: which of them are excluded from all runs, and what runs have blamed them for.

All events about nodes enter through `machine.Nodes`. This is a machine beside those of the runs, with facts of its own
(`node_facts`) in a journal of its own. `state` follows from these facts only. `node_history` remembers blame,
`exclusion` decides which nodes get no seat, and `cordons` makes what people and runs see of it. A run records the
cordons of its own nodes, so a replay of its records needs no other facts.
"""
