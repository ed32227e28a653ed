"""The entry point `rdzv-server` in the group `torchrun.handlers`: stock torchrun, with our server as its rendezvous.

torch loads it in every process that imports its elastic package, workers included. So this module imports nothing but
the standard library, and brings the rest in when a handler is asked for: see docs/adr/0008.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from os.path import abspath, dirname
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

HOME = dirname(dirname(dirname(abspath(__file__))))
"""Where our packages stand."""


def get_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What torch asks the entry point for: that which makes a handler."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """The handler for torchrun's command line. Raises `ValueError` if `--rdzv-conf` makes no sense."""
    return _load()(params)


@cache
def _load() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    with our_protocol():
        from node_agent.plugins.torch_handler import create

        return create


@contextmanager
def our_protocol() -> Iterator[None]:
    """Within, `protocol` is our package; afterwards the name is the user's again, whether they have used it or not.

    Our modules keep what they have imported from it, so that both can live in one process.
    """
    theirs = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "protocol"}
    if _is_ours(theirs.get("protocol")):
        yield
        return
    _forget(theirs)
    try:
        _import_ours()
        yield
    finally:
        _forget({name: module for name, module in sys.modules.items() if name.partition(".")[0] == "protocol"})
        sys.modules.update(theirs)


def _import_ours() -> None:
    sys.path.insert(0, HOME)
    try:
        import protocol  # noqa: F401
    finally:
        sys.path.remove(HOME)


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and dirname(dirname(abspath(module.__file__ or ""))) == HOME


def _forget(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]
