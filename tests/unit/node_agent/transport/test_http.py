"""The HTTP line, against servers of every kind."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from rdzv_protocol import paths
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import AgentFenced, ProtocolError, ServerUnavailable
from rdzv_protocol.messages import Ack, ErrorReply, LeaveRequest, PollRequest, Reply, Wait

from node_agent.core.backoff import Unreachable
from node_agent.transport import http as client
from node_agent.transport.credentials import Credentials
from node_agent.transport.http import HttpTransport

POLL = PollRequest(run_id="run", agent_id="a.1", revision=7)
LEAVE = LeaveRequest(run_id="run", agent_id="a.1", reason="SIGTERM")
REPLY = Reply(epoch="e", revision=8, lease_s=10.0, directive=Wait(reason="waiting"))
ACK = Ack(epoch="e")


HANG_UP = b"(hang up)"


class HttpServer:
    """Reads one request after another and answers each as the test says."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        """One for each request; after one that ends with `HANG_UP` the connection is closed."""
        self.connections = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.before_answer: Callable[[], Awaitable[object]] = nothing

    async def serve(self, host: str) -> None:
        self._server = await asyncio.start_server(self._talk, host, 0)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        self.tasks: set[asyncio.Task[None]] = set()

    def link(self, token: str | None = None) -> HttpTransport:
        credentials = Credentials()
        credentials.token = token
        return HttpTransport(self.host, self.port, credentials)

    async def close(self) -> None:
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        self.socket = writer.get_extra_info("socket")
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next(line for line in head.splitlines() if line.startswith("Content-Length:"))
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(size.split()[1])))
                await self.before_answer()
                answer = self.answers.pop(0)
                writer.write(answer.removesuffix(HANG_UP))
                if answer.endswith(HANG_UP):
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


async def nothing() -> None:
    pass


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def refusal(code: str, message: str, status: str = "409 Conflict") -> bytes:
    return http(encode(ErrorReply(code=code, message=message)), status)


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer()
    await server.serve("127.0.0.1")
    yield server
    await server.close()


@pytest.fixture
async def link(server: HttpServer) -> AsyncIterator[HttpTransport]:
    link = server.link()
    yield link
    await link.close()


# What goes out, and what comes back.


async def test_a_poll_is_posted_and_its_reply_comes_back(server, link):
    server.answers = [http(encode(REPLY))]
    assert await link.exchange(POLL) == REPLY
    assert server.heads[0].startswith(f"POST {paths.POLL} HTTP/1.1\r\n")
    assert f"Content-Type: {paths.MEDIA_TYPE}\r\n" in server.heads[0]
    assert decode(PollRequest, server.bodies[0]) == POLL


async def test_a_leave_is_answered_with_an_ack(server, link):
    server.answers = [http(encode(ACK))]
    assert await link.exchange(LEAVE) == ACK
    assert server.heads[0].startswith(f"POST {paths.LEAVE} ")


async def test_the_line_knows_this_nodes_address(link):
    assert await link.connect() == "127.0.0.1"


async def test_requests_share_one_connection(server, link):
    server.answers = [http(encode(REPLY)), http(encode(ACK)), http(encode(REPLY))]
    for request in (POLL, LEAVE, POLL):
        await link.exchange(request)
    assert server.connections == 1


async def test_an_answer_may_come_in_pieces(server, link):
    body = encode(REPLY)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    server.answers = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks]
    assert await link.exchange(POLL) == REPLY


async def test_an_interim_answer_is_not_the_answer(server, link):
    server.answers = [b"HTTP/1.1 102 Processing\r\n\r\n" + http(encode(REPLY))]
    assert await link.exchange(POLL) == REPLY


async def test_after_a_server_closed_as_it_said_it_would_the_line_is_opened_anew(server, link):
    server.answers = [http(encode(REPLY), "200 OK", "Connection: close") + HANG_UP, http(encode(ACK))]
    assert await link.exchange(POLL) == REPLY
    assert await link.exchange(LEAVE) == ACK
    assert server.connections == 2


async def test_packets_fit_every_path(server, link):
    server.answers = [http(encode(REPLY))]
    await link.exchange(POLL)
    longest_s = server.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    longest_c = link._streams[1].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    assert max(longest_s, longest_c) + 60 <= 1280, "IPv6's and TCP's headers included: the least MTU there is"


@pytest.mark.parametrize("token", ["secret", None])
async def test_the_token_is_borne(server, token):
    link = server.link(token)
    server.answers = [http(encode(REPLY))]
    await link.exchange(POLL)
    assert ("Authorization: Bearer secret\r\n" in server.heads[0]) == (token is not None)
    assert ("Authorization" in server.heads[0]) == (token is not None)
    await link.close()


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_the_host_is_named_as_http_wants_it(host, said):
    server = HttpServer()
    await server.serve(host)
    link = server.link()
    server.answers = [http(encode(REPLY))]
    await link.exchange(POLL)
    assert f"Host: {said}:{server.port}\r\n" in server.heads[0]
    assert await link.connect() == host
    await link.close()
    await server.close()


# Refusals.


async def test_a_refusal_arrives_as_the_error_that_it_is(server, link):
    server.answers = [refusal("agent_fenced", "agent a is gone"), http(encode(REPLY))]
    with pytest.raises(AgentFenced, match="agent a is gone"):
        await link.exchange(POLL)
    assert await link.exchange(POLL) == REPLY
    assert server.connections == 1, "a refusal is an answer"


async def test_a_server_that_shuts_down_is_one_to_try_again(server, link):
    server.answers = [refusal("unavailable", "the server is shutting down", "503 Service Unavailable")]
    with pytest.raises(ServerUnavailable):
        await link.exchange(POLL)


async def test_a_newer_servers_refusal_is_one_all_the_same(server, link):
    server.answers = [refusal("from_the_future", "not today")]
    with pytest.raises(ProtocolError, match="not today"):
        await link.exchange(POLL)


# What is no answer.


async def unreachable(link: HttpTransport, request=POLL) -> Unreachable:
    with pytest.raises(Unreachable) as error:
        await link.exchange(request)
    return error.value


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (HANG_UP, "HTTP: the server closed the connection"),
        (b"HTTP/1.1 200" + HANG_UP, "HTTP: the server closed the connection"),
        (http(encode(REPLY))[:-5] + HANG_UP, "HTTP: peer closed connection without sending complete message body"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "HTTP: illegal status line"),
        (http(b"x" * (MAX_MESSAGE_BYTES + 1)), f"HTTP: the answer has more than {MAX_MESSAGE_BYTES} bytes"),
        (http(encode(ACK)), "HTTP: the answer is not rdzv-server's: Reply.revision is missing"),
        (http(b"<html>hello</html>"), "HTTP: the answer is not rdzv-server's: "),
        (http(b"<html>no</html>", "404 Not Found"), "HTTP: status 404: is this an rdzv-server?"),
        (http(b"", "302 Found", "Location: /"), "HTTP: status 302: is this an rdzv-server?"),
    ],
    ids=[
        "closed",
        "half a head",
        "half a body",
        "another protocol",
        "endless",
        "another message",
        "html",
        "404",
        "redirect",
    ],
)
async def test_what_is_no_answer_is_said_and_may_be_tried_again(server, link, answer, what):
    server.answers = [answer]
    error = await unreachable(link)
    assert str(error).startswith(what)
    assert error.stage == "HTTP"
    server.answers = [http(encode(REPLY))]
    assert await link.exchange(POLL) == REPLY


async def test_a_connection_that_was_closed_between_two_polls_is_opened_anew(server, link):
    server.answers = [http(encode(REPLY)) + HANG_UP]
    await link.exchange(POLL)
    assert str(await unreachable(link)) == "HTTP: the server closed the connection"
    server.answers = [http(encode(REPLY))]
    assert await link.exchange(POLL) == REPLY


async def test_a_server_that_says_nothing_is_given_up_in_time(server, link, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.05)
    server.before_answer = asyncio.Event().wait
    server.answers = [b"never"]
    assert str(await unreachable(link)) == "HTTP: no answer for 0.05 s"
    server.before_answer, server.answers = nothing, [http(encode(REPLY))]
    assert await link.exchange(POLL) == REPLY
    assert server.connections == 2, "a late answer must not be taken for the next one"


async def test_an_exchange_that_is_given_up_does_not_leave_its_answer_to_the_next(server, link):
    asked = asyncio.Event()

    async def hold() -> None:
        asked.set()
        await asyncio.Event().wait()

    server.before_answer, server.answers = hold, [b"never"]
    exchange = asyncio.create_task(link.exchange(POLL))
    await asked.wait()
    exchange.cancel()
    await asyncio.gather(exchange, return_exceptions=True)
    server.before_answer, server.answers = nothing, [http(encode(ACK))]
    assert await link.exchange(LEAVE) == ACK
    assert server.connections == 2


# No server at all.


async def test_nobody_listens(unused_tcp_port):
    error = await unreachable(HttpTransport("127.0.0.1", unused_tcp_port, None))
    assert str(error) == "connect: 127.0.0.1: Connection refused"
    assert error.stage == "connect"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "a..b"])
async def test_a_name_that_is_none(host):
    error = await unreachable(HttpTransport(host, 29_400, None))
    assert error.stage == "name"
    assert str(error).startswith(f"name: {host}: ")


async def test_a_host_that_does_not_answer_is_given_up_in_time(server, link, monkeypatch):
    async def silence(*args, **kwargs) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(client, "_connected", silence)
    assert str(await unreachable(link)) == "connect: 127.0.0.1: no answer within 0.05 s"


async def test_every_address_of_a_name_is_tried(server, monkeypatch):
    """The server listens on IPv4 alone; its name has an IPv6 address too."""
    link = HttpTransport("both.example", server.port, None)

    async def both() -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET6, ("::1", server.port)), (socket.AF_INET, ("127.0.0.1", server.port))]

    monkeypatch.setattr(link, "_resolve", both)
    assert await link.connect() == "127.0.0.1"
    await link.close()
