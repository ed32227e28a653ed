"""Sentences that several programs share: each function makes one message to a person from its fields.

Each module has the messages of one part, and is imported when its first message is made. A function's name is the kind
of the message, and its arguments are the fields. `tests/golden/messages.txt` shows every message, and `python -m
tests.golden --write` makes that file.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType

    from rdzv_protocol.words import codec as codec
    from rdzv_protocol.words import disks as disks
    from rdzv_protocol.words import flags as flags
    from rdzv_protocol.words import run as run
    from rdzv_protocol.words import tls as tls
    from rdzv_protocol.words import tracing as tracing


def __getattr__(name: str) -> "ModuleType":
    from importlib import import_module

    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
