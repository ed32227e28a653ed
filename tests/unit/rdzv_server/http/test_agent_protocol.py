"""Agents' plain requests are answered without aiohttp. Everything else is aiohttp's, as if it came first."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st
from rdzv_protocol import paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import Ack, ErrorReply, LeaveRequest, PollRequest, Reply, Wait

from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.config import Limits
from rdzv_server.http.agent_protocol import (
    MOST_BYTES,
    MOST_HEADERS,
    MOST_PIECES,
    AgentAnswer,
    AgentProtocol,
    AgentRequest,
    AgentServer,
    parse,
)
from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.request_handler import RequestHandler
from rdzv_server.server import RendezvousServer, bind
from tests.support.process_info import until
from tests.support.scenario import a_join, settings_of

PATIENCE_S = 20.0
START = b"POST /v1/agent/poll HTTP/1.1\r\n"
HOST, KIND = b"Host: server\r\n", b"Content-Type: application/msgpack\r\n"
PLAIN = START + HOST + KIND
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: server\r\n\r\n"


def request(path: str, message: object, extra: bytes = b"") -> bytes:
    body = encode(message)
    head = f"POST {path} HTTP/1.1\r\n".encode() + HOST + KIND + extra
    return head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


POLL = request(paths.POLL, PollRequest(run_id="r", agent_id="unknown", revision=0))

UNUSUAL = {
    "no length": PLAIN + b"\r\n",
    "no host": START + KIND + b"Content-Length: 3\r\n\r\nabc",
    "no type": START + HOST + b"Content-Length: 3\r\n\r\nabc",
    "another type": START + HOST + b"Content-Type: application/json\r\nContent-Length: 3\r\n\r\nabc",
    "chunked": PLAIN + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "length and chunks": PLAIN + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "two lengths": PLAIN + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a header twice": PLAIN + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 3\r\n\r\nabc",
    "compressed": PLAIN + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "a cookie": PLAIN + b"Cookie: a=b\r\nContent-Length: 3\r\n\r\nabc",
    "an expectation": PLAIN + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    "an upgrade": PLAIN + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    "the last request": PLAIN + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc",
    "bytes beyond ASCII": PLAIN + b"X: \xff\r\nContent-Length: 3\r\n\r\nabc",
    "a folded header": PLAIN + b"X: a\r\n b\r\nContent-Length: 3\r\n\r\nabc",
    "a space before the colon": PLAIN + b"X : a\r\nContent-Length: 3\r\n\r\nabc",
    "lines without a carriage return": PLAIN.replace(b"\r\n", b"\n") + b"Content-Length: 3\n\nabc",
    "many headers": PLAIN + b"".join(b"X-%d: y\r\n" % n for n in range(MOST_HEADERS)) + b"Content-Length: 3\r\n\r\nabc",
    "a connection that a proxy ends": PLAIN + b"Proxy-Connection: close\r\nContent-Length: 3\r\n\r\nabc",
    "a body that is too large": PLAIN + b"Content-Length: 9000\r\n\r\nabc",
    "two requests": 2 * (PLAIN + b"Content-Length: 3\r\n\r\nabc"),
    "more than the body": PLAIN + b"Content-Length: 3\r\n\r\nabcd",
}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL)
def test_aiohttp_handles_an_unusual_request(data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize("size", [0, 3, 4_000])
def test_a_plain_request_is_whole_with_the_last_byte_of_its_body(size: int) -> None:
    data = (
        PLAIN + b"Connection: keep-alive\r\nX-A: \t b \r\n" + f"Content-Length: {size}\r\n\r\n".encode() + b"x" * size
    )
    for end in range(len(START), len(data)):
        begun = parse(data[:end])
        assert begun and not begun.is_whole
    whole = parse(data)
    assert whole and whole.is_whole
    assert (whole.path, whole.headers["x-a"], whole.body) == (paths.POLL, "b", b"x" * size)


def parsed_by_aiohttp(data: bytes) -> AgentRequest:
    loop = Mock(spec=asyncio.AbstractEventLoop)
    parser = HttpRequestParser(Mock(), loop, 2**16, max_line_size=8190, max_headers=128, max_field_size=8190)
    ((head, body),), _, _ = parser.feed_data(data)
    assert (head.method, head.should_close, head.chunked, head.compression) == ("POST", False, False, None)
    return AgentRequest(
        head.path, {name.lower(): value for name, value in head.headers.items()}, body.read_nowait(), "", is_tls=False
    )


PIECES = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\0", b"x", b",", b";", b"0", b"3", b"-", b"\xff", b"\r\n\r\n", KIND,
     b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"POST ", b"HTTP/1.1"]
)  # fmt: skip


NAMES = st.sampled_from([b"Authorization", b"X-Forwarded-For", b"user-agent", b"ORIGIN", b"Accept", b"Connection"])
VALUES = st.text(st.sampled_from('aZ09 \t:,;=-_"()/'), max_size=8).map(str.encode) | st.just(b"keep-alive")
CHANGE = st.tuples(st.integers(0, 250), st.integers(0, 2), PIECES)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=3), st.binary(max_size=5), CHANGE | st.none())
@example([], b"abc", None)
def test_aiohttp_reads_the_same_request_from_every_request_that_is_answered_without_it(
    headers: Iterable[tuple[bytes, bytes]], body: bytes, change: tuple[int, int, bytes] | None
) -> None:
    """Otherwise a proxy in between, which reads it as one of them does, would see another request."""
    data = PLAIN + b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    data += f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    if change:
        at, removed, added = change
        data = data[:at] + added + data[at + removed :]
    found = parse(data) if data.startswith(START) else None
    if found and found.is_whole:
        assert AgentRequest(found.path, found.headers, found.body, "", is_tls=False) == parsed_by_aiohttp(data)


class Site:
    """A real server, and connections to it."""

    def __init__(self, server: RendezvousServer, port: int, peers: ExitStack) -> None:
        self.server, self.port, self._peers = server, port, peers

    async def connect(self) -> "Peer":
        known = set(self._connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._peers.callback(writer.close)
        return Peer(self, known, reader, writer)

    @property
    def _connections(self) -> set[HttpConnection]:
        assert self.server._listener
        return self.server._listener._connections

    def new(self, known: set[HttpConnection]) -> HttpConnection:
        (connection,) = self._connections - known
        return connection

    @property
    def open(self) -> int:
        """Number of connections."""
        return len(self._connections)

    @property
    def parked(self) -> int:
        return self.server.service.load().long_polls


class Peer:
    """A client's end of a connection."""

    def __init__(
        self, site: Site, known: set[HttpConnection], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._site, self._known, self._reader, self.writer = site, known, reader, writer

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Return status, head and body of the next answer."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), head, await self._reader.readexactly(length)

    async def asks(self, data: bytes) -> tuple[int, bytes, bytes]:
        self.writer.write(data)
        return await self.answer()

    async def is_cut(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await self._reader.read() == b""

    @property
    def protocol(self) -> AgentProtocol | RequestHandler:
        return self._site.new(self._known).http


@asynccontextmanager
async def a_site(access: Access | None = None, **limits: float) -> AsyncIterator[Site]:
    """Run a server until the context ends, and close the peers' ends afterwards."""
    bound = bind("127.0.0.1", 0)
    with ExitStack() as peers:
        async with RendezvousServer() as server:
            await server.listen(bound, access=access, limits=Limits(**limits))
            yield Site(server, bound.getsockname()[1], peers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with a_site() as site:
        yield site


async def test_agents_requests_are_answered_without_aiohttp_and_the_next_other_request_with_it(site: Site) -> None:
    peer = await site.connect()
    for _ in range(2):
        status, head, body = await peer.asks(POLL)
        assert (status, decode(ErrorReply, body).code) == (409, AgentFenced.code)
        assert b"Server: rdzv-server\r\n" in head and b"\r\nDate: " in head and b"Connection" not in head
        assert isinstance(peer.protocol, AgentProtocol)
    assert (await peer.asks(HEALTHZ))[0] == 200
    assert isinstance(peer.protocol, RequestHandler)
    assert (await peer.asks(POLL))[0] == 409


async def received(peer: Peer, size: int) -> None:
    """Wait until the server has read so many bytes of a request, or has given the connection to aiohttp."""
    await until(lambda: isinstance(peer.protocol, RequestHandler) or len(peer.protocol._received) == size)


async def test_a_request_may_come_in_pieces(site: Site) -> None:
    peer = await site.connect()
    assert (await peer.asks(POLL))[0] == 409
    sent = 0
    for piece in (POLL[:50], POLL[50:-1]):
        peer.writer.write(piece)
        sent += len(piece)
        await received(peer, sent)
    assert (await peer.asks(POLL[-1:]))[0] == 409
    assert isinstance(peer.protocol, AgentProtocol)


LARGE = b"".join(name + b": " + b"x" * (MOST_BYTES // 2) + b"\r\n" for name in (b"X", b"Y"))


@pytest.mark.parametrize(
    "pieces",
    [[POLL[:50], *(POLL[at : at + 1] for at in range(50, 50 + MOST_PIECES)), POLL[50 + MOST_PIECES :]],
     [request(paths.POLL, PollRequest(run_id="r", agent_id="a", revision=0), LARGE)]],
    ids=["many pieces", "large"],
)  # fmt: skip
async def test_aiohttp_handles_a_large_request_and_one_in_many_pieces(pieces: list[bytes], site: Site) -> None:
    peer = await site.connect()
    assert (await peer.asks(POLL))[0] == 409
    sent = 0
    for piece in pieces:
        peer.writer.write(piece)
        sent += len(piece)
        await received(peer, sent)
    assert (await peer.answer())[0] == 409
    assert isinstance(peer.protocol, RequestHandler)


async def test_a_stranger_is_refused_by_the_head_of_its_request() -> None:
    async with a_site(access=Access([Token(Role.AGENT, b"x" * 20)])) as site:
        peer = await site.connect()
        assert (await peer.asks(POLL[:-1]))[0] == 401


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_requests_of_peers_that_have_left_do_not_disturb_other_turns(site: Site, is_reset: bool) -> None:
    """As when many agents are killed at once."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    loop = asyncio.get_running_loop()
    peers = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(150)]
    for peer in peers:
        peer.setblocking(False)
        await loop.sock_sendall(peer, POLL)
        assert (await loop.sock_recv(peer, 4_096)).startswith(b"HTTP/1.1 409 ")
    for peer in peers:  # the server has no turn meanwhile
        peer.send(POLL)
        if is_reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert (await (await site.connect()).asks(POLL))[0] == 409
    await until(lambda: site.open == 1)
    assert errors == []


@pytest.mark.parametrize("first", [HEALTHZ, POLL], ids=["of anybody", "of an agent"])
async def test_a_request_that_has_begun_before_an_answer_has_its_time_limit(first: bytes) -> None:
    async with a_site(request_s=0.3, idle_s=1_000.0) as site:
        peer = await site.connect()
        assert (await peer.asks(first + POLL[:-1]))[0] in (200, 409)
        await peer.is_cut()


async def test_a_parked_poll_is_cancelled_when_its_connection_closes(site: Site) -> None:
    peer = await site.connect()
    peer.writer.write(request(paths.JOIN, a_join("a", settings=settings_of("2:2"))))
    await until(lambda: site.parked == 1)
    protocol = peer.protocol
    assert isinstance(protocol, AgentProtocol) and protocol._task
    task = protocol._task
    peer.writer.close()
    await until(task.done)
    assert task.cancelled() and site.parked == 0


class Answers:
    """An AgentServer's answer: each request waits until the test lets it continue."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_continue = asyncio.Semaphore(0)

    async def __call__(self, request: AgentRequest, connection: HttpConnection) -> AgentAnswer:
        self.asked.append(request.path)
        await self.may_continue.acquire()
        return AgentAnswer(200, b"x")


def protocol_with(answers: Answers) -> tuple[AgentProtocol, Mock, Mock]:
    """Return a protocol, the transport of its connection, and what aiohttp's server makes."""
    connection = Mock(is_lost=False, is_closed=False, lacks_tls=False, is_unauthenticated=False)
    transport = Mock(spec=asyncio.Transport)
    transport.get_protocol.return_value = connection
    transport.get_extra_info.return_value = None
    others = Mock()
    protocol = AgentServer(answers, [paths.POLL], others, idle_s=60.0)()
    connection.http = protocol
    protocol.connection_made(transport)
    return protocol, transport, others.return_value


async def test_no_request_is_answered_while_the_peer_does_not_read() -> None:
    answers = Answers()
    protocol, transport, _ = protocol_with(answers)
    protocol.data_received(POLL)
    await until(lambda: len(answers.asked) == 1)
    protocol.data_received(POLL)
    transport.write.side_effect = lambda data: protocol.pause_writing()
    answers.may_continue.release()
    await until(lambda: transport.write.called)
    assert len(answers.asked) == 1 and not protocol.is_whole
    protocol.resume_writing()
    await until(lambda: len(answers.asked) == 2)
    protocol.connection_lost(None)


async def test_aiohttp_gets_a_request_that_came_early_once_the_peer_reads_again() -> None:
    protocol, _, http = protocol_with(Answers())
    protocol.pause_writing()
    protocol.data_received(HEALTHZ)
    assert not http.data_received.called
    protocol.resume_writing()
    http.data_received.assert_called_once_with(HEALTHZ)


async def test_a_request_that_came_early_has_arrived_once_it_is_its_turn() -> None:
    """Otherwise its time limit would go on while the server makes it wait."""
    answers = Answers()
    protocol, transport, _ = protocol_with(answers)
    protocol.data_received(POLL)
    protocol.data_received(POLL)
    answers.may_continue.release()
    await until(lambda: len(answers.asked) == 2)
    transport.get_protocol.return_value.request_arrived.assert_called_once_with()
    protocol.connection_lost(None)


async def test_aiohttp_closes_its_idle_connections_first_when_the_server_stops() -> None:
    others = Mock(shutdown=AsyncMock())
    await AgentServer(Answers(), [paths.POLL], others, idle_s=60.0).shutdown(0.5)
    assert [call[0] for call in others.method_calls] == ["pre_shutdown", "shutdown"]


async def test_requests_that_come_before_the_answer_are_answered_in_their_order(site: Site) -> None:
    peer = await site.connect()
    join = a_join("a", settings=settings_of("2:2"))
    peer.writer.write(request(paths.JOIN, join))
    await until(lambda: site.parked == 1)
    leave = request(paths.LEAVE, LeaveRequest(run_id=join.run_id, agent_id=join.agent_id, reason="test"))
    peer.writer.write(POLL + HEALTHZ + leave)
    other = await site.connect()
    poll = PollRequest(run_id=join.run_id, agent_id=join.agent_id, revision=0, hold=False)
    assert (await other.asks(request(paths.POLL, poll)))[0] == 200
    other.writer.write(request(paths.POLL, PollRequest(run_id=join.run_id, agent_id=join.agent_id, revision=99)))
    status, _, body = await peer.answer()  # a newer poll has released this one
    assert status == 200 and isinstance(decode(Reply, body).directive, Wait)
    assert [(await peer.answer())[0] for _ in range(3)] == [409, 200, 200]


async def test_no_more_is_read_from_a_peer_that_sends_on_without_waiting_for_its_answer(site: Site) -> None:
    peer = await site.connect()
    peer.writer.write(request(paths.JOIN, a_join("a", settings=settings_of("2:2"))))
    await until(lambda: site.parked == 1)
    peer.writer.write(b"x" * (4 << 20))
    protocol = peer.protocol
    assert isinstance(protocol, AgentProtocol)
    await until(lambda: protocol.is_full)
    assert protocol._transport and not protocol._transport.is_reading()
    assert len(protocol._later) < 3 * MOST_BYTES


async def test_an_idle_connection_is_closed_and_a_parked_one_is_not() -> None:
    async with a_site(idle_s=0.2) as site:
        parked, idle, half = [await site.connect() for _ in range(3)]
        parked.writer.write(request(paths.JOIN, a_join("a", settings=settings_of("2:2"))))
        await until(lambda: site.parked == 1)
        assert (await idle.asks(POLL))[0] == 409
        assert (await half.asks(POLL))[0] == 409
        half.writer.write(POLL[:50])
        await idle.is_cut()
        assert (await half.asks(POLL[50:]))[0] == 409
        assert site.parked == 1


async def test_a_server_that_stops_answers_what_it_has_and_closes() -> None:
    async with a_site() as site:
        parked, idle = [await site.connect() for _ in range(2)]
        assert (await idle.asks(POLL))[0] == 409
        parked.writer.write(request(paths.JOIN, a_join("a", settings=settings_of("2:2"))))
        await until(lambda: site.parked == 1)
        stopping = asyncio.create_task(site.server.stop())
        status, head, _ = await parked.answer()
        assert status == 200 and b"\r\nConnection: close\r\n" in head
        await parked.is_cut()
        await idle.is_cut()
        await stopping


async def test_an_error_of_the_server_is_answered_and_logged(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*given: object) -> Ack:
        raise RuntimeError("boom")

    monkeypatch.setattr(site.server.service, "ask", broken)
    peer = await site.connect()
    status, _, body = await peer.asks(POLL)
    assert status == 503 and "boom" not in decode(ErrorReply, body).message
    assert "boom" in caplog.text


async def test_an_error_of_the_protocol_is_logged_and_ends_the_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*given: object) -> AgentAnswer:
        raise RuntimeError("boom")

    peer = await site.connect()
    await peer.asks(POLL)
    protocol = peer.protocol
    assert isinstance(protocol, AgentProtocol)
    monkeypatch.setattr(protocol._server, "answer", broken)
    peer.writer.write(POLL)
    await peer.is_cut()
    assert "boom" in caplog.text
