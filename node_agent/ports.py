"""MASTER_PORT is reserved, not guessed.

A socket that is bound with SO_REUSEADDR and does not listen keeps its port: the kernel gives it to nobody else who asks
for a free one, yet a listener that sets SO_REUSEADDR too, as torch's TCPStore does, can take it (Linux, torch 2.13).
"""

import socket


class ReservedPort:
    """The port of one round, kept until `release`."""

    def __init__(self) -> None:
        self._socket = _bind()
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def _bind() -> socket.socket:
    try:
        reserved = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _reserve(reserved, "::")
    except OSError:  # no IPv6 on this host
        return _reserve(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0")


def _reserve(reserved: socket.socket, address: str) -> socket.socket:
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((address, 0))
    except OSError:
        reserved.close()
        raise
    return reserved
