"""TLS between agents and servers: which connections succeed, and how each failure is reported."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import TlsRequired
from rdzv_protocol.messages import Reply
from rdzv_protocol.words import tls as words

from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.words import http
from tests.support.certificates import Authority, Pair
from tests.support.message_search import has_message, pattern
from tests.support.scenario import a_join


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Yield the port of a server in this process."""
    async with RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener, tls)
        yield listener.getsockname()[1]


async def join(port: int, credentials: Credentials | None, host: str = "127.0.0.1") -> object:
    """Return the answer to a join."""
    transport = HttpTransport(host, port, credentials)
    try:
        return await transport.exchange(a_join("a"))
    finally:
        await transport.close()


async def failure(port: int, credentials: Credentials | None, host: str = "127.0.0.1") -> Unreachable:
    """Return why a join fails for good."""
    with pytest.raises(Unreachable) as raised:
        await join(port, credentials, host)
    assert raised.value.is_final
    return raised.value


# Successful connections.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_agent_that_trusts_the_servers_ca_joins(authority: Authority, host: str) -> None:
    async with serving(TlsFiles(*authority.issue("server")).context()) as port:
        assert isinstance(await join(port, authority.credentials(), host), Reply)


async def test_with_a_client_ca_only_nodes_with_its_certificates_can_join(
    authority: Authority, other_authority: Authority
) -> None:
    tls = TlsFiles(*authority.issue("server"), client_ca=other_authority.ca).context()
    async with serving(tls) as port:
        assert isinstance(await join(port, authority.credentials(other_authority.issue("node", "node-a"))), Reply)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_older_versions_are_not_spoken(authority: Authority) -> None:
    context = authority.credentials().context()
    assert context
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(TlsFiles(*authority.issue("server")).context()) as port:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)


# Failures, and why.


ShownCertificate = Callable[[Authority, Authority], Pair | None]


@pytest.mark.parametrize(
    ("shown", "host", "says"),
    [
        (lambda ours, theirs: theirs.issue("server"), "127.0.0.1", words.other_authority),
        (lambda ours, theirs: ours.issue("server", "other.example"), "localhost", words.other_host),
        (lambda ours, theirs: ours.issue("server", "10.9.9.9"), "127.0.0.1", words.other_host),
        (lambda ours, theirs: ours.issue("server", days=-1), "127.0.0.1", words.EXPIRED),
        (lambda ours, theirs: None, "127.0.0.1", words.no_tls),
    ],
    ids=["another authority's", "another name's", "another address's", "expired", "no TLS"],
)
async def test_an_untrusted_server_certificate_is_reported(
    authority: Authority, other_authority: Authority, shown: ShownCertificate, host: str, says: Callable[..., str] | str
) -> None:
    pair = shown(authority, other_authority)
    async with serving(TlsFiles(*pair).context() if pair else None) as port:
        error = await failure(port, authority.credentials(), host)
    assert has_message(error, says)


async def test_an_agent_without_tls(authority: Authority) -> None:
    async with serving(TlsFiles(*authority.issue("server")).context()) as port:
        with pytest.raises(TlsRequired, match=pattern(http.SPEAKS_TLS)):
            await join(port, None)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (lambda ours, theirs: None, words.asks_for_certificate("--tls-cert", "--tls-key")),
        (lambda ours, theirs: theirs.issue("node", "a"), words.refused("unknown ca", "--tls-cert")),
        (lambda ours, theirs: ours.issue("node", "a", days=-1), words.refused("certificate expired", "--tls-cert")),
    ],
    ids=["none", "another authority's", "expired"],
)
async def test_a_rejected_node_gets_the_reason(
    authority: Authority, other_authority: Authority, version: ssl.TLSVersion, certificate: ShownCertificate, says: str
) -> None:
    tls = TlsFiles(*authority.issue("server"), client_ca=authority.ca).context()
    tls.maximum_version = version
    async with serving(tls) as port:
        error = await failure(port, authority.credentials(certificate(authority, other_authority)))
    assert str(error).startswith(f"TLS: {says}")


async def test_a_server_that_hangs_up_may_be_there_the_next_time(authority: Authority) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    with pytest.raises(Unreachable) as raised:
        await join(server.sockets[0].getsockname()[1], authority.credentials())
    assert raised.value.stage == "connect"
    assert not raised.value.is_final
    server.close()


async def test_a_closed_transport_does_not_wait_for_the_servers_answer(authority: Authority) -> None:
    """The agent's loop may end right after it."""
    async with serving(TlsFiles(*authority.issue("server")).context()) as port:
        transport = HttpTransport("127.0.0.1", port, authority.credentials())
        await transport.connect()
        assert transport._connection
        own_socket = transport._connection.streams[1].get_extra_info("socket")
        await transport.close()
        await asyncio.sleep(0)
        assert own_socket.fileno() == -1
