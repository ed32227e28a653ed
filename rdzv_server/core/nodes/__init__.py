"""Nodes of a server: which of them are kept out of all runs, and what runs have blamed them for.

`machine.Nodes` is the one way in: a machine beside those of the runs, with facts of its own (`node_facts`), in a
journal of its own. `state` follows from these facts alone, `node_history` remembers blame, `exclusion` decides which
nodes get no seat, and `cordons` makes what people and runs read of it. A run records the cordons of its own nodes, so a
replay of its records needs no others.
"""
