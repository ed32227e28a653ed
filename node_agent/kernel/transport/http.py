"""HTTP transport to a server: one request at a time, over a connection that stays open between requests.

It does not use aiohttp: that import takes longer than everything else between `exec` and the first worker (ADR 2). It
ignores proxies in the environment. A proxy would hide the address by which the other nodes reach this one.
"""

import asyncio
from typing import TypeVar

from rdzv_protocol import messages, paths
from rdzv_protocol import words as protocol_words
from rdzv_protocol.codec import decode, encode, learn
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import NotLeader, ProtocolError, ServerUnavailable, Unauthorized, from_code
from rdzv_protocol.flag_values import address
from rdzv_protocol.timing import ANSWER_TIMEOUT_S, LEADER_HOLD_S, answer_timeout_s

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.connecting import Connector
from node_agent.kernel.transport.http_client import FAILURES, HttpConnection, authority
from node_agent.kernel.transport.own_files import OwnFiles

T = TypeVar("T")

_PATHS: dict[type[messages.Request | messages.LeaderRequest], str] = {
    messages.JoinRequest: paths.JOIN,
    messages.PollRequest: paths.POLL,
    messages.ReportRequest: paths.REPORT,
    messages.SuspectRequest: paths.SUSPECT,
    messages.LeaveRequest: paths.LEAVE,
    messages.AnswerRequest: paths.ANSWER,
    messages.LeaderRequest: paths.LEADER,
}
_TIMED_OUT = 504
_OF_PROXIES = (502, 503, _TIMED_OUT)
"""Statuses that a proxy returns when the server behind it does not answer."""


class HttpTransport:
    """Transport to `host:port`."""

    def __init__(self, host: str, port: int, credentials: Credentials | None) -> None:
        self._host, self._port = host, port
        self._credentials = credentials or Credentials()
        self._headers = [("Host", authority(host, port)), ("Content-Type", paths.MEDIA_TYPE)]
        self._files = OwnFiles(self._credentials)
        self._connector = Connector(host, port, self._files)
        self._connection: HttpConnection | None = None
        self._silent: HttpConnection | None = None
        """Connection without an answer in time. It stays open until another one gets an answer."""
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        """Seconds of silence, from the run's lease, after which the connection is dropped."""

    async def connect(self) -> str:
        if self._connection and self._connection.is_over:
            self._drop()  # it closed or broke while it was idle
        if self._connection is None:
            self._connection = HttpConnection(await self._connector.open(), MAX_MESSAGE_BYTES)
        name = self._connection.streams[1].get_extra_info("sockname")
        if name is None:  # with TLS, a broken connection has no peer name
            self._drop()
            raise Unreachable("HTTP", words.connection.BROKE, is_cut=True)
        address: str = name[0]
        return address

    async def exchange(self, request: messages.Request) -> messages.Reply | messages.Ack:
        if isinstance(request, messages.JoinRequest):
            await self.connect()
            await self._prove()
        if not isinstance(request, messages.JoinRequest | messages.PollRequest):
            return await self._ask(messages.Ack, request, self.answer_timeout_s)
        reply = await self._ask(messages.Reply, request, self.answer_timeout_s)
        self.answer_timeout_s = answer_timeout_s(reply.lease_s)
        return reply

    async def ask_leader(self, request: messages.LeaderRequest) -> messages.LeaderReply:
        """Ask one of several servers for the leader. Raises as `exchange` does."""
        return await self._ask(messages.LeaderReply, request, LEADER_HOLD_S + 5.0)

    async def _ask(self, kind: type[T], request: messages.Request | messages.LeaderRequest, timeout_s: float) -> T:
        asyncio.get_running_loop().call_soon(learn, kind)  # while the server works
        token, ask = self._credentials.token, (_PATHS[type(request)], encode(request), timeout_s)
        status, answer = await self._post(token, *ask)
        if status == Unauthorized.status and await self._files.has_other_token(token):
            status, answer = await self._post(self._credentials.token, *ask)
        try:
            reply = _read(kind, status, answer)
        except (NotLeader, ServerUnavailable):
            raise
        except ProtocolError as error:
            await self._prove()
            if isinstance(error, Unauthorized):
                raise self._unauthorized() from None
            raise
        self._connector.answered()
        return reply

    def _unauthorized(self) -> Unauthorized:
        """Return the refusal in words for this node's user: the server's own text knows neither server nor file."""
        at, file = address(self._host, self._port), self._credentials.token_file
        if file is None:
            return Unauthorized(words.connection.asks_for_token(at, self._credentials.token_flag))
        return Unauthorized(protocol_words.tls.wrong_token(at, file))

    async def _prove(self) -> None:
        """Raise `Unreachable` if this server has moved and another one answers in its place."""
        try:
            await self._connector.prove()
        except Unreachable:
            await self.close()
            raise

    async def _post(self, token: str | None, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        await self.connect()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(token, path, body)
        except TimeoutError:
            self._close_silent()
            self._silent, self._connection = self._connection, None
            raise Unreachable("HTTP", words.connection.request_unanswered(timeout_s)) from None
        except BaseException as error:
            self._drop()
            if isinstance(error, FAILURES):
                broke = Unreachable("HTTP", str(error) or type(error).__name__, is_cut=True)
                raise self._connector.tls_failure(error) or broke from None
            raise

    async def close(self) -> None:
        self._close_silent()
        self._drop()

    def _drop(self) -> None:
        """Close the latest connection."""
        if self._connection:
            self._connection.close()
            self._connection = None

    @property
    def is_silent(self) -> bool:
        """Whether a connection without an answer in time is open."""
        return self._silent is not None

    def _close_silent(self) -> None:
        if self._silent:
            self._silent.close()
            self._silent = None

    async def _request(self, token: str | None, path: str, body: bytes) -> tuple[int, bytes]:
        connection = self._connection
        assert connection
        headers = self._headers if token is None else [*self._headers, ("Authorization", f"Bearer {token}")]
        head = await connection.ask("POST", path, headers, body)
        answer = await connection.body()
        if not connection.is_reusable:
            self._drop()
        self._close_silent()
        return head.status_code, answer


def _read(kind: type[T], status: int, body: bytes) -> T:
    """Return the decoded answer. Raises it if it is a `ProtocolError`, `Unreachable` if it is not from rdzv-server."""
    if status == 200:
        try:
            return decode(kind, body)
        except ProtocolError as error:
            raise Unreachable("HTTP", words.connection.answer_unreadable(str(error))) from None
    try:
        refusal = decode(messages.ErrorReply, body)
    except ProtocolError:
        raise _not_ours(status) from None
    raise from_code(refusal.code, refusal.message, refusal.leader, refusal.leadership)


def _not_ours(status: int) -> Unreachable:
    """Return the failure for an answer from a proxy or another program."""
    if status in _OF_PROXIES:
        has_timed_out = status == _TIMED_OUT
        return Unreachable("proxy", words.connection.proxy_answered(status, has_timed_out), is_cut=has_timed_out)
    return Unreachable("another program", words.connection.other_program_answered(status))
