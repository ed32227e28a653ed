"""The entry point `rdzv-server` in the group `torchrun.handlers`: stock torchrun, with our server as its rendezvous.

torch loads it in every process that imports its elastic package, workers included. So this module imports nothing but
the standard library, and brings the rest in when a handler is asked for: see ADR 8.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """Maker of handlers, which torch asks the entry point for."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """The handler for torchrun's command line. Raises `ValueError` if `--rdzv-conf` makes no sense."""
    from node_agent.compat.torchrun.handler import RdzvServerHandler

    return RdzvServerHandler(params)
