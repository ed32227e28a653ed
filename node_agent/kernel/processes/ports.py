"""Reservation of MASTER_PORT, so that the port is certainly free.

A socket that is bound with SO_REUSEADDR and does not listen keeps its port. The kernel does not give that port to a
program that asks for a free one. A listener that also sets SO_REUSEADDR, like torch's TCPStore, can still take it
(Linux, torch 2.13).
"""

import socket

from node_agent import words


class ReservedPort:
    """The port of one round, kept until `release`."""

    def __init__(self, number: int = 0) -> None:
        """Reserve this port, or a free one. Raises `OSError` if another process has it."""
        try:
            try:
                self.socket = _bound(socket.AF_INET6, number)
            except OSError:  # no IPv6 on this host
                self.socket = _bound(socket.AF_INET, number)
        except OSError as error:
            raise OSError(words.workers.no_port(number, error.strerror or str(error))) from None
        self.number: int = self.socket.getsockname()[1]

    def release(self) -> None:
        self.socket.close()


def _bound(family: int, number: int) -> socket.socket:
    """Return a socket that is bound to this port on every address."""
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", number))
    except OSError:
        reserved.close()
        raise
    return reserved
