"""The entry point `rdzv-server` in the group `torchrun.handlers`: stock torchrun, with our server as its rendezvous.

torch loads it in every process that imports its elastic package, workers included. So this module imports nothing but
the standard library, and brings the rest in when a handler is asked for: see docs/adr/0008.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from node_agent.own_protocol import our_protocol

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


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
