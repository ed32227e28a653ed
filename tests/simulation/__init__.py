"""A virtual cluster: the real cores and the real codec on a simulated network and clock, driven by a seed.

`clock` is time, `network` what lies between, `server` and `agent` the thin stand-ins for the two shells, `workers` the
training, `cluster` puts them together, `faults` breaks them, and `invariants` says what must hold after every event.
"""
