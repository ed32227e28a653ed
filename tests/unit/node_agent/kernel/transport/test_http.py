"""HTTP transport, with servers of every kind."""

import asyncio
import os
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import rdzv_protocol.credentials
from msgspec.structs import replace
from rdzv_protocol import codec, paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import AgentFenced, ProtocolError, ServerUnavailable, Unauthorized
from rdzv_protocol.messages import Ack, ErrorReply, PollRequest, Reply
from rdzv_protocol.tls_files import TlsFiles
from rdzv_protocol.words import tls as tls_words

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport import connecting, name_lookup, own_files
from node_agent.kernel.transport.http import HttpTransport
from tests.support.lost_packets import longest_pause_ms
from tests.support.message_search import pattern
from tests.support.process_info import until
from tests.unit.node_agent.kernel.transport.http_server import LEAVE, POLL, REPLY, HttpServer, http

ACK = Ack(epoch="e")


HANG_UP = b"(hang up)"


class PlayedServer(HttpServer):
    """Answers each request as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bytes] = []
        """One for each request. After an answer that ends with `HANG_UP`, the connection is closed."""
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.before_answer: Callable[[], Awaitable[object]] = nothing

    async def answer(self, head: str, body: bytes) -> tuple[bytes, bool]:
        self.heads.append(head)
        self.bodies.append(body)
        await self.before_answer()
        answer = self.answers.pop(0)
        return answer.removesuffix(HANG_UP), not answer.endswith(HANG_UP)

    def transport(self, token: str | None = None) -> HttpTransport:
        credentials = Credentials()
        credentials.token = token
        return HttpTransport(*self.endpoint, credentials)


async def nothing() -> None:
    pass


@pytest.fixture
async def server() -> AsyncIterator[PlayedServer]:
    server = PlayedServer()
    await server.serve()
    yield server
    await server.close()


@pytest.fixture
async def transport(server: PlayedServer) -> AsyncIterator[HttpTransport]:
    transport = server.transport()
    yield transport
    await transport.close()


# Requests and answers.


async def test_a_poll_is_posted_and_its_reply_returned(server, transport):
    server.answers = [http(REPLY)]
    assert await transport.exchange(POLL) == REPLY
    assert server.heads[0].startswith(f"POST {paths.POLL} HTTP/1.1\r\n")
    assert f"Content-Type: {paths.MEDIA_TYPE}\r\n" in server.heads[0]
    assert decode(PollRequest, server.bodies[0]) == POLL


async def test_requests_share_one_connection(server, transport):
    server.answers = [http(REPLY), http(ACK), http(REPLY)]
    assert [await transport.exchange(request) for request in (POLL, LEAVE, POLL)] == [REPLY, ACK, REPLY]
    assert [head.split()[1] for head in server.heads] == [paths.POLL, paths.LEAVE, paths.POLL]
    assert server.connections == 1


async def test_the_agent_learns_the_answers_type_while_the_server_works(server, transport, monkeypatch):
    monkeypatch.setattr(codec, "_known", set())
    await transport.connect()
    assert Reply not in codec._known
    server.before_answer = lambda: until(lambda: Reply in codec._known)
    server.answers = [http(REPLY)]
    assert await transport.exchange(POLL) == REPLY


CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in encode(REPLY)) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
        b"HTTP/1.1 102 Processing\r\n\r\n" + http(REPLY),
    ],
    ids=["in pieces", "after an interim answer"],
)
async def test_a_late_answer_is_accepted(server, transport, answer):
    server.answers = [answer]
    assert await transport.exchange(POLL) == REPLY


async def test_after_an_announced_close_the_connection_is_reopened(server, transport):
    server.answers = [http(REPLY, "200 OK", "Connection: close") + HANG_UP, http(ACK)]
    assert await transport.exchange(POLL) == REPLY
    assert await transport.exchange(LEAVE) == ACK
    assert server.connections == 2


async def test_packets_fit_every_path(server, transport):
    server.answers = [http(REPLY)]
    await transport.exchange(POLL)
    longest_s = server.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    longest_c = (
        transport._connection.streams[1].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    )
    assert max(longest_s, longest_c) + 60 <= 1280, "IPv6's and TCP's headers included: the least MTU there is"


async def test_lost_packets_are_sent_again_at_least_every_second(server, transport):
    server.answers = [http(REPLY)]
    await transport.exchange(POLL)
    assert longest_pause_ms(transport._connection.streams[1].get_extra_info("socket")) == 1000


@pytest.mark.parametrize("token", ["secret", None])
async def test_requests_carry_the_token(server, token):
    transport = server.transport(token)
    server.answers = [http(REPLY)]
    await transport.exchange(POLL)
    assert ("Authorization: Bearer secret\r\n" in server.heads[0]) == (token is not None)
    assert ("Authorization" in server.heads[0]) == (token is not None)
    await transport.close()


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_the_host_is_named_as_http_wants_it(host, said):
    server = PlayedServer()
    await server.serve(host)
    transport = server.transport()
    server.answers = [http(REPLY)]
    await transport.exchange(POLL)
    assert f"Host: {said}:{server.port}\r\n" in server.heads[0]
    assert await transport.connect() == host
    await transport.close()
    await server.close()


# Refusals.


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("agent_fenced", "409 Conflict", AgentFenced),
        ("unavailable", "503 Service Unavailable", ServerUnavailable),
        ("from_the_future", "409 Conflict", ProtocolError),
    ],
)
async def test_a_refusal_arrives_as_the_error_that_it_is(server, transport, code, status, error):
    server.answers = [http(ErrorReply(code=code, message="not today"), status), http(REPLY)]
    with pytest.raises(error, match="not today"):
        await transport.exchange(POLL)
    assert await transport.exchange(POLL) == REPLY
    assert server.connections == 1, "a refusal is an answer"


# Responses that are not answers.


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
async def test_a_link_local_address_without_its_interface():
    error = await unreachable(HttpTransport("fe80::1", 29_400, None))
    assert str(error) == f"connect: fe80::1: {words.connection.names_no_interface('fe80::1')}"


async def unreachable(transport: HttpTransport, request=POLL) -> Unreachable:
    with pytest.raises(Unreachable) as error:
        await transport.exchange(request)
    return error.value


@pytest.mark.parametrize("has_file", [True, False])
async def test_a_rejected_token_is_reported_with_server_and_file(server, tmp_path, has_file):
    (tmp_path / "token").write_text("guess")
    credentials = (
        Credentials(str(tmp_path / "token")) if has_file else Credentials(token_flag="--rdzv-conf: token_file")
    )
    transport = HttpTransport(*server.endpoint, credentials)
    server.answers = [http(ErrorReply(code="unauthorized", message="(the server's own words)"), "401 Unauthorized")]
    at = "{}:{}".format(*server.endpoint)
    with pytest.raises(Unauthorized) as refusal:
        await transport.exchange(POLL)
    assert str(refusal.value) == (
        tls_words.wrong_token(at, str(tmp_path / "token"))
        if has_file
        else words.connection.asks_for_token(at, "--rdzv-conf: token_file")
    )
    await transport.close()


NO_ANSWERS = {
    "closed": (HANG_UP, words.connection.CLOSED),
    "half a head": (b"HTTP/1.1 200" + HANG_UP, words.connection.CLOSED),
    "half a body": (http(REPLY)[:-5] + HANG_UP, words.connection.CUT_OFF),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", words.connection.answer_invalid("")),
    "endless": (http(b"x" * (MAX_MESSAGE_BYTES + 1)), words.connection.answer_too_long(MAX_MESSAGE_BYTES)),
    "another message": (http(ACK), words.connection.answer_unreadable("Reply.revision is missing")),
    "html": (http(b"<html>hello</html>"), words.connection.answer_unreadable("")),
    "404": (http(b"<html>no</html>", "404 Not Found"), words.connection.other_program_answered(404)),
    "redirect": (http(b"", "302 Found", "Location: /"), words.connection.other_program_answered(302)),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_an_invalid_answer_is_reported_and_may_be_tried_again(server, transport, name):
    answer, what = NO_ANSWERS[name]
    server.answers = [answer]
    error = await unreachable(transport)
    stage = "another program" if name in ("404", "redirect") else "HTTP"
    assert str(error).startswith(f"{stage}: {what}") and error.stage == stage
    server.answers = [http(REPLY)]
    assert await transport.exchange(POLL) == REPLY


@pytest.mark.parametrize(
    ("status", "has_timed_out"),
    [("502 Bad Gateway", False), ("503 Service Unavailable", False), ("504 Gateway Timeout", True)],
)
async def test_a_proxy_without_a_server_is_not_taken_for_the_server(server, transport, status, has_timed_out):
    server.answers = [http(b"<html>nginx</html>", status)]
    error = await unreachable(transport)
    assert (error.stage, error.detail) == ("proxy", words.connection.proxy_answered(int(status[:3]), has_timed_out))
    assert error.is_cut == has_timed_out


async def test_a_connection_closed_between_two_polls_is_reopened(server, transport):
    server.answers = [http(REPLY) + HANG_UP]
    await transport.exchange(POLL)
    error = await unreachable(transport)
    assert str(error) == f"HTTP: {words.connection.CLOSED}" and error.is_cut
    server.answers = [http(REPLY)]
    assert await transport.exchange(POLL) == REPLY


async def test_a_connection_with_an_unrequested_answer_is_reopened(server, transport):
    """For example, a proxy reports that the connection was idle for too long."""
    late = http(b"", "408 Request Timeout")
    server.answers = [http(REPLY), http(REPLY)]
    await transport.exchange(POLL)
    server.send(late)
    await until(lambda: transport._connection.is_over)
    assert await transport.exchange(POLL) == REPLY
    assert server.connections == 2


async def test_a_tls_connection_reset_between_two_polls_is_reopened(authority):
    pair = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    server = PlayedServer()
    await server.serve(tls=context)
    transport = HttpTransport(*server.endpoint, authority.credentials())
    server.answers = [http(REPLY), http(REPLY)]
    await transport.exchange(POLL)
    server.reset()
    async with asyncio.timeout(10.0):
        while transport._connection.streams[0].exception() is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await transport.exchange(POLL) == REPLY
    assert server.connections == 2
    await transport.close()
    await server.close()


async def test_a_server_that_says_nothing_is_given_up_in_time(server, transport):
    transport.answer_timeout_s = 0.05
    server.before_answer = asyncio.Event().wait
    server.answers = [b"never"]
    assert str(await unreachable(transport)) == f"HTTP: {words.connection.request_unanswered(0.05)}"
    server.before_answer, server.answers = nothing, [http(REPLY)]
    assert await transport.exchange(POLL) == REPLY
    assert server.connections == 2, "a late answer must not be taken for the next one"


async def test_a_connection_without_an_answer_stays_open_until_the_next_one_has_brought_one(server, transport):
    """Its end would tell the server that the agent may be gone, while the agent's next poll is still on its way."""
    may_answer = asyncio.Event()
    server.answers, server.before_answer = [http(REPLY)], may_answer.wait
    transport.answer_timeout_s = 0.05
    await unreachable(transport)
    await transport.connect()
    await until(lambda: server.connections == 2)
    assert server.open == 2
    server.before_answer = nothing
    await transport.exchange(POLL)
    await until(lambda: server.open == 1)


async def test_only_the_latest_unanswered_connection_stays_open_until_the_end(server, transport):
    server.before_answer = asyncio.Event().wait
    transport.answer_timeout_s = 0.05
    for _ in range(3):
        await unreachable(transport)
    await until(lambda: (server.connections, server.open) == (3, 1))
    await transport.close()
    await until(lambda: server.open == 0)


@pytest.mark.parametrize(("lease_s", "silence_s"), [(2.0, 2.0), (6.0, 4.5), (10.0, 7.5), (60.0, 15.0)])
async def test_a_server_that_falls_silent_is_given_up_within_the_lease(server, transport, lease_s, silence_s):
    server.answers = [http(replace(REPLY, lease_s=lease_s))]
    await transport.exchange(POLL)
    assert transport.answer_timeout_s == silence_s


async def test_an_exchange_that_is_given_up_does_not_leave_its_answer_to_the_next(server, transport):
    asked = asyncio.Event()

    async def hold() -> None:
        asked.set()
        await asyncio.Event().wait()

    server.before_answer, server.answers = hold, [b"never"]
    exchange = asyncio.create_task(transport.exchange(POLL))
    await asked.wait()
    exchange.cancel()
    await asyncio.gather(exchange, return_exceptions=True)
    server.before_answer, server.answers = nothing, [http(ACK)]
    assert await transport.exchange(LEAVE) == ACK
    assert server.connections == 2


# No server at all.


async def test_a_port_without_a_listener(unused_tcp_port):
    error = await unreachable(HttpTransport("127.0.0.1", unused_tcp_port, None))
    assert str(error) == "connect: 127.0.0.1: Connection refused"
    assert error.stage == "connect"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "a..b"])
async def test_an_invalid_host_name_is_unreachable(host):
    error = await unreachable(HttpTransport(host, 29_400, None))
    assert error.stage == "name"
    assert str(error).startswith(f"name: {host}: ")


async def test_a_host_that_does_not_answer_is_given_up_in_time(server, transport, monkeypatch):
    async def silence(*args, **kwargs) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(connecting, "_connected", silence)
    error = await unreachable(transport)
    assert str(error) == f"connect: {words.connection.address_silent('127.0.0.1', 0.05)}"


async def test_every_address_of_a_name_is_tried(server, monkeypatch):
    """The server listens only on IPv4; its name has an IPv6 address too."""
    transport = HttpTransport("both.example", server.port, None)

    async def both(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET6, ("::1", server.port)), (socket.AF_INET, ("127.0.0.1", server.port))]

    monkeypatch.setattr(name_lookup, "addresses", both)
    assert await transport.connect() == "127.0.0.1"
    await transport.close()


async def test_a_silent_address_delays_the_others_of_its_name_only_for_a_moment(server, monkeypatch):
    """For example, a firewall drops the packets of an IPv6 address."""
    connected = connecting._connected

    async def both(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET, (host, server.port)) for host in ("127.0.0.9", "127.0.0.8", "127.0.0.1")]

    async def silent(family: int, address: tuple[str, int]) -> socket.socket:
        if address[0] == "127.0.0.9":
            await asyncio.Event().wait()
        return await connected(family, address)

    monkeypatch.setattr(name_lookup, "addresses", both)
    monkeypatch.setattr(connecting, "_connected", silent)
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 1_000.0)
    transport = HttpTransport("three.example", server.port, None)
    async with asyncio.timeout(30):
        assert await transport.connect() == "127.0.0.1"
    await transport.close()


async def test_a_connection_reset_at_once_counts_as_broken(monkeypatch):
    opened = asyncio.open_connection
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def open_and_reset(**given):
            streams = await opened(**given)
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            with pytest.raises(ConnectionResetError):
                await streams[0].read()
            return streams

        monkeypatch.setattr(asyncio, "open_connection", open_and_reset)
        with pytest.raises(Unreachable, match=pattern(words.connection.BROKE)):
            await HttpTransport("127.0.0.1", listener.getsockname()[1], None).connect()


# Files of the agent whose disk hangs.


async def test_a_new_connection_uses_the_certificates_read_last_if_their_disk_hangs(authority, monkeypatch):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("server"))
    server = PlayedServer()
    await server.serve(tls=context)
    credentials = authority.credentials()
    credentials.context()
    transport, disk = HttpTransport(*server.endpoint, credentials), HungDisk()
    monkeypatch.setattr(own_files, "READ_S", 0.01)
    monkeypatch.setattr(TlsFiles, "context", disk.read)
    server.answers = [http(REPLY) + HANG_UP, http(REPLY)]
    for _ in range(2):
        assert await transport.exchange(POLL) == REPLY
        await until(lambda: transport._connection.is_over or server.connections == 2)
    assert (server.connections, disk.reads) == (2, 1), "one thread waits for the disk"
    disk.answers.set()
    await transport.close()
    await server.close()


async def test_a_refused_token_whose_disk_hangs_is_a_refusal(server, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("old")
    credentials, disk = Credentials(str(tmp_path / "token")), HungDisk()
    monkeypatch.setattr(own_files, "READ_S", 0.01)
    monkeypatch.setattr(rdzv_protocol.credentials, "read_token", disk.read)
    transport = HttpTransport(*server.endpoint, credentials)
    refusal = http(ErrorReply(code="unauthorized", message=""), "401 Unauthorized")
    server.answers = [refusal, refusal]
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await transport.exchange(POLL)
    assert disk.reads == 1, "one thread waits for the disk"
    disk.answers.set()
    await transport.close()


class HungDisk:
    """Disk that hangs until `answers` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.answers = threading.Event()

    def read(self, path: object = None) -> str:
        self.reads += 1
        self.answers.wait()
        return "new"
