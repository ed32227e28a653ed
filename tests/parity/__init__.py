"""Defects of torchrun, compared with node-agent in the same scenario: `python -m tests.parity`.

Each scenario is a function that does not know the launcher. It starts real agents, does something to them, and returns
what it saw and whether a user may expect that. It runs with torchrun and with node-agent, and the same lines judge
both. Only `intruder` must speak to each in its own protocol. If torchrun has a flag or a variable that helps, the
scenario sets it.

There are also hundreds of command lines (`command_lines.py`) that run under both launchers (`observe.py`), and a
reviewed table of all differences (`differences.py`).
"""
