"""A year of faults: what happened to a cluster in 348 days, replayed on the product's cores in simulated time and,
compressed, on real processes; beside torchrun.

`trace` is what happened, `kinds` what that is taken to mean, `model` what an operator chooses and what training costs,
`simulation` the year on our cores, `torchrun_model` the same year under a model of torchrun, `campaign` faults on real
processes in a `network` of namespaces, `page` the page.
"""
