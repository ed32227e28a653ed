"""Features of an agent. Each has options with its flags, and code that the agent imports only if the feature is on.

`node_agent/kernel/feature.py` defines the hooks of a feature and its view of the agent. `table.py` lists the features
with flags, `enabled.py` the others.
"""
