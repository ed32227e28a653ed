"""TLS in the real programs: what a run survives, and certificates that are replaced."""

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from rdzv_protocol import paths
from rdzv_protocol.certificates import validity
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import tls

from node_agent import words
from rdzv_server.words import auth
from rdzv_server.words import cluster as cluster_words
from tests.support.certificates import Authority, Pair
from tests.support.cluster import PATIENT, Cluster
from tests.support.etcd import Member, etcd_cluster, need_etcd
from tests.support.message_search import pattern
from tests.support.outages import REACHED
from tests.support.process_info import is_running, until
from tests.support.programs import PATIENCE_S, Server, refuses, start_agent
from tests.support.prometheus import Scrape
from tests.support.tcp_proxy import TcpProxy


def shows(pair: Pair) -> tuple[str, ...]:
    return ("--tls-cert", pair.cert, "--tls-key", pair.key)


@pytest.fixture
async def server(authority: Authority) -> Server:
    return await Server.listen(*shows(authority.issue("server")))


async def test_a_run_over_mutual_tls(cluster: Cluster, authority: Authority) -> None:
    await cluster.serve(*shows(authority.issue("server")), "--tls-client-ca", authority.ca)
    node = ("--tls-ca", authority.ca, *shows(authority.issue("node", "node")))
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *node)
    first[3].order_exit(3)
    second = await cluster.hub.group(4)
    assert second[0].env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await cluster.finish(second)


async def test_an_agent_with_tls_at_a_server_without_it_gets_one_piece_of_advice() -> None:
    """No certificates are there to check."""
    server = await Server.listen()
    agent = await start_agent("--endpoint", server.endpoint, "--tls-ca", "system")
    unusable = words.connection.server_unusable(server.endpoint, f"TLS: {tls.no_tls('--tls-ca')}", "TLS")
    await refuses(agent, unusable, code=ExitCode.REFUSED)
    assert agent.err[-1].endswith(unusable) and unusable.endswith(f"{tls.no_tls('--tls-ca')})")


# Faults that a run survives.


async def test_workers_outlive_a_server_with_the_wrong_certificate(
    cluster: Cluster, authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    good, bad = shows(authority.issue("server")), shows(other_authority.issue("wrong"))
    store = ("--store", f"sqlite:{tmp_path / 'runs.db'}")
    server = await cluster.serve(*good, *store)
    workers = await cluster.nodes("a", "--tls-ca", authority.ca, "--lease", "60")
    for flags, says in ((bad, "no CA in --tls-ca"), (good, REACHED)):
        await cluster.server.end()
        await cluster.serve(*flags, *store, port=server.port)
        await cluster.agents["a"].line(says)
        assert all(is_running(worker.pid) for worker in workers)
    await cluster.finish(workers)


async def test_the_next_leader_is_followed_over_tls(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:  # fmt: skip
    need_etcd()
    certificate = shows(authority.issue("server"))
    with etcd_cluster(tmp_path, 1) as etcd:
        store = ("--store", f"etcd://{','.join(etcd.addresses)}/tls", "--leader-lease", "2")
        leader = await cluster.serve(*certificate, *store)
        await leader.line(pattern(cluster_words.leads, shard=None, runs=0))
        follower = await cluster.serve(*certificate, *store)
        await follower.line("following")
        endpoints = f"{leader.endpoint},{follower.endpoint}"
        workers = await cluster.nodes("a", "--endpoint", endpoints, "--tls-ca", authority.ca)
        await leader.end()
        await cluster.agents["a"].line(pattern(words.connection.leads_now, server=follower.endpoint))
        await cluster.finish(workers)


async def test_certificates_for_etcd_and_their_authority_are_renewed_without_restarting_the_server(
    cluster: Cluster, authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    need_etcd()
    authority.issue("etcd", "127.0.0.1")
    pair = authority.issue("for-etcd", "127.0.0.1")
    authority.trust_also(other_authority)
    member = Member("tls", tmp_path, tmp_path)
    try:
        member.start(member.peer)
        server = await cluster.serve(
            "--store", f"etcd://{member.address}/tls", "--leader-lease", "2",
            "--etcd-ca", authority.ca, "--etcd-cert", pair.cert, "--etcd-key", pair.key,
        )  # fmt: skip
        await server.line(pattern(cluster_words.leads, shard=None, runs=0))
        workers = await cluster.nodes("a", "--max-restarts", "1", *PATIENT)
        other_authority.issue("etcd", "127.0.0.1")
        other_authority.issue("for-etcd", "127.0.0.1")
        server.signal(signal.SIGHUP)
        await server.line(pattern(auth.ETCD_RENEWED))
        authority.give_way(other_authority)
        member.kill()
        member.start(member.peer)
        workers[0].order_exit(3)
        workers = await cluster.hub.group(2)
        await cluster.finish(workers)
        member.kill()
        server.signal(signal.SIGHUP)
        await server.line(pattern(auth.etcd_not_renewed_yet))
        member.start(member.peer)
        await server.line(pattern(auth.ETCD_RENEWED), nth=2)
        (tmp_path / "for-etcd.key").write_text("half a key")
        server.signal(signal.SIGHUP)
        await server.line(pattern(auth.etcd_not_renewed(tls.bad_file("--etcd-key", pair.key, tls.NO_KEY))))
    finally:
        member.kill()
        member.release()


async def test_certificates_and_then_their_authority_are_renewed_without_restarting_workers(
    cluster: Cluster, authority: Authority, other_authority: Authority
) -> None:
    """Both authorities are trusted before the new one's first certificate is used."""
    server = await cluster.serve(*shows(authority.issue("server")), "--tls-client-ca", authority.ca)
    async with TcpProxy(server.endpoint) as proxy:
        node = ("--tls-ca", authority.ca, *shows(authority.issue("node", "node")))
        flags = ("--endpoint", proxy.address, "--nnodes", "2", "--max-restarts", "1", *PATIENT, *node)
        for name in "ab":
            await cluster.agent(name, *flags, "--node-id", name, "--nproc", "1")
        workers = await cluster.hub.group(2)

        async def renew(*changes: Callable[[], object]) -> None:
            for change in changes:
                change()
            before = len(server.err)
            server.signal(signal.SIGHUP)
            await until(lambda: any("SIGHUP: the server has" in line for line in server.err[before:]))
            async with asyncio.timeout(PATIENCE_S):
                await proxy.drop(2)

        await renew(lambda: authority.issue("server"), lambda: authority.issue("node", "node"))
        await renew(lambda: authority.trust_also(other_authority))
        await renew(lambda: other_authority.issue("server"), lambda: other_authority.issue("node", "node"))
        await renew(lambda: authority.give_way(other_authority))
        assert all(is_running(worker.pid) for worker in workers)
        workers[0].kill()
        workers = await cluster.hub.group(2)
        assert workers[0].env["TORCHELASTIC_RESTART_COUNT"] == "1", "for the failure, and for nothing else"
        await cluster.finish(workers)


# Certificates that are replaced.


class Client:
    """A connection to the server, and the certificate that the server sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.was_shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    async def asks(self) -> bytes:
        """Return the first line of an answer."""
        self._writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            return (await self._reader.readuntil(b"ok\n")).splitlines()[0]


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def connect(server: Server, authority: Authority) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connect() -> Client:
            context = authority.credentials().context()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            stack.callback(writer.close)
            return Client(reader, writer)

        yield connect


async def test_new_connections_get_the_new_certificate_and_open_ones_continue(
    server: Server, authority: Authority, connect: Connect
) -> None:
    first = await connect()
    assert await first.asks() == b"HTTP/1.1 200 OK"
    authority.issue("server")
    server.signal(signal.SIGHUP)
    await server.line("SIGHUP: the server has")
    second = await connect()
    assert second.was_shown != first.was_shown
    assert await first.asks() == await second.asks() == b"HTTP/1.1 200 OK"


async def test_metrics_have_the_end_of_the_certificate_in_use(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    own = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=authority.credentials().context())
    opener = urllib.request.build_opener(*own)

    def ends_at() -> float:
        at = f"https://127.0.0.1:{server.port}{paths.METRICS}"
        with opener.open(at, timeout=PATIENCE_S) as answer:
            return Scrape(answer.read().decode())("rdzv_certificate_expiry_timestamp_seconds", flag="--tls-cert")

    cert = str(tmp_path / "server.pem")
    assert await asyncio.to_thread(ends_at) == validity("", cert).ends_at.timestamp()
    authority.issue("server", days=30)
    server.signal(signal.SIGHUP)
    await server.line("SIGHUP: the server has")
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(ends_at) != validity("", cert).ends_at.timestamp():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_end_of_the_certificate_is_logged_when_it_comes(authority: Authority) -> None:
    pair = authority.issue("server", days=10 / 86_400)
    server = await Server.listen(*shows(pair))
    await server.line(pattern(auth.certificate_expires("--tls-cert", pair.cert, 0)))
    await server.line(pattern(auth.certificate_expired("--tls-cert", pair.cert)))


async def test_an_invalid_certificate_is_logged_and_the_old_one_is_kept(
    server: Server, connect: Connect, tmp_path: Path
) -> None:
    before = await connect()
    (tmp_path / "server.pem").write_text("half a certifi")
    server.signal(signal.SIGHUP)
    await server.line(
        pattern(auth.not_renewed(tls.bad_file("--tls-cert", str(tmp_path / "server.pem"), tls.NO_CERTIFICATE)))
    )
    assert (await connect()).was_shown == before.was_shown
