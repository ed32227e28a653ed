"""A virtual cluster: the real service, agents and codec on a simulated network and clock, driven by a seed.

`clock` is time, and `network` connects the hosts. `server` is the real service on that clock, and `agent` the real
runner of an agent. `transport` replaces HTTP, and `workers` models the training. `cluster` combines them, `faults`
breaks them, and `invariants` says what must hold after every event.
"""
