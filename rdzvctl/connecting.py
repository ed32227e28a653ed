"""Connections to a server by its name: each of the name's addresses gets a chance, and Ctrl-C always works.

`http.client` tries one address after the other. So every command would wait several seconds on a machine whose IPv6 is
broken. A look-up in the main thread cannot be interrupted, and a silent name server takes 10 s or more.
"""

import errno
import http.client
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

HEAD_START_S = 0.25
"""Seconds after which the next address is tried beside a silent one (RFC 8305)."""
_BEGUN = 0, errno.EINPROGRESS

Address = tuple[int, Any]
"""Family and address of a socket."""


class HttpConnection(http.client.HTTPConnection):
    """Connection to the first address that answers."""

    def connect(self) -> None:
        assert self.timeout is not None
        self.sock = connected(self.host, self.port, self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class HttpsConnection(http.client.HTTPSConnection, HttpConnection):
    """The same with TLS, which `HTTPSConnection` adds to the connection of the next class."""


def connected(host: str, port: int, within_s: float) -> socket.socket:
    """Return a connection with this time limit. Raises `OSError`, such as `TimeoutError` and `socket.gaierror`."""
    return _first(_addresses(host, port), within_s)


def _addresses(host: str, port: int) -> list[Address]:
    """Return the addresses of a host. A thread looks its name up, so that a signal interrupts the wait."""
    results, errors = list[Any](), list[Exception]()

    def look_up() -> None:
        try:
            results.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            errors.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        look_up()
    else:
        thread.join()
    for error in errors:
        raise error
    return [(family, address) for family, _, _, _, address in results]


def _first(found: Sequence[Address], within_s: float) -> socket.socket:
    """Return a connection to the first address that answers. Raises the first failure if all fail."""
    later, failures, until = deque(found), list[int](), time.monotonic() + within_s
    with selectors.DefaultSelector() as trying, ExitStack() as opened:
        while later or trying.get_map():
            if later:
                family, address = later.popleft()
                try:
                    begun = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
                except OSError as error:  # this machine has no IPv6
                    failures.append(error.errno or errno.EAFNOSUPPORT)
                    continue
                begun.setblocking(False)
                if (code := begun.connect_ex(address)) not in _BEGUN:
                    failures.append(code)
                    continue
                trying.register(begun, selectors.EVENT_WRITE, begun)
            left_s = until - time.monotonic()
            for key, _ in trying.select(min(left_s, HEAD_START_S) if later else left_s):
                trying.unregister(key.fileobj)
                if code := key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    failures.append(code)
                else:
                    connection = socket.socket(fileno=key.data.detach())
                    connection.settimeout(within_s)
                    return connection
            if time.monotonic() >= until:
                raise TimeoutError
    code = next(iter(failures), errno.EADDRNOTAVAIL)
    raise OSError(code, os.strerror(code))
