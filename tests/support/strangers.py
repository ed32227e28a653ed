"""Strangers at a server's port, as a program: `python -m tests.support.strangers DEED PORT COUNT FIRST ADDRESSES`.

The program repeats a deed until it is ended, and prints a line after COUNT times. `open DEED` keeps the latest COUNT
connections open. They come from ADDRESSES addresses of loopback in turn, starting at FIRST.
"""

import socket
import sys
from collections import deque
from contextlib import suppress
from ipaddress import IPv4Address

HOST = "127.0.0.1"
JOIN = b"POST /v1/agent/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\n"
LOGIN = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HEADER = b"X: " + b"y" * 8_000 + b"\r\n"
TIMEOUT_S = 0.5
"""Seconds that a stranger waits for the server to take its bytes."""

PAGES = (
    b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nAccept: text/html\r\n", b"GET /login?next=/runs/x HTTP/1.1\r\n",
    b"POST /logout HTTP/1.1\r\nContent-Length: 0\r\n", b"GET /runs/x HTTP/1.1\r\nAccept: text/html\r\n",
    b"GET /nodes/x HTTP/1.1\r\nAccept: text/html\r\n", b"GET /no/such/page HTTP/1.1\r\n",
    b"POST /no/such/page HTTP/1.1\r\nContent-Length: 0\r\n", b"OPTIONS /healthz HTTP/1.1\r\n",
    b"DELETE / HTTP/1.1\r\n", b"NONSENSE /login HTTP/1.1\r\n",
)  # fmt: skip
"""Pages, unknown paths and other methods. The deed `pages` sends one on each connection, in turn."""

SENDS: dict[str, bytes] = {
    "connect": b"",
    "hello": b"\x16\x03\x01",
    "head": b"GET / HTTP/1.1\r\nHost: x\r\nX: y",
    "headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + HEADER * 120,
    "body": JOIN + b"Content-Length: 262144\r\n\r\n" + b"x" * 262_000,
    "chunks": LOGIN + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000,
    "login": LOGIN + b"Content-Length: 198006\r\n\r\ntoken=" + b"%41" * 66_000,
    "guess": LOGIN + b"Content-Length: 11\r\n\r\ntoken=wrong",
    "pipeline": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000,
    "unread": b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "probe": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "watch": b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n",
    "metrics": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "join": JOIN + b"Content-Length: 1\r\n\r\nx",
}
"""Bytes that a stranger sends on each connection, by deed."""


def main(deed: str, port: int, count: int, first: IPv4Address, addresses: int) -> None:
    most_open = count if deed.startswith("open ") else 0
    kept: deque[socket.socket] = deque()
    did = 0
    while True:
        with suppress(OSError):  # for example, the server closes the connection meanwhile
            kept.append(_visit(_sends(deed, did), port, str(first + did % addresses)))
        if len(kept) > most_open:
            kept.popleft().close()
        did += 1
        if did == count:
            print("under way", flush=True)


def _sends(deed: str, did: int) -> bytes:
    kind = deed.removeprefix("open ")
    return SENDS[kind] if kind in SENDS else PAGES[did % len(PAGES)] + b"Host: x\r\n\r\n"


def _visit(sends: bytes, port: int, address: str) -> socket.socket:
    visitor = socket.socket()
    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    visitor.settimeout(TIMEOUT_S)
    visitor.bind((address, 0))
    visitor.connect((HOST, port))
    with suppress(OSError):
        visitor.sendall(sends)
    return visitor


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), IPv4Address(sys.argv[4]), int(sys.argv[5]))
