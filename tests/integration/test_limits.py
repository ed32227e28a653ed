"""Limits: a peer that takes too much is cut off, and others notice nothing. Real sockets, with short limits."""

import asyncio
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import AgentFenced, RunFailed, TooManyRequests, Unauthorized
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Finish, LeaveRequest, PollRequest, Reply, ReportRequest, Start, Wait
from rdzv_protocol.paths import events_of
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.http import HttpTransport
from node_agent.kernel.transport.retrying import RetryingClient
from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.config import Limits
from rdzv_server.core.kernel import silent_runs
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.runs.registry import MOST_RUNS
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.storage.sqlite import SqliteStore
from rdzv_server.token_buckets import Rate
from rdzv_server.words import attempts, http, runs, startup
from rdzv_server.words import service as service_words
from rdzv_server.words import silent_runs as words
from tests.support.certificates import Authority
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import any_numbers, beginning, part, pattern
from tests.support.programs import Program, Server, refuses, start_agent
from tests.support.rdzvctl import rdzvctl
from tests.support.scenario import a_join
from tests.support.strangers import JOIN

SHORT_S = 0.3
SOON_S = 10.0
"""Most seconds that a test waits for an event that takes `SHORT_S` on an idle machine."""
PATIENCE_S = 60.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ALONE = RequestedSettings(min_nodes=1, max_nodes=1)
STATUS = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"


class Connection:
    """A connection that the test controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def asks(self, request: bytes = HEALTH, within_s: float = SOON_S) -> int:
        """Return the status of the answer."""
        self.writer.write(request)
        async with asyncio.timeout(within_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
            sizes = [int(line.split()[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")]
            await (self.reader.readexactly(sizes[0]) if sizes else self.reader.readuntil(b"\r\n0\r\n\r\n"))
        return int(head.split()[1])

    async def is_cut(self) -> None:
        """Return when the server has closed it."""
        with suppress(ConnectionError):
            async with asyncio.timeout(SOON_S):
                while await self.reader.read(1 << 16):
                    pass

    def close(self) -> None:
        self.writer.transport.abort()


class Site:
    """A server in this process, and connections to it, which end with the test."""

    def __init__(self, server: RendezvousServer, port: int, stack: AsyncExitStack) -> None:
        self.server, self.port, self._stack = server, port, stack

    async def connect(self, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Connection:
        streams = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0), ssl=tls, limit=1 << 26)
        connection = Connection(*streams)
        self._stack.callback(connection.close)
        return connection

    def transport(self, token: str | None = None) -> HttpTransport:
        credentials = Credentials()
        credentials.token = token
        transport = HttpTransport("127.0.0.1", self.port, credentials)
        self._stack.push_async_callback(transport.close)
        return transport


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def make_site() -> AsyncIterator[MakeSite]:
    async with AsyncExitStack() as stack:

        async def make(
            tls: ssl.SSLContext | None = None, token: bytes = b"", max_runs: int = MOST_RUNS, **limits: Any
        ) -> Site:
            access = Access([Token(Role.AGENT, token)] if token else [])
            server = await stack.enter_async_context(RendezvousServer(max_runs=max_runs))
            listener = bind("127.0.0.1", 0)
            await server.listen(listener, tls, access, Limits(**limits))
            return Site(server, listener.getsockname()[1], stack)

        yield make


# Connections.


async def test_beyond_the_limit_new_connections_are_closed_and_open_ones_continue(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = await make_site(connections=4)
    standing: list[Connection] = []
    for _ in range(4):
        standing.append(await site.connect())
        assert await standing[-1].asks(STATUS) == 200
    for _ in range(10):
        await (await site.connect()).is_cut()
    said = [record.getMessage() for record in caplog.records if "--max-connections" in record.getMessage()]
    assert said == [http.no_room(4)]
    assert [await each.asks() for each in standing] == [200] * 4
    standing[0].close()
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                assert await (await site.connect()).asks() == 200
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # it has not noticed the close yet


async def test_one_address_cannot_take_all_connections_without_an_accepted_request(make_site: MakeSite) -> None:
    site = await make_site(connections=8, token=b"right")
    agent = site.transport("right")
    assert isinstance(await agent.exchange(a_join("a", settings=ALONE)), Reply)
    unauthenticated = [await site.connect() for _ in range(4)]
    for each in unauthenticated:
        assert await each.asks() == 200, "a probe lets no client in"
    for each in unauthenticated:
        newcomer = await site.connect()
        await each.is_cut()
        assert await newcomer.asks() == 200
    assert await (await site.connect("127.0.0.2")).asks() == 200
    assert isinstance(await agent.exchange(PollRequest(run_id="run", agent_id="a", revision=0, hold=False)), Reply)


async def test_many_addresses_cannot_take_all_connections_without_an_accepted_request(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = await make_site(connections=4, token=b"right")
    agent = site.transport("right")
    assert isinstance(await agent.exchange(a_join("a", settings=ALONE)), Reply)
    unauthenticated = [await site.connect(f"127.0.1.{number}") for number in range(1, 4)]
    for each in unauthenticated:
        assert await each.asks() == 200, "a probe lets no client in"
    for number, oldest in enumerate(unauthenticated, start=4):
        newcomer = await site.connect(f"127.0.1.{number}")
        await oldest.is_cut()
        assert await newcomer.asks() == 200
    said = [record.getMessage() for record in caplog.records if "--max-connections" in record.getMessage()]
    assert said == [http.no_room_for_unauthenticated(4)]
    assert isinstance(await agent.exchange(PollRequest(run_id="run", agent_id="a", revision=0, hold=False)), Reply)


async def test_agents_continue_beside_a_crowd_of_unauthenticated_connections(cluster: Cluster) -> None:
    await cluster.serve("--max-connections", "40")
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1")
    crowd = [socket.create_connection(("127.0.0.1", cluster.server.port)) for _ in range(100)]
    await cluster.server.line(http.too_many_of_peer(20, "127.0.0.1"))
    first[0].order_exit(3)
    async with asyncio.timeout(Limits().request_s / 2):
        second = await cluster.hub.group(4)
    for each in crowd:
        each.close()
    await cluster.finish(second)


async def limited(ulimit: str) -> Program:
    """Return a server that the shell has limited."""
    return await Program.start("bash", "-c", f"{ulimit}; exec {' '.join(Server.command())}")


async def test_the_limit_of_open_files_is_raised_to_what_the_system_allows() -> None:
    server = await limited("ulimit -Sn 200")
    await server.line("listening on")
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    assert soft == hard > 200


async def test_a_server_that_may_open_no_more_files_continues_when_it_may_again() -> None:
    server = await Server.listen()
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, hard))
    waiting = socket.create_connection(("127.0.0.1", server.port))
    await server.line(re.escape(http.cannot_accept(os.strerror(errno.EMFILE))))
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert await server.get("/healthz") == "ok\n"
    waiting.close()


LATER_NOTHING_IS_IMPORTED = """
import sys
from importlib.abc import MetaPathFinder
from rdzv_server import cli

class Gone(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith(("rdzv_server", "rdzv_protocol")):
            raise OSError(24, f"Too many open files: {name}")

def import_late(import_late=cli.import_late):
    import_late()
    sys.meta_path.insert(0, Gone())

cli.import_late = import_late
sys.exit(cli.main())
"""
"""Server that can import nothing of its own once it listens."""


async def test_at_the_limit_of_processes_the_server_serves_agents_pages_and_metrics(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("only root can start a server as a user for whom the limit counts")
    user = 50_000 + os.getpid() % 10_000
    os.chown(tmp_path, user, user)
    sees_files = tuple(f"--{which}=-all,+dac_override" for which in ("bounding-set", "inh-caps", "ambient-caps"))
    as_user = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *sees_files)
    flags = ("--store", f"sqlite:{tmp_path}/state.db", "--event-log", f"{tmp_path}/events.jsonl")
    limit = ("prlimit", "--nproc=2:100")  # for the thread of the event loop, and that of the store
    server = await Server.start(*as_user, *limit, *Server.command(*flags))
    server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
    transport = HttpTransport("127.0.0.1", server.port, Credentials())
    first = await transport.exchange(a_join("a", settings=ALONE))
    assert isinstance(first, Reply) and isinstance(first.directive, Start)
    await transport.close()
    await server.line(part(service_words.event_log_failed, why=service_words.NO_THREAD))
    for path in ("/metrics", "/openapi.json", "/login", "/v1/status"):
        assert await server.get(path)
    assert (
        await (await Program.start(*as_user, "prlimit", "--nproc=100:100", "--pid", str(server.pid))).exit_code() == 0
    )
    await server.line(part(service_words.event_log_is_back))
    assert not [line for line in server.err if "Traceback" in line]


async def test_a_server_whose_program_is_gone_continues(cluster: Cluster) -> None:
    """No descriptor is left, or another version has been installed. It has imported all that it needs later."""
    command = (sys.executable, "-c", LATER_NOTHING_IS_IMPORTED, *Server.words())
    server = await Server.start(*command)
    server.port = int((await server.line(r"listening on http://127\.0\.0\.1:(\d+)"))[1])
    cluster.servers.append(server)
    first = await cluster.nodes("ab", "--nnodes", "1:2", "--max-restarts", "1", *PATIENT)
    first[0].order_exit(3)
    await cluster.hub.group(4)
    await rdzvctl("drain", "b", endpoint=cluster.endpoint)
    workers = await cluster.hub.group(2)
    del cluster.agents["b"]
    for path in ("/", "/metrics", "/v1/status", "/v1/runs/none/events"):
        await server.get(path)
    await cluster.finish(workers)
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == 0
    assert not re.search("Too many open files|Traceback", "\n".join(server.err))


async def test_the_server_warns_of_little_room_for_connections_at_its_start() -> None:
    server = await limited("ulimit -n 40")
    await server.line(re.escape(startup.few_connections(20, 40)))
    await refuses(await limited("ulimit -n 10"), startup.too_few_files(10))


# Requests that take their time.

DRIBBLES = {
    "nothing": (b"", b""),
    "half a head": (b"GET /healthz HT", b""),
    "a head, byte by byte": (b"GET /healthz HTTP/1.1\r\nX: ", b"x"),
    "no body": (JOIN + b"Content-Length: 9\r\n\r\n", b""),
    "a body, byte by byte": (JOIN + b"Content-Length: 99999\r\n\r\n", b"x"),
    "a body in chunks, one by one": (JOIN + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "a second request, byte by byte": (HEALTH + b"GET /heal", b"x"),
    "an unwanted body": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", b"x"),
}


async def dribble(connection: Connection, first: bytes, then: bytes) -> None:
    """Send `first`, then `then` repeatedly, until the server closes the connection."""

    async def go_on() -> None:
        while then:
            connection.writer.write(then)
            await asyncio.sleep(SHORT_S / 20)

    connection.writer.write(first)
    going_on = asyncio.create_task(go_on())
    try:
        await connection.is_cut()
    finally:
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_request_that_does_not_arrive_is_cut_off(make_site: MakeSite, tmp_path: Path, is_tls: bool) -> None:
    authority = Authority(tmp_path)
    tls = TlsFiles(*authority.issue("server")).context() if is_tls else None
    site = await make_site(tls, request_s=SHORT_S, idle_s=1_000.0)
    async with asyncio.TaskGroup() as clients:
        for first, then in DRIBBLES.values():
            connection = await site.connect(tls=authority.credentials().context() if is_tls else None)
            clients.create_task(dribble(connection, first, then))


async def test_a_handshake_that_takes_its_time_is_cut_off(make_site: MakeSite, tmp_path: Path) -> None:
    tls = TlsFiles(*Authority(tmp_path).issue("server")).context()
    site = await make_site(tls, handshake_s=SHORT_S, request_s=SHORT_S, idle_s=1_000.0)
    half = b"\x16\x03\x01\x02\x00\x01\x00"
    async with asyncio.TaskGroup() as clients:
        for first, then in ((b"", b""), (half, b""), (half, b"\x01"), (b"G", b"E")):  # the last is not TLS
            clients.create_task(dribble(await site.connect(), first, then))


async def test_a_parked_poll_takes_its_time_unharmed(make_site: MakeSite) -> None:
    """A join is held for a second."""
    site = await make_site(request_s=SHORT_S, idle_s=SHORT_S, unread_s=SHORT_S)
    reply = await site.transport().exchange(a_join("a", settings=RequestedSettings(min_nodes=2, max_nodes=2)))
    assert isinstance(reply, Reply)
    assert isinstance(reply.directive, Wait)


async def test_an_idle_connection_is_closed_and_an_agents_line_survives_that(make_site: MakeSite) -> None:
    site = await make_site(idle_s=SHORT_S)
    idle = await site.connect()
    assert await idle.asks() == 200
    transport = site.transport()
    await transport.exchange(a_join("a", settings=ALONE))
    await idle.is_cut()
    async with asyncio.timeout(SOON_S):
        assert transport._connection
        await transport._connection.streams[0].read()
    await transport.exchange(LeaveRequest(run_id="run", agent_id="a", reason="SIGTERM"))


# Rates.


async def test_a_throttled_agent_gets_through(make_site: MakeSite) -> None:
    site = await make_site(requests=Rate(20, 3))
    transport = site.transport()
    await transport.exchange(a_join("a", settings=ALONE))
    poll = PollRequest(run_id="run", agent_id="a", revision=0, hold=False)
    with pytest.raises(TooManyRequests, match=r"^too many requests from 127\.0\.0\.1"):
        for _ in range(10):
            await transport.exchange(poll)
    failures: list[Exception] = []
    client = RetryingClient(transport, failures.append)
    for _ in range(5):
        assert isinstance(await client.ask(poll), Reply)
    assert any("too many requests" in str(failure) for failure in failures)


async def test_guessing_tokens_is_slow_and_does_not_disturb_admitted_clients(make_site: MakeSite) -> None:
    site = await make_site(token=b"right", refusals=Rate(0.001, 5))
    agent = site.transport("right")
    await agent.exchange(a_join("a", settings=ALONE))
    poll = PollRequest(run_id="run", agent_id="a", revision=0, hold=False)
    for guess in range(5):
        with pytest.raises(Unauthorized):
            await site.transport(f"guess {guess}").exchange(poll)
    for token in ("guess", "right"):
        with pytest.raises(TooManyRequests, match="without the right token"):
            await site.transport(token).exchange(poll)
    assert isinstance(await agent.exchange(poll), Reply)


async def test_a_login_after_too_many_guesses_is_refused_before_its_form_has_come(make_site: MakeSite) -> None:
    site = await make_site(token=b"right", refusals=Rate(0.001, 2))
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 11\r\n\r\n"
    for _ in range(2):
        assert await (await site.connect()).asks(head + b"token=wrong") == 401
    assert await (await site.connect()).asks(head) == 429


# Places.


async def test_a_run_beyond_the_limit_is_refused_with_advice(cluster: Cluster) -> None:
    await cluster.serve("--max-runs", "1")
    workers = await cluster.nodes("a", "--run-id", "one")
    other = await start_agent("--endpoint", cluster.server.endpoint, "--run-id", "two", "--connect-timeout", "1")
    await refuses(other, attempts.full_of_runs(1, attempts.WHEN_ONE_HAS_ENDED), code=ExitCode.START_AGAIN)
    await cluster.finish(workers)


async def test_a_silent_run_is_evicted_and_its_returning_agent_gets_the_reason(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_runs, "GIVES_PLACE_S", SHORT_S)
    monkeypatch.setattr(silent_runs, "WANTED_S", SHORT_S)
    site = await make_site(max_runs=1)
    agent = site.transport()
    silent = a_join("a", run_id="silent", settings=structs.replace(ALONE, lease_s=SHORT_S))
    assert isinstance((await agent.exchange(silent)).directive, Start)
    poll = PollRequest(run_id="silent", agent_id="a", revision=0, hold=False)
    assert isinstance(await agent.exchange(poll), Reply)
    await agent.close()  # its host is gone
    refusals: list[Exception] = []
    newcomer = RetryingClient(site.transport(), refusals.append)
    reply = await newcomer.ask(a_join("b", run_id="new", settings=ALONE))
    assert isinstance(reply.directive, Start)
    full = beginning(attempts.full_of_runs, most=1)
    assert refusals and all(str(refusal).startswith(full) for refusal in refusals)
    back, gave_place = site.transport(), words.gave_place(1, to_agents=False)
    with suppress(AgentFenced):  # unless it is told of the run's end while that is remembered
        while isinstance(finish := (await back.exchange(poll)).directive, Finish):
            assert not finish.succeeded and re.search(any_numbers(pattern(gave_place)), finish.reason)
            await asyncio.sleep(SHORT_S)
    with pytest.raises(RunFailed, match=any_numbers(pattern(runs.ended("silent", Stage.FAILED, gave_place)))):
        await back.exchange(structs.replace(silent, returning=True, attempt=1))


async def test_an_agent_beyond_the_limit_is_refused_but_can_replace_a_lost_one(cluster: Cluster) -> None:
    server = await cluster.serve("--max-agents", "2")
    given = ("--run-id", "one", "--nnodes", "2", "--max-restarts", "3", *PATIENT)
    await cluster.node("a", *given, nproc=1)
    await (await cluster.node("b", *given, nproc=1)).line("round 1:")
    await cluster.hub.group(2)
    other = await start_agent("--endpoint", server.endpoint, "--run-id", "two", "--connect-timeout", "1")
    await refuses(other, "this server has 2 agents, and --max-agents is 2", code=ExitCode.START_AGAIN)
    assert any("refused 127.0.0.1: this server has 2 agents" in line for line in server.err)
    await cluster.agents.pop("b").kill()
    await (await cluster.node("c", *given, nproc=1)).line("round 2:")
    await cluster.finish(await cluster.hub.group(2))


async def test_events_of_all_runs_have_a_total_also_in_the_store(tmp_path: Path) -> None:
    most, runs, of_a_run = 50, 30, 4
    path = tmp_path / "state.db"
    server = await Server.listen("--max-events", str(most), "--store", f"sqlite:{path}")
    transport = HttpTransport("127.0.0.1", server.port, Credentials())
    for number in range(runs):
        await transport.exchange(a_join("a", run_id=f"run {number}", settings=ALONE))
        await transport.exchange(ReportRequest(run_id=f"run {number}", agent_id="a", round=1))
    await transport.close()
    pages = [json.loads(await server.get(events_of(f"run {number}"))) for number in range(runs)]
    kept = [[event["number"] for event in page["events"]] for page in pages]
    assert runs < sum(map(len, kept)) <= most < runs * of_a_run
    assert kept[0] == [of_a_run], "it ended first: a reader sees by the number that earlier events are gone"
    assert kept[-1] == [1, 2, 3, of_a_run]
    await server.kill()
    store = SqliteStore(str(path))
    await store.load()
    stored = [await store.read_events(f"run {number}", 1, 0, most) for number in range(runs)]
    await store.close()
    assert sum(map(len, stored)) <= most + of_a_run, "of one run, dropped events may be packed with kept ones"


async def test_a_path_is_matched_exactly(make_site: MakeSite) -> None:
    """A peer that no path of ours has let in is unauthenticated, even if the server answers other requests."""
    site = await make_site(connections=2)
    unauthenticated = await site.connect()
    assert await unauthenticated.asks(b"GET /v1x HTTP/1.1\r\nHost: x\r\n\r\n") == 404
    known = await site.connect()
    await unauthenticated.is_cut()
    assert await known.asks(STATUS) == 200
    assert await (await site.connect()).asks() == await known.asks() == 200


async def test_a_server_that_is_full_is_one_to_try_again(make_site: MakeSite) -> None:
    site = await make_site(connections=1)
    assert await (await site.connect()).asks(STATUS) == 200
    with pytest.raises(Unreachable) as error:
        await site.transport().exchange(a_join("a"))
    assert not error.value.is_final
