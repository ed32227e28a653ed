"""Features of an agent: each has its options here, with its flags, and code that is imported only if it is on.

`feature.py` says what a feature may do, and what it sees of the agent. `table.py` lists those with flags, `active.py`
the other ones.
"""
