"""HTTP transport to a server: HTTP/1.1 with h11 over asyncio streams, one request at a time, kept open between them.

Not aiohttp: its import alone takes longer than everything else between `exec` and the first worker (see docs/adr).
Proxies in the environment are never used: the server is a neighbour, and a proxy would hide the address by which the
other nodes reach this one.
"""

import asyncio
import os
import socket
from typing import Any, TypeVar

import h11
from rdzv_protocol import messages, paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import ProtocolError, Unauthorized, from_code
from rdzv_protocol.flag_values import address
from rdzv_protocol.timing import ANSWER_TIMEOUT_S, LEADER_HOLD_S

from node_agent.core.backoff import Unreachable
from node_agent.transport.name_lookup import Address, addresses

CONNECT_TIMEOUT_S = 5.0
SEGMENT_BYTES = 1220
"""Most bytes that a packet of ours carries, both ways: it fits IPv6's least MTU of 1280, so that a path which swallows
large packets without a word lets every message through."""

T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_PATHS: dict[type[messages.Request | messages.LeaderRequest], str] = {
    messages.JoinRequest: paths.JOIN,
    messages.PollRequest: paths.POLL,
    messages.ReportRequest: paths.REPORT,
    messages.SuspectRequest: paths.SUSPECT,
    messages.LeaveRequest: paths.LEAVE,
    messages.AnswerRequest: paths.ANSWER,
    messages.LeaderRequest: paths.LEADER,
}

_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class HttpTransport:
    """Transport to `host:port`."""

    def __init__(self, host: str, port: int, credentials: Credentials | None) -> None:
        self._host, self._port = host, port
        self._credentials = credentials or Credentials()
        self._headers = [("Host", _authority(host, port)), ("Content-Type", paths.MEDIA_TYPE)]
        self._streams: Streams | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def connect(self) -> str:
        if self._streams and self._streams[0].at_eof():
            await self.close()  # the server closed it while it was idle
        if self._streams is None:
            self._streams = await self._open()
            self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_MESSAGE_BYTES)
        address: str = self._streams[1].get_extra_info("sockname")[0]
        return address

    async def exchange(self, request: messages.Request) -> messages.Reply | messages.Ack:
        if isinstance(request, messages.JoinRequest | messages.PollRequest):
            return await self._ask(messages.Reply, request, ANSWER_TIMEOUT_S)
        return await self._ask(messages.Ack, request, ANSWER_TIMEOUT_S)

    async def ask_leader(self, request: messages.LeaderRequest) -> messages.LeaderReply:
        """Ask one of several servers who leads. Raises as `exchange` does."""
        return await self._ask(messages.LeaderReply, request, LEADER_HOLD_S + 5.0)

    async def _ask(self, kind: type[T], request: messages.Request | messages.LeaderRequest, timeout_s: float) -> T:
        token, ask = self._credentials.token, (_PATHS[type(request)], encode(request), timeout_s)
        status, answer = await self._post(token, *ask)
        if status == Unauthorized.status and self._credentials.renew(token):
            status, answer = await self._post(self._credentials.token, *ask)
        return _read(kind, status, answer)

    async def _post(self, token: str | None, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        await self.connect()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(token, path, body)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unreachable("HTTP", f"no answer for {timeout_s:g} s") from None
            if isinstance(error, OSError | EOFError | h11.RemoteProtocolError):
                raise self._tls_failure(error) or Unreachable("HTTP", str(error) or type(error).__name__) from None
            raise

    async def close(self) -> None:
        if self._streams:
            self._streams[1].transport.abort()  # with TLS, `close` would wait for the server's close_notify
            self._streams = None

    async def _open(self) -> Streams:
        failure = Unreachable("connect", "no address")
        for family, where in await self._resolve():
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._open_at(family, where)
            except TimeoutError:
                failure = Unreachable("connect", f"{where[0]}: no answer within {CONNECT_TIMEOUT_S:g} s")
            except OSError as error:
                failure = self._tls_failure(error) or Unreachable("connect", f"{where[0]}: {_words(error)}")
            except ValueError as error:  # a file of ours
                failure = Unreachable("TLS", str(error))
        raise failure

    async def _open_at(self, family: int, address: tuple[Any, ...]) -> Streams:
        tls = self._credentials.context()
        connection = await _connected(family, address)
        return await asyncio.open_connection(
            sock=connection, limit=MAX_MESSAGE_BYTES, ssl=tls, server_hostname=self._host if tls else None
        )

    def _tls_failure(self, error: Exception) -> Unreachable | None:
        """Failure in TLS's own words; None if the error is about something else."""
        why = self._credentials.tls and self._credentials.tls.explain(error, self._host)
        return Unreachable("TLS", why, is_final=True) if why else None

    async def _resolve(self) -> list[Address]:
        try:
            return await addresses(self._host, self._port)
        except (socket.gaierror, UnicodeError) as error:
            raise Unreachable("name", f"{self._host}: {getattr(error, 'strerror', None) or error}") from None

    async def _request(self, token: str | None, path: str, body: bytes) -> tuple[int, bytes]:
        assert self._streams is not None
        http, (reader, writer) = self._http, self._streams
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        sent = (h11.Request(method="POST", target=path, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        writer.write(b"".join(http.send(event) or b"" for event in sent))
        status, answer = 0, bytearray()
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                received = await reader.read(65_536)
                if not received and not status:
                    raise EOFError("the server closed the connection")
                http.receive_data(received)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                answer += event.data
                if len(answer) > MAX_MESSAGE_BYTES:
                    raise EOFError(f"the answer has more than {MAX_MESSAGE_BYTES} bytes")
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
        else:
            await self.close()
        return status, bytes(answer)


async def _connected(family: int, address: tuple[Any, ...]) -> socket.socket:
    """A connection to this address. A server host that vanishes is noticed also while a poll is parked."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        for level, option, value in _SOCKET_OPTIONS:
            connection.setsockopt(level, option, value)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _read(kind: type[T], status: int, body: bytes) -> T:
    """The answer. Raises the `ProtocolError` that it is, or `Unreachable` if it is none of ours."""
    if status == 200:
        try:
            return decode(kind, body)
        except ProtocolError as error:
            raise Unreachable("HTTP", f"the answer is not rdzv-server's: {error}") from None
    try:
        refusal = decode(messages.ErrorReply, body)
    except ProtocolError:
        raise Unreachable("HTTP", f"status {status}: is this an rdzv-server?") from None
    raise from_code(refusal.code, refusal.message, refusal.leader, refusal.leadership)


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__


def _authority(host: str, port: int) -> str:
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""  # no name: looking it up says so
    return address(host, port)
