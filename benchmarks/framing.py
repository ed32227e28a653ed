"""HTTP in its smallest form: one message at a time on a connection, with its length in the head."""

import asyncio

from rdzv_protocol import paths

_END = b"\r\n\r\n"


class Exchange(asyncio.Protocol):
    """Connection on which one message at a time arrives. Each one calls `received`."""

    _arrived = b""

    def received(self, head: bytes, body: bytes) -> None:
        """Handle a whole message."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        head, end, body = self._arrived.partition(_END)
        if end and len(body) >= _length(head):
            self._arrived = b""
            self.received(head, body)


def framed(first_line: str, body: bytes) -> bytes:
    """Return the bytes of a message.

    `first_line`: of a request or an answer; it may include further lines of the head.
    """
    return f"{first_line}\r\nContent-Type: {paths.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length: ")
    return int(rest.split(b"\r\n", 1)[0])
