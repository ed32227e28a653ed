"""A virtual cluster: the real service, agents and codec on a simulated network and clock, driven by a seed.

`clock` is time, `network` what lies between, `server` the real service on that clock, `agent` the real runner of an
agent on it, `transport` what takes the place of HTTP, `workers` the training, `cluster` puts them together, `faults`
breaks them, and `invariants` says what must hold after every event.
"""
