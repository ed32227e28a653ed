"""The entry point `rdzv-server` in the group `torchrun.handlers`: stock torchrun with our server as its rendezvous.

torch loads it in every process that imports its elastic package, including workers. So this module imports only the
standard library at first, and the rest when a handler is requested: see ADR 8.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """Return the function that makes handlers. Torch asks the entry point for it."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """Return the handler for torchrun's command line. Raises `ValueError` if `--rdzv-conf` is invalid."""
    from node_agent.compat.torchrun.handler import RdzvServerHandler

    return RdzvServerHandler(params)
