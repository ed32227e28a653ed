"""node-agent and torchrun compared: `python -m benchmarks`.

The benchmarks run real processes. They measure the launchers in turns within one run, so that a busy moment of the
machine affects both. Times are CLOCK_MONOTONIC, which all processes of a machine share: a worker takes the time in its
first statement. Benchmarks report figures and assert nothing.
"""
