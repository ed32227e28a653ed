"""A virtual cluster: the real cores, service and codec on a simulated network and clock, driven by a seed.

`clock` is time, `network` what lies between, `server` the real service on that clock, `agent` the thin stand-in for the
agent's shell, `workers` the training, `cluster` puts them together, `faults` breaks them, and `invariants` says what
must hold after every event.
"""
