"""node-agent and torchrun side by side: `python -m benchmarks`.

Real processes, measured in turns within one run, so that a busy moment of the machine hits both alike. Times are
CLOCK_MONOTONIC, which every process of a machine shares: a worker's first statement takes its own. Benchmarks inform;
they assert nothing.
"""
