"""Names are looked up while a name server is silent, and servers are reached again without one."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rdzv_protocol import paths
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import ErrorReply, JoinRequest, PollRequest, Reply

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.threads import ThreadLoop
from node_agent.kernel.transport import connecting, name_lookup
from node_agent.kernel.transport.http import HttpTransport
from tests.support.message_search import pattern
from tests.support.process_info import until
from tests.support.programs import PATIENCE_S
from tests.unit.node_agent.kernel.transport.http_server import POLL, REPLY, HttpServer, http
from tests.unit.node_agent.story import join

MORE_THAN_THREADS = 100
JOIN = join()


class Resolver:
    """The system's resolver, but for missing hosts it does not answer until it is released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.moved_to: str = "127.0.0.1"
        """Address of all hosts but `localhost`."""
        self.may_answer = threading.Event()
        self._answer = socket.getaddrinfo

    def __call__(self, host: bytes | str, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        if name == "localhost":
            return self._answer(host, *args, **kwargs)
        assert self.may_answer.wait(PATIENCE_S)
        if name == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._answer(self.moved_to, *args, **kwargs)


@pytest.fixture
async def resolver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Resolver]:
    """Asynchronous, so that it is released before the loop waits for its threads."""
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.may_answer.set()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port on which a program listens."""
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def gives_up(transport: HttpTransport) -> None:
    """Let the transport begin to connect, without time for it."""
    connecting = asyncio.create_task(transport.connect())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_tries_of_a_server_that_is_gone_leave_a_thread_for_the_one_that_lives(
    resolver: Resolver, port: int
) -> None:
    for _ in range(MORE_THAN_THREADS):
        await gives_up(HttpTransport("gone", port, None))
    await until(lambda: resolver.asked)  # in a thread
    living = HttpTransport("localhost", port, None)
    async with asyncio.timeout(PATIENCE_S):
        await living.connect()
    assert resolver.asked == ["gone", "localhost"]
    await living.close()


async def test_ipv4_comes_first_because_more_nodes_lack_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    four, six = (socket.AF_INET, ("192.0.2.1", 7)), (socket.AF_INET6, ("2001:db8::1", 7, 0, 0))
    found = [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in (six, four)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    assert await name_lookup.addresses("both", 7) == [four, six]


async def test_an_answer_that_came_too_late_is_used_by_the_next_try(resolver: Resolver, port: int) -> None:
    slow = HttpTransport("slow", port, None)
    await gives_up(slow)
    resolver.may_answer.set()
    async with asyncio.timeout(PATIENCE_S):
        await slow.connect()
    assert resolver.asked == ["slow"]
    await slow.close()


async def test_a_try_names_the_name_server_that_is_silent_and_the_next_one_uses_its_late_answer(
    resolver: Resolver, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "NAME_SERVER_S", 0.05)
    slow = HttpTransport("slow", port, None)
    with pytest.raises(Unreachable) as caught:
        await slow.connect()
    assert (caught.value.stage, caught.value.detail) == ("name", words.connection.name_server_silent("slow", 0.05))
    monkeypatch.setattr(connecting, "NAME_SERVER_S", PATIENCE_S)
    resolver.may_answer.set()
    async with asyncio.timeout(PATIENCE_S):
        await slow.connect()
    assert resolver.asked == ["slow"]
    await slow.close()


async def test_a_host_that_may_have_moved_is_resolved_again(resolver: Resolver, port: int) -> None:
    resolver.may_answer.set()
    moving = HttpTransport("moving", port, None)
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_S):
            await moving.connect()
        await moving.close()
    await until(lambda: resolver.asked == ["moving", "moving"])


async def test_a_name_that_is_not_known_is_looked_up_again_at_the_next_try(resolver: Resolver, port: int) -> None:
    resolver.may_answer.set()
    for _ in range(2):
        with pytest.raises(Unreachable, match="unknown: Name or service not known"):
            await HttpTransport("unknown", port, None).connect()
    assert resolver.asked == ["unknown", "unknown"]


# Without a name server.


@contextmanager
def refusing(port: int) -> Iterator[None]:
    """Hold this port without listening. Else another program may get it, or a connection to it from this machine."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        yield


class RdzvServer(HttpServer):
    """An rdzv-server that answers, either as one that knows the agent or as another one."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.refusal: ErrorReply | None = None

    async def answer(self, head: str, body: bytes) -> tuple[bytes, bool]:
        self.paths.append(head.split()[1])
        return http(self.refusal, "409 Conflict") if self.refusal else http(REPLY), True


@pytest.fixture
async def server() -> AsyncIterator[RdzvServer]:
    server = RdzvServer()
    await server.serve()
    yield server
    await server.close()


@pytest.fixture
async def elsewhere(server: RdzvServer) -> AsyncIterator[RdzvServer]:
    """The same port at another address, to which the server may move."""
    elsewhere = RdzvServer()
    await elsewhere.serve("127.0.0.2", server.port)
    yield elsewhere
    await elsewhere.close()


@pytest.fixture
async def transport(resolver: Resolver, server: RdzvServer) -> AsyncIterator[HttpTransport]:
    """Transport that was answered and lost its connection. The name server has been silent since."""
    resolver.may_answer.set()
    transport = HttpTransport("server", server.port, None)
    await asks(transport)
    await transport.close()
    resolver.may_answer.clear()
    yield transport
    await transport.close()


async def asks(transport: HttpTransport, request: PollRequest | JoinRequest = POLL) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        reply = await transport.exchange(request)
    assert isinstance(reply, Reply)
    return reply


async def looked_up(resolver: Resolver, transport: HttpTransport) -> None:
    """Let the name server answer, and wait until the answer is known."""
    resolver.may_answer.set()
    await name_lookup.addresses("server", transport._port)


async def test_a_server_is_found_again_where_it_was_while_the_name_server_is_silent(
    transport: HttpTransport, server: RdzvServer
) -> None:
    await asks(transport)
    assert server.connections == 2


async def test_a_server_that_was_down_when_its_name_was_looked_up_is_found_without_a_name_server(
    resolver: Resolver,
) -> None:
    """As one of several servers, which takes over while the name server is silent."""
    server = RdzvServer()
    await server.serve()
    port = server.port
    await server.close()
    transport = HttpTransport("server", port, None)
    resolver.may_answer.set()
    with refusing(port), pytest.raises(Unreachable, match=r"127\.0\.0\.1: Connection refused"):
        await asks(transport)
    resolver.may_answer.clear()
    await server.serve("127.0.0.1", port)
    await asks(transport)
    assert server.connections == 1
    await transport.close()
    await server.close()


async def test_another_transport_of_the_agent_finds_it_there_as_well(
    transport: HttpTransport, server: RdzvServer
) -> None:
    beside = HttpTransport("server", server.port, None)
    await asks(beside)
    await beside.close()


async def test_a_server_that_is_not_back_yet_is_tried_again_soon(transport: HttpTransport, server: RdzvServer) -> None:
    await server.close()
    began = time.monotonic()
    with refusing(server.port), pytest.raises(Unreachable, match=r"127\.0\.0\.1: Connection refused"):
        await asks(transport)
    assert time.monotonic() - began < PATIENCE_S / 3


async def test_a_server_that_moved_is_found_by_its_name(
    transport: HttpTransport, server: RdzvServer, elsewhere: RdzvServer, resolver: Resolver
) -> None:
    await server.close()
    resolver.moved_to = "127.0.0.2"
    resolver.may_answer.set()
    await asks(transport)
    assert elsewhere.connections == 1


async def test_a_server_that_moved_is_found_while_its_old_address_is_silent(
    transport: HttpTransport, elsewhere: RdzvServer, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = connecting._connected

    async def silent(family: int, address: tuple[object, ...]) -> socket.socket:
        if address[0] == "127.0.0.1":
            await asyncio.Event().wait()
        return await connected(family, address)

    monkeypatch.setattr(connecting, "_connected", silent)
    monkeypatch.setattr(connecting, "REMEMBERED_TIMEOUT_S", PATIENCE_S)
    resolver.moved_to = "127.0.0.2"
    resolver.may_answer.set()
    await asks(transport)
    assert elsewhere.connections == 1


async def test_a_server_that_moved_while_the_old_one_still_accepts_is_found_at_the_next_connection(
    transport: HttpTransport, elsewhere: RdzvServer, resolver: Resolver
) -> None:
    resolver.moved_to = "127.0.0.2"
    await asks(transport)
    await looked_up(resolver, transport)
    await transport.close()
    await asks(transport)
    assert elsewhere.connections == 1


@pytest.mark.parametrize("request_", [POLL, JOIN], ids=["poll", "join"])
async def test_agents_leave_another_server_at_the_old_address(
    transport: HttpTransport, server: RdzvServer, elsewhere: RdzvServer, resolver: Resolver,
    request_: PollRequest | JoinRequest,
) -> None:  # fmt: skip
    server.refusal = ErrorReply(code="agent_fenced", message="who is that?")
    resolver.moved_to = "127.0.0.2"
    resolver.may_answer.set()
    with pytest.raises(Unreachable, match=pattern(words.connection.moved, host="server")):
        await asks(transport, request_)
    assert paths.JOIN not in server.paths, "no run begins there"
    await asks(transport, request_)
    assert elsewhere.connections == 1


async def test_a_refusal_by_the_server_itself_is_believed(
    transport: HttpTransport, server: RdzvServer, resolver: Resolver
) -> None:
    server.refusal = ErrorReply(code="agent_fenced", message="gone")
    resolver.may_answer.set()
    with pytest.raises(AgentFenced):
        await asks(transport)


async def test_a_refusal_is_believed_if_the_name_server_stays_silent(
    transport: HttpTransport, server: RdzvServer
) -> None:
    server.refusal = ErrorReply(code="agent_fenced", message="gone")
    with pytest.raises(AgentFenced):
        await asks(transport)


def test_a_loop_in_a_thread_continues_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer = threading.Event()

    def answer(*args: Any, **kwargs: Any) -> list[Any]:
        assert may_answer.wait(PATIENCE_S)
        return []

    async def look_up() -> list[Any]:
        asking = asyncio.create_task(asyncio.get_running_loop().getaddrinfo("gone", 1))
        await asyncio.sleep(0)
        may_answer.set()  # a loop that waits for the name server never gets here
        return await asking

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with asyncio.Runner(loop_factory=ThreadLoop) as runner:
        assert runner.run(look_up()) == []


class LostQuestions:
    """A resolver that never answers its first `lost` questions."""

    def __init__(self, lost: int) -> None:
        self._lost = lost
        self._answer = socket.getaddrinfo
        self.number = 0
        self.may_end = threading.Event()

    def __call__(self, host: bytes | str, *args: Any, **kwargs: Any) -> Any:
        self.number += 1
        if self.number <= self._lost:
            assert self.may_end.wait(PATIENCE_S)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._answer("127.0.0.1", *args, **kwargs)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
async def test_a_lost_question_is_asked_again_beside_the_first_up_to_three_in_all(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = LostQuestions(lost)
    monkeypatch.setattr(socket, "getaddrinfo", questions)
    waits_s = (0.01 if number < lost else PATIENCE_S for number in range(2))  # an answer may be slow to come
    monkeypatch.setattr(name_lookup, "AGAIN_AFTER_S", tuple(waits_s))
    look_up = asyncio.create_task(name_lookup.addresses("flaky", 1))
    try:
        if lost < 3:
            ((_, address),) = await look_up
            assert address[0] == "127.0.0.1"
        else:
            await until(lambda: questions.number == 3)
            questions.may_end.set()
            with pytest.raises(socket.gaierror, match="Temporary failure"):
                await look_up
        assert questions.number == min(lost + 1, 3)
    finally:
        questions.may_end.set()


async def test_a_name_that_is_unknown_is_not_asked_for_again(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver.may_answer.set()
    with pytest.raises(socket.gaierror, match="not known"):
        await name_lookup.addresses("unknown", 1)
    assert resolver.asked == ["unknown"]


LOOKS_AN_ADDRESS_UP = """
import asyncio, sys
from node_agent.kernel.transport.name_lookup import addresses
print(asyncio.run(addresses("127.0.0.1", 80)), "encodings.idna" in sys.modules)
"""


def test_an_address_does_not_load_the_codec_of_international_names() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS_AN_ADDRESS_UP], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
    assert "('127.0.0.1', 80)" in done.stdout
