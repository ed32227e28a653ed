"""Nodes of a server: which of them are kept out of all runs, and what runs have blamed them for.

`machine.Nodes` is the one way in: a machine beside those of the runs, with facts of its own (`node_facts`), in a
journal of its own. `state` follows from these facts alone, `node_history` remembers blame, `exclusion` decides whom it
costs its seat, and `cordons` has what people and runs are told. A run knows the cordons of its own nodes as facts of
its own: a replay of its records needs no others.
"""
