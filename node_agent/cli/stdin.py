"""Standard input of workers that read their program from it, such as `node-agent - < train.py`.

Each worker of each round gets the whole program. If the workers shared the agent's own stdin, only the first one would
get it. The others, and all workers after a restart, would run an empty program, which exits 0.
"""

import os
import select
import sys
from collections.abc import Sequence

from node_agent import words
from node_agent.cli.worker_command import SHELLS
from node_agent.kernel import early_signals
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.command import Command
from node_agent.kernel.processes.system_calls import memfd_create

_READ_BYTES = 1 << 20
_LOOK_S = 0.2
"""Seconds between two checks for a signal while stdin has nothing to read."""
_OPTIONS = {"--help": False, "--version": False}
_PYTHON = _OPTIONS | dict.fromkeys("cmhV?", False) | dict.fromkeys(("W", "X", "--check-hash-based-pycs"))
_SHELL = _OPTIONS | {"c": False, "s": True} | dict.fromkeys(("o", "O", "--rcfile", "--init-file"))
"""Whether an interpreter with an option reads its program from stdin; None if the option takes a value."""


def program_of(command: Command) -> int:
    """Read the program that the workers would read from stdin. Return the descriptor of a file with it; -1 if none.

    -1 also at a terminal, where a person talks to the interpreter itself. Raises `UsageError` if stdin is empty.
    """
    if not reads_program(command.for_worker(0), is_python=command.is_python) or (sys.stdin and sys.stdin.isatty()):
        return -1
    file = memfd_create("node-agent-program")
    with open(file, "wb", closefd=False) as copy:
        while part := _read(sys.stdin.fileno()) if sys.stdin else b"":
            copy.write(part)
    if not os.fstat(file).st_size and not early_signals.is_held():
        raise UsageError(words.command.no_program_on_stdin(command.title))
    return file


def _read(stdin: int) -> bytes:
    """Return the next bytes. They are empty at the end of stdin, and if a signal tells the agent to leave."""
    while not early_signals.is_held():
        if select.select([stdin], [], [], _LOOK_S)[0]:
            return os.read(stdin, _READ_BYTES)
    return b""


def reads_program(command: Sequence[str], *, is_python: bool) -> bool:
    """Return whether the command is an interpreter of Python or a shell that reads its program from stdin."""
    if not is_python and os.path.basename(command[0]) not in SHELLS:
        return False
    options, words = _PYTHON if is_python else _SHELL, iter(command[1:])
    for word in words:
        if word == "--":
            return next(words, "-") == "-"
        if word == "-" or not word.startswith("-"):
            return word == "-"
        name = word if word.startswith("--") else next((each for each in word[1:] if each in options), "")
        if name not in options:
            continue
        if (answer := options[name]) is not None:
            return answer
        if word.endswith(name):  # else its value is in the same word
            next(words, "")
    return True
