"""HTTP/1.1 client on an open connection, using h11: one request at a time, with the answer read whole or in parts."""

from collections.abc import Iterable

import h11
from rdzv_protocol.flag_values import address

from node_agent import words
from node_agent.kernel.transport.connecting import Streams, give_up

PART_BYTES = 65_536
"""Most bytes to read at once."""

Header = tuple[str, str]
FAILURES = (OSError, EOFError, h11.RemoteProtocolError)
"""Errors that `ask`, `part` and `body` raise if the connection breaks or the answer is not HTTP."""


class HttpConnection:
    """Open connection to a server. Send the next request only after the previous answer has been read.

    `most_bytes`: limit for an answer that is read whole.
    """

    def __init__(self, streams: Streams, most_bytes: int) -> None:
        self.streams = streams
        self._most_bytes = most_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=most_bytes)

    async def ask(self, method: str, path: str, headers: Iterable[Header], body: bytes = b"") -> h11.Response:
        """Send a request, and return the head of its answer."""
        if self.is_reusable:
            self._http.start_next_cycle()
        request = h11.Request(method=method, target=path, headers=list(headers))
        sent = (request, h11.Data(data=body), h11.EndOfMessage())
        self.streams[1].write(b"".join(self._http.send(event) or b"" for event in sent))
        while not isinstance(event := self._http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                received = await self.streams[0].read(PART_BYTES)
                if not received:
                    raise EOFError(words.connection.CLOSED)
                self._http.receive_data(received)
        return event

    async def part(self) -> bytes:
        """Return the next part of the answer's body, empty at its end."""
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._http.receive_data(await self.streams[0].read(PART_BYTES))
            elif isinstance(event, h11.Data):
                return event.data
        return b""

    async def body(self) -> bytes:
        """Return the answer's whole body. Raises `EOFError` also if it is too long."""
        answer = bytearray()
        while part := await self.part():
            answer += part
            if len(answer) > self._most_bytes:
                raise EOFError(words.connection.answer_too_long(self._most_bytes))
        return bytes(answer)

    @property
    def is_reusable(self) -> bool:
        """Whether the last answer was read to its end, and the other side keeps the connection open."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed the connection, or it broke."""
        reader, writer = self.streams
        return reader.at_eof() or reader.exception() is not None or writer.is_closing()

    def close(self) -> None:
        """Close the connection at once."""
        give_up(self.streams)


def authority(host: str, port: int) -> str:
    """Return the `Host` header of a request to this server."""
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""  # not a valid name, which its look-up reports
    return address(host, port)
