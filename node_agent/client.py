"""The HTTP line to a server: HTTP/1.1 with h11 over asyncio streams, one request at a time, kept open between them.

Not aiohttp: its import alone takes longer than everything else between `exec` and the first worker (see docs/adr).
Proxies in the environment are never used: the server is a neighbour, and a proxy would hide the address by which the
other nodes reach this one.
"""

import asyncio
import os
import socket
from typing import TypeVar

import h11

from node_agent.link import Unreachable
from protocol import paths
from protocol.codec import decode, encode
from protocol.errors import ProtocolError, from_code
from protocol.messages import (
    Ack,
    ErrorReply,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Request,
)
from protocol.schema import MAX_MESSAGE_BYTES
from protocol.timing import ANSWER_TIMEOUT_S, LEADER_HOLD_S

CONNECT_TIMEOUT_S = 5.0

T = TypeVar("T")

_PATHS: dict[type[Request], str] = {
    JoinRequest: paths.JOIN,
    PollRequest: paths.POLL,
    ReportRequest: paths.REPORT,
    LeaveRequest: paths.LEAVE,
}


class HttpLink:
    """A line to `host:port`."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._host, self._port = host, port
        self._headers = [("Host", _authority(host, port)), ("Content-Type", paths.MEDIA_TYPE)]
        if token is not None:
            self._headers.append(("Authorization", f"Bearer {token}"))
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def connect(self) -> str:
        if self._streams and self._streams[0].at_eof():
            await self.close()  # the server closed it while it was idle
        if self._streams is None:
            self._streams = await self._open()
            self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_MESSAGE_BYTES)
        address: str = self._streams[1].get_extra_info("sockname")[0]
        return address

    async def exchange(self, request: Request) -> Reply | Ack:
        status, body = await self._post(_PATHS[type(request)], encode(request), ANSWER_TIMEOUT_S)
        if isinstance(request, JoinRequest | PollRequest):
            return _read(Reply, status, body)
        return _read(Ack, status, body)

    async def ask_leader(self, request: LeaderRequest) -> LeaderReply:
        """Ask one of several servers who leads. Raises as `exchange` does."""
        status, body = await self._post(paths.LEADER, encode(request), LEADER_HOLD_S + 5.0)
        return _read(LeaderReply, status, body)

    async def _post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        await self.connect()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(path, body)
        except TimeoutError:
            await self.close()
            raise Unreachable("HTTP", f"no answer for {timeout_s:g} s") from None
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            await self.close()
            raise Unreachable("HTTP", str(error) or type(error).__name__) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure = Unreachable("connect", "no address")
        for address in await self._resolve():
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(*address, limit=MAX_MESSAGE_BYTES)
            except TimeoutError:
                failure = Unreachable("connect", f"{address[0]}: no answer within {CONNECT_TIMEOUT_S:g} s")
            except OSError as error:
                failure = Unreachable("connect", f"{address[0]}: {os.strerror(error.errno or 0)}")
            else:
                self._watch(writer.get_extra_info("socket"))
                return reader, writer
        raise failure

    async def _resolve(self) -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise Unreachable("name", f"{self._host}: {getattr(error, 'strerror', None) or error}") from None
        return [(str(address[0]), int(address[1])) for *_, address in found]

    def _watch(self, connection: socket.socket) -> None:
        """A server host that vanishes without a word is noticed also while a poll is parked."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    async def _request(self, path: str, body: bytes) -> tuple[int, bytes]:
        assert self._streams is not None
        http, (reader, writer) = self._http, self._streams
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        head = http.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        writer.write(head + (http.send(h11.Data(data=body)) or b"") + (http.send(h11.EndOfMessage()) or b""))
        status, answer = 0, bytearray()
        while True:
            match event := http.next_event():
                case h11.NEED_DATA:
                    received = await reader.read(65_536)
                    if not received and not status:
                        raise EOFError("the server closed the connection")
                    http.receive_data(received)
                case h11.Response(status_code=code):
                    status = code
                case h11.Data(data=data):
                    answer += data
                    if len(answer) > MAX_MESSAGE_BYTES:
                        raise EOFError(f"the answer has more than {MAX_MESSAGE_BYTES} bytes")
                case h11.EndOfMessage():
                    break
                case _:
                    assert isinstance(event, h11.InformationalResponse)
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
        else:
            await self.close()
        return status, bytes(answer)


def _read(kind: type[T], status: int, body: bytes) -> T:
    """The answer. Raises the `ProtocolError` that it is, or `Unreachable` if it is none of ours."""
    if status == 200:
        try:
            return decode(kind, body)
        except ProtocolError as error:
            raise Unreachable("HTTP", f"the answer is not rdzv-server's: {error}") from None
    try:
        refusal = decode(ErrorReply, body)
    except ProtocolError:
        raise Unreachable("HTTP", f"status {status}: is this an rdzv-server?") from None
    raise from_code(refusal.code, refusal.message, refusal.leader, refusal.leadership)


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
