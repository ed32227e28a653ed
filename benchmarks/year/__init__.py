"""A year of faults: what happened to a cluster in 348 days, replayed on node-agent and on torchrun.

The year is replayed on the product's cores in simulated time and, compressed, on real processes. `trace` has the
faults, `kinds` their assumed effects, `model` the choices of an operator and the costs of training. `simulation` is the
year on our cores, and `torchrun_model` the same year under a model of torchrun. `campaign` injects faults into real
processes in a `network` of namespaces. `page` writes the page.
"""
