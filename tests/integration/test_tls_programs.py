"""TLS in the real programs: what ends an agent, what a run outlives, and certificates that are replaced."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Pair
from tests.support.cluster import Cluster
from tests.support.etcd import etcd_cluster, need_etcd
from tests.support.process_info import is_running
from tests.support.programs import PATIENCE_S, Server, refuses, start_agent

AT_ONCE_S = 10.0
"""An agent waits for a server that is not there for 300 s."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "stranger")


def shows(pair: Pair) -> tuple[str, ...]:
    return ("--tls-cert", pair.cert, "--tls-key", pair.key)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[Server]:
    server = await Server.listen(*shows(authority.issue("server")))
    yield server
    await server.end()


async def test_a_run_over_mutual_tls(cluster: Cluster, authority: Authority) -> None:
    await cluster.serve(*shows(authority.issue("server")), "--tls-client-ca", authority.ca)
    node = ("--tls-ca", authority.ca, *shows(authority.issue("node", "node")))
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *node)
    first[3].order_exit(3)
    second = await cluster.hub.group(4)
    assert second[0].env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await cluster.finish(second)


# What ends an agent.


async def test_what_cannot_heal_ends_an_agent_at_once(
    server: Server, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    name = ("--endpoint", f"localhost:{server.port}")
    for flags, says in (
        ((*name, "--tls-ca", stranger.ca), f"from no authority in --tls-ca {stranger.ca}"),
        (name, "this server speaks TLS: start the agent with --tls-ca"),
    ):
        async with asyncio.timeout(AT_ONCE_S):
            await refuses(await start_agent(*flags), says)


async def test_an_agent_with_tls_at_a_server_without(cluster: Cluster, authority: Authority) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        agent = await start_agent("--endpoint", cluster.server.endpoint, "--tls-ca", authority.ca)
        await refuses(agent, "the server there speaks no TLS")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tls-ca", "/nowhere"), "--tls-ca /nowhere: No such file or directory"),
        (("--tls-ca", "system", "--tls-cert", "x"), "--tls-cert and --tls-key belong together"),
        (("--tls-cert", "x", "--tls-key", "y"), "--tls-cert needs --tls-ca, too"),
        (("--standalone", "--tls-ca", "system"), "a server that a node hosts speaks no TLS"),
        (("--rdzv-backend", "c10d", "--tls-ca", "system"), "a server that a node hosts speaks no TLS"),
    ],
)
async def test_flags_that_make_no_sense(flags: tuple[str, ...], says: str) -> None:
    await refuses(await start_agent("--endpoint", "127.0.0.1:9", *flags), says)


# What a run outlives.


async def test_workers_outlive_a_server_with_the_wrong_certificate(
    cluster: Cluster, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    good, bad = shows(authority.issue("server")), shows(stranger.issue("wrong"))
    store = ("--store", f"sqlite:{tmp_path / 'runs.db'}")
    server = await cluster.serve(*good, *store)
    workers = await cluster.nodes("a", "--tls-ca", authority.ca, "--lease", "60")
    for flags, says in ((bad, "from no authority in --tls-ca"), (good, "reached rdzv-server at")):
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
        await leader.line("leading: ")
        follower = await cluster.serve(*certificate, *store)
        await follower.line("following")
        endpoints = f"{leader.endpoint},{follower.endpoint}"
        workers = await cluster.nodes("a", "--endpoint", endpoints, "--tls-ca", authority.ca)
        await leader.end()
        await cluster.agents["a"].line(f"rdzv-server at {follower.endpoint} leads now")
        await cluster.finish(workers)


# Certificates that are replaced.


class Visitor:
    """A connection to the server."""

    @classmethod
    async def come(cls, server: Server, authority: Authority) -> "Visitor":
        self = cls()
        context = authority.credentials().context()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        connection: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        self.was_shown = connection.getpeercert(binary_form=True)
        return self

    async def asks(self) -> bytes:
        """The first line of an answer."""
        self._writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            await self._reader.readexactly(len(b"ok\n"))
        return head.splitlines()[0]

    def leave(self) -> None:
        self._writer.close()


async def test_new_connections_are_shown_the_new_certificate_and_standing_ones_go_on(
    server: Server, authority: Authority
) -> None:
    first = await Visitor.come(server, authority)
    assert await first.asks() == b"HTTP/1.1 200 OK"
    authority.issue("server")
    server.signal(signal.SIGHUP)
    await server.line("SIGHUP: new connections get")
    second = await Visitor.come(server, authority)
    assert second.was_shown != first.was_shown
    assert await first.asks() == await second.asks() == b"HTTP/1.1 200 OK"
    first.leave()
    second.leave()


async def test_a_bad_certificate_is_said_and_the_old_one_stays(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    before = await Visitor.come(server, authority)
    (tmp_path / "server.pem").write_text("half a certifi")
    server.signal(signal.SIGHUP)
    await server.line("SIGHUP: --tls-cert .*server.pem: there is no certificate in it .*; keeping")
    after = await Visitor.come(server, authority)
    assert after.was_shown == before.was_shown
    before.leave()
    after.leave()


async def test_the_server_says_how_long_its_certificate_is_good(authority: Authority) -> None:
    for days, says in ((90, "TLS: certificate .* expires on 20"), (3, "expires in 2 days"), (-1, "has expired: ")):
        server = await Server.listen(*shows(authority.issue("server", days=days)))
        await server.line(says)
        await server.end()
