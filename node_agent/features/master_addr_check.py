"""Warns if this node's workers certainly cannot reach MASTER_ADDR, where the workers of all nodes meet.

They would wait there for a long time, and nothing else would show why. The agent sends nothing to other nodes: it asks
only its own system. There are three reasons:

- The address is also this node's own, but no process of this machine has MASTER_PORT, which the agent of rank 0's node
  reserves. So another machine has the same address, as containers with a network of their own can have.
- This node has no route to the address, for example because it has no IPv6.
- This node cannot look up the name.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from rdzv_protocol.messages import Assignment

from node_agent.features import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.transport.this_machine import is_local


class MasterAddrCheck(Feature):
    """Warns once for each reason, when the workers of a round have been started."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._warned: set[str] = set()

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        if assignment.group_rank > 0:
            spawn(self._warn(assignment))

    async def _warn(self, assignment: Assignment) -> None:
        """Warn if there is a reason. A thread looks the address up, since that may take long."""
        why = await in_thread(partial(why_unreachable, assignment.master_addr, assignment.master_port))
        if why and why not in self._warned and self.kernel.assignment is assignment:
            self._warned.add(why)
            self.kernel.console.log(why, Level.WARNING)


def why_unreachable(host: str, port: int) -> str:
    """Return why no process of this node can reach another machine at this address; empty if one may."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return words.master_unknown(host, getattr(error, "strerror", None) or str(error))
    reasons = [_why_unreachable(host, family, address) for family, _, _, _, address in found]
    return "" if "" in reasons else next(iter(reasons), "")


def _why_unreachable(host: str, family: int, address: tuple[Any, ...]) -> str:
    if is_local(family, address[0]):
        return words.master_is_here(host) if _is_free(family, address) else ""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
    except OSError as error:
        return words.no_route_to_master(host, error.strerror or str(error))
    return ""


def _is_free(family: int, address: tuple[Any, ...]) -> bool:
    """Return whether certainly no process of this machine has this port, not even to reserve it."""
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return True
    return False
