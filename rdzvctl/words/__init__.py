"""Sentences of `rdzvctl`: each function makes one message to a person from its fields.

Each module has the messages of one part, and is imported when its first message is made. A function's name is the kind
of the message, and its arguments are the fields. `tests/golden/messages.txt` shows every message, and `python -m
tests.golden --write` makes that file.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType

    from rdzvctl.words import actions as actions
    from rdzvctl.words import bundle as bundle
    from rdzvctl.words import command_line as command_line
    from rdzvctl.words import connection as connection
    from rdzvctl.words import contexts as contexts
    from rdzvctl.words import events as events
    from rdzvctl.words import explanation as explanation
    from rdzvctl.words import logs as logs
    from rdzvctl.words import nodes as nodes
    from rdzvctl.words import runs as runs
    from rdzvctl.words import servers as servers
    from rdzvctl.words import steps as steps


def __getattr__(name: str) -> "ModuleType":
    from importlib import import_module

    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
