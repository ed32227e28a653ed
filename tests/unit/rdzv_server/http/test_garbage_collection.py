"""Garbage collection runs only when the process has grown; closed connections give memory back without one."""

import asyncio
import gc
import socket
import ssl
import weakref
from asyncio.selector_events import _SelectorSocketTransport
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec import Struct, msgpack, structs
from rdzv_protocol import paths
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import LeaveRequest, PollRequest, ReportRequest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.core.events import NodeJoined
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.kernel.snapshot import take
from rdzv_server.http import garbage_collection
from rdzv_server.http.agent_protocol import AgentProtocol
from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.garbage_collection import (
    COLLECT_AFTER,
    FEW,
    GROWN_BYTES,
    MOST_LOOKS,
    STEADY_BYTES,
    YOUNG_S,
    GarbageCollector,
)
from rdzv_server.http.listener import AGENT_BYTES, TLS_AGENT_BYTES
from rdzv_server.http.pending_connections import PendingConnection
from rdzv_server.http.request_handler import RequestHandler
from rdzv_server.server import RendezvousServer, bind
from tests.support.certificates import Authority
from tests.support.process_info import until
from tests.support.scenario import SERVER_ADDR, Scenario, a_join

PATIENCE_S = 20.0


class Site:
    """Collector whose checks come when the test says so, in a process of the test's size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = 40 << 20
        self.collected: list[int] = []
        self.given_back = self.used = 0
        monkeypatch.setattr(garbage_collection, "resident_bytes", lambda: self.size)
        monkeypatch.setattr(garbage_collection.gc, "collect", lambda generation=2: self.collected.append(generation))
        monkeypatch.setattr(garbage_collection, "give_back", self._give_back)
        self.collector = GarbageCollector(lambda: self.used)

    def _give_back(self) -> None:
        self.given_back += 1

    def close(self, count: int) -> None:
        for _ in range(count):
            self.collector.connection_closed()

    def look(self, between: Callable[[], None] = lambda: None) -> None:
        between()
        self.collector._look()

    @property
    def full(self) -> int:
        """Number of full collections."""
        return self.collected.count(2)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


async def test_memory_of_closed_connections_goes_back_in_a_quiet_moment_without_a_collection(site: Site) -> None:
    """A collection would stop the server for a third of a second beside 10,000 nodes, and find nothing."""
    for _ in range(MOST_LOOKS - 1):
        site.look(lambda: site.close(FEW))
    assert site.given_back == 0
    site.look()
    assert site.given_back == 1
    site.look()
    assert site.given_back == 1, "until as many have closed again"
    assert site.collected == []


async def test_memory_of_few_closed_connections_does_not_go_back(site: Site) -> None:
    site.close(FEW - 1)
    site.look()
    site.look()
    assert site.given_back == 0


async def test_a_large_run_that_comes_again_is_not_collected_again(site: Site) -> None:
    """The process does not get larger than it was after the last collection."""
    small = site.size
    for size in (small, 4 * small, small, 4 * small):
        site.size = size
        for _ in range(MOST_LOOKS + 1):
            site.look()
        site.close(FEW)
        site.look()
        site.look()
    assert site.full == 1


async def test_growth_that_connections_explain_leads_to_no_collection(site: Site) -> None:
    """A collection would stop the server of a large run for a third of a second, and find nothing."""
    before = site.size
    for used in (10 * before, 0, 10 * before):
        site.used, site.size = used, 11 * before
        for _ in range(2 * MOST_LOOKS):
            site.look()
    assert site.full == 0


@pytest.mark.parametrize("used", [0, 500 << 20])
async def test_growth_beyond_that_of_new_connections_leads_to_a_collection(site: Site, used: int) -> None:
    for times in (1, 2):
        site.used += used
        site.size += used + site.size + GROWN_BYTES
        for _ in range(MOST_LOOKS + 1):
            site.look()
        assert site.full == times


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_connections_of_agents_explain_growth(tmp_path: Path, is_tls: bool) -> None:
    authority = Authority(tmp_path)
    tls = TlsFiles(*authority.issue("server")).context() if is_tls else None
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener, tls)
        assert server._listener
        assert server._listener._used_bytes() == 0
        trusted = ssl.create_default_context(cafile=authority.ca) if is_tls else None
        reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusted)
        writer.write(f"GET {paths.STATUS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert server._listener._used_bytes() == (TLS_AGENT_BYTES if is_tls else AGENT_BYTES)
        writer.close()


def refused() -> list[str]:
    """Return the refusals that the process holds."""
    return [str(each) for each in gc.get_objects() if issubclass(type(each), ProtocolError)]


async def test_a_refusal_is_freed_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused agent asks again and again, and so may thousands."""
    monkeypatch.setattr(garbage_collection, "gc", Mock())
    other = RequestedSettings(min_nodes=7, max_nodes=9)
    requests: list[tuple[str, Struct]] = [
        (paths.JOIN, structs.replace(a_join("agent1", node="b"), settings=other)),
        (paths.POLL, PollRequest(run_id="run", agent_id="unknown", revision=0)),
        (paths.POLL, PollRequest(run_id="none", agent_id="agent0", revision=0)),
        (paths.REPORT, ReportRequest(run_id="run", agent_id="unknown", round=1)),
        (paths.LEAVE, LeaveRequest(run_id="none", agent_id="agent0", reason="why")),
    ]
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())

        async def status(path: str, request: Struct) -> int:
            body = msgpack.encode(request)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readexactly(int(answer.lower().partition("content-length: ")[2].split()[0]))
            return int(answer.split()[1])

        assert await status(paths.JOIN, a_join("agent0", node="a")) == HTTPStatus.OK
        gc.collect()
        gc.freeze()  # `refused` then looks at new objects only
        gc.disable()
        try:
            for path, request in requests:
                assert await status(path, request) >= HTTPStatus.BAD_REQUEST, request
            await until(lambda: not refused())
        finally:
            gc.enable()
            writer.close()


async def test_a_process_that_grows_while_connections_close_is_collected_after_a_while(site: Site) -> None:
    """Strangers come and go all the time: there is no quiet moment, and their garbage fills the memory."""
    for _ in range(MOST_LOOKS):
        site.size += 2 * GROWN_BYTES + site.size
        site.look(lambda: site.close(FEW))
    assert site.full == 0
    site.size += STEADY_BYTES
    site.look(lambda: site.close(1))
    assert site.full == 1
    site.look(lambda: site.close(1))
    assert site.full == 1


class Cycle:
    def __init__(self) -> None:
        self.itself = self


async def test_only_a_full_collection_examines_what_has_been_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = GarbageCollector(lambda: 0)
    cycle = Cycle()
    gone = weakref.ref(cycle)
    try:
        collector._set_aside()
        del cycle
        gc.collect()
        assert gone() is not None
        monkeypatch.setattr(garbage_collection, "resident_bytes", lambda: collector._kept_bytes * 2 + GROWN_BYTES)
        for _ in range(MOST_LOOKS + 1):
            collector._look()
        assert gone() is None
    finally:
        gc.freeze()  # as after collection, so that no later test examines the collected tests


async def test_new_objects_are_set_aside_soon_after_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Python examines them when ten thousand more were made than freed: perhaps after a million."""
    set_aside: asyncio.Queue[None] = asyncio.Queue()
    monkeypatch.setattr(garbage_collection.gc, "freeze", lambda: set_aside.put_nowait(None))
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for _ in range(3):
            writer.write(f"GET {paths.HEALTHZ} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await set_aside.get()
        writer.close()


def test_python_examines_nothing_by_itself_while_a_large_run_forms() -> None:
    """The event loop may be too busy to set objects aside meanwhile."""
    run, collected = Scenario("3000"), list[str]()
    before = gc.get_threshold()

    def note(phase: str, info: Mapping[str, int]) -> None:
        collected.append(phase)

    gc.freeze()  # begins the count anew
    gc.callbacks.append(note)
    gc.set_threshold(*COLLECT_AFTER)
    try:
        for number in range(3_000):
            run.machine.handle(NodeJoined(a_join(f"n{number}"), SERVER_ADDR), run.now)
        parts = list(take(run.run))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert run.stage is Stage.RUNNING and parts
    assert not collected


async def test_many_requests_at_once_set_objects_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_aside: list[None] = []
    monkeypatch.setattr(garbage_collection.gc, "freeze", lambda: set_aside.append(None))
    collector, loop = GarbageCollector(lambda: 0), asyncio.get_running_loop()
    for times in (1, 2):
        for _ in range(10 * FEW):
            collector.request_arrived()
        over = loop.create_future()
        loop.call_at(loop.time() + 2 * YOUNG_S, over.set_result, None)
        await over
        assert len(set_aside) == times


SENDS = (
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: y",
    b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
    b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n1\r\n",
    b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2_000,
    b"POST /v1/agent/join HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\nContent-Length: 9\r\n\r\nx",
    b"POST /v1/agent/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\nContent-Length: 9000\r\n\r\nx",
    b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000,
    b"POST /v1/agent/poll HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /v1/agent/poll HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\nContent-Length: 3\r\n\r\na",
    b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    b"\x16\x03\x01",
    bytes.fromhex("1603010005010000010303"),
    b"\0\r\n\r\n",
)
"""Bytes that peers send before they leave: nothing, a request, halves of one, half a handshake, one that OpenSSL
rejects, and no HTTP."""
FREED = (AgentProtocol, HttpConnection, PendingConnection, RequestHandler, _SelectorSocketTransport)


def held() -> list[object]:
    """Return the connections that the process holds, with their parts."""
    # By its type: some of torch's objects, which may be here too, warn if they are asked for their class.
    return [each for each in gc.get_objects() if issubclass(type(each), FREED)]


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_connection_that_has_closed_is_freed_without_a_collection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_tls: bool
) -> None:
    """Otherwise strangers fill memory faster than the collector frees it."""
    monkeypatch.setattr(garbage_collection, "gc", Mock())
    tls = TlsFiles(*Authority(tmp_path).issue("server")).context() if is_tls else None
    async with RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener, tls)
        gc.collect()
        gc.freeze()  # `held` then looks at new objects only
        gc.disable()
        try:
            for sends in SENDS:
                with socket.create_connection(listener.getsockname()) as peer:
                    peer.sendall(sends)
                    peer.shutdown(socket.SHUT_WR)
                    peer.setblocking(False)
                    async with asyncio.timeout(PATIENCE_S):
                        with suppress(ConnectionError):
                            while await asyncio.get_running_loop().sock_recv(peer, 4_096):
                                pass
                await until(lambda: not held())
        finally:
            gc.enable()
