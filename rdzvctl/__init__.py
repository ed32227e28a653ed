"""Command line of operators: `rdzvctl` shows the runs of `rdzv-server` over HTTP, and acts on them.

It knows the server only by its HTTP API: answers are plain maps, in which fields of newer servers do no harm.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType

    from rdzvctl import words as words


def __getattr__(name: str) -> "ModuleType":
    """Import `words` when the first message is made, since most commands make none."""
    if name != "words":
        raise AttributeError(name)
    from importlib import import_module

    return import_module("rdzvctl.words")
