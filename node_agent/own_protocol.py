"""Our package `protocol` within a program that may have a module of that name, too. See docs/adr/0007 and 0008."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import abspath, dirname
from types import ModuleType

HOME = dirname(dirname(abspath(__file__)))
"""Where our packages stand."""

_ours: dict[str, ModuleType] = {}
"""Our package and its modules while the name is the program's: one copy, however often it is needed."""


@contextmanager
def our_protocol() -> Iterator[None]:
    """Within, `protocol` is our package; afterwards the name is the user's again, whether they have used it or not.

    Our modules keep what they have imported from it, so that both can live in one process.
    """
    theirs = _loaded()
    if _is_ours(theirs.get("protocol")):
        yield
        return
    _forget(theirs)
    sys.modules.update(_ours)
    try:
        _import_ours()
        yield
    finally:
        _ours.update(_loaded())
        _forget(_ours)
        sys.modules.update(theirs)


def _import_ours() -> None:
    sys.path.insert(0, HOME)
    try:
        import protocol  # noqa: F401
    finally:
        sys.path.remove(HOME)


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "protocol"}


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and dirname(dirname(abspath(module.__file__ or ""))) == HOME


def _forget(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        sys.modules.pop(name, None)
