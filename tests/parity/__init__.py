"""Defects of torchrun, beside node-agent doing the same: `python -m tests.parity`.

Each scenario is one function that knows no launcher: it starts real agents, does something to them, and says what it
saw and whether that is what a user may expect. It runs with torchrun and with node-agent, and the verdict of both comes
from the same lines; `intruder` alone has to speak to each in its language. Where torchrun has a flag or a variable
that helps, it gets it.

Beside them: hundreds of command lines (`command_lines.py`) that run under both launchers (`observe.py`), and a reviewed
table of all that differs (`differences.py`).
"""
