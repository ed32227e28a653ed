"""Sentences of the server: each function makes one message to a person from its fields.

Each module has the messages of one part of the server. A function's name is the kind of the message, and its arguments
are the fields. `tests/golden/messages.txt` shows every message, and `python -m tests.golden --write` makes that file.

A module is imported when its first message is made, because an agent that hosts a server waits for its imports. A
server calls `load` once it listens: later it may have no file descriptor left, or another version may have been
installed.
"""

from importlib import import_module
from typing import Any


class _Module:
    """Module that is imported when one of its messages is needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value


def __getattr__(name: str) -> _Module:
    if name.startswith("_"):
        raise AttributeError(name)
    return _Module(f"{__name__}.{name}")


def load() -> None:
    """Import all modules of sentences, also those that several programs share. Raises `OSError` or `ImportError`."""
    from pkgutil import iter_modules

    from rdzv_protocol import words as shared

    for name, path in ((__name__, __path__), (shared.__name__, shared.__path__)):
        for each in iter_modules(path):
            import_module(f"{name}.{each.name}")
