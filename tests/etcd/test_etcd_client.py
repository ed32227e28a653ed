"""Any reachable member answers requests to etcd, and errors are reported."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.certificates import BadCertificate
from rdzv_protocol.words import tls as tls_words

from rdzv_server.storage.base import StoreBroken, StoreSilent, StoreUnavailable
from rdzv_server.words import etcd as words
from tests.etcd.conftest import PATIENCE_S, until
from tests.support.certificates import Authority
from tests.support.etcd import Etcd, Member, etcd_cluster, grpc_proxy, make_tls, need_etcd, written
from tests.support.message_search import pattern
from tests.support.tcp_proxy import TcpProxy

need_etcd()

from aetcd import rpc  # noqa: E402

from rdzv_server.storage import etcd_client as module  # noqa: E402
from rdzv_server.storage.etcd import format_key, settle_format  # noqa: E402
from rdzv_server.storage.etcd_client import (  # noqa: E402
    NO_TLS,
    EtcdClient,
    EtcdTls,
    LeaseGone,
    is_there,
    put,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", 0.3)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
async def test_any_member_may_fail(three: Etcd, how: signal.Signals) -> None:
    for member in three.members:
        member.signal(how)
        await written(three.addresses)
        if how is signal.SIGSTOP:
            member.signal(signal.SIGCONT)
        else:
            member.kill()
            three.start(member)
        await written([member.address])


async def test_a_change_arrives_from_the_remaining_members_too(three: Etcd, prefix: str) -> None:
    async with client_of(three.addresses) as client:
        _, revision = await client.get(b"-")
        heard = asyncio.create_task(client.changed(prefix.encode(), revision + 1))
        await asyncio.sleep(0)
        with stopped(three.members[:1]):
            await written(three.addresses, prefix)
            async with asyncio.timeout(PATIENCE_S):
                await heard


async def test_without_a_majority_nothing_is_written(three: Etcd) -> None:
    async with client_of(three.addresses) as client:
        with stopped(three.members[:2]), pytest.raises(StoreSilent, match=r"^cannot use etcd \(127"):
            await client.transact([], [put(b"/x", b"x")])
    await written(three.addresses)


async def test_a_refusal_is_not_silence(three: Etcd) -> None:
    async with client_of(three.addresses) as client:
        with pytest.raises(StoreUnavailable) as raised:
            await client.revoke(1)
    assert not isinstance(raised.value, StoreSilent)


@contextmanager
def stopped(members: Sequence[Member]) -> Iterator[None]:
    for member in members:
        member.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for member in members:
            member.signal(signal.SIGCONT)


@asynccontextmanager
async def client_of(addresses: Sequence[str], tls: EtcdTls = NO_TLS) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(addresses, tls)
    try:
        yield client
    finally:
        await client.close()


async def answered(client: EtcdClient) -> None:
    """Return once etcd answers: it may be starting, or a connection has broken."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(StoreUnavailable):
                await client.get(b"-")
                return
            await asyncio.sleep(0.02)


# Members of several clusters.


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a member of another cluster."""
    with etcd_cluster(tmp_path_factory.mktemp("stranger"), 1) as etcd:
        yield etcd.addresses[0]


async def held_by(address: str, key: str) -> bool:
    async with client_of([address]) as client:
        return (await client.get(key.encode()))[0] is not None


async def test_a_member_of_another_cluster_is_not_used(
    three: Etcd, stranger: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would elect a leader of its own."""
    async with client_of([stranger, *three.addresses[:2]]) as client:
        await settle_format(client, prefix, 1)
        await client.transact([], [put(f"{prefix}/x".encode(), b"x")])
        assert await held_by(three.addresses[2], f"{prefix}/x")
        async with asyncio.timeout(PATIENCE_S):
            await client.changed(b"/never", client.revision + 1)
        assert caplog.messages == [words.other_cluster(stranger)]
    for key in ("x", "format"):
        assert not await held_by(stranger, f"{prefix}/{key}")


async def test_a_member_that_becomes_part_of_another_cluster_is_not_used(
    three: Etcd, stranger: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It still gets requests, but each later write of a server needs a key or a lease of the own cluster."""
    own = is_there(format_key(prefix))
    async with TcpProxy(three.addresses[0]) as proxy, client_of([proxy.address, *three.addresses[1:]]) as client:
        await settle_format(client, prefix, 1)
        proxy.target = stranger
        await proxy.drop(0)
        with stopped(three.members):
            async with asyncio.timeout(PATIENCE_S):
                while not caplog.messages:
                    with pytest.raises(StoreUnavailable):
                        await client.transact([own], [put(f"{prefix}/x".encode(), b"x")])
        assert caplog.messages == [words.other_cluster(proxy.address)]
        assert not await held_by(stranger, f"{prefix}/x")
        async with asyncio.timeout(PATIENCE_S):
            while not await held_by(three.addresses[2], f"{prefix}/y"):
                with suppress(StoreUnavailable):  # its members elect a leader
                    await client.transact([], [put(f"{prefix}/y".encode(), b"y")])


async def test_etcds_own_proxy_is_no_other_cluster(
    three: Etcd, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins each further watch of a key by itself, with 0 as the id of the cluster."""
    key = f"{prefix}/x".encode()
    with grpc_proxy(tmp_path, three) as address:
        await written([address])
        async with client_of([address]) as client:
            await settle_format(client, prefix, 1)
            create = rpc.WatchCreateRequest(key=key, start_revision=client.revision + 1)

            async def watch() -> int:
                """Return the cluster id with which a watch begins, which continues."""
                call = client._members[0].watch.Watch()
                calls.append(call)
                await call.write(rpc.WatchRequest(create_request=create))
                return (await call.read()).header.cluster_id

            calls: list[Any] = []
            async with asyncio.timeout(PATIENCE_S):
                assert await watch() != 0
                heard = asyncio.create_task(client.changed(key, create.start_revision))
                assert await watch() == 0
                await client.transact([], [put(key, b"x")])
                await heard
            for call in calls:
                call.cancel()
    assert caplog.messages == []


async def test_if_most_members_form_another_cluster_that_one_is_used(three: Etcd, stranger: str, prefix: str) -> None:
    """It was restored from a snapshot, or lost its data."""
    async with TcpProxy(three.addresses[0]) as proxy, client_of([proxy.address]) as client:
        await settle_format(client, prefix, 1)
        proxy.target = stranger
        await proxy.drop(0)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(StoreUnavailable):
                    await client.transact([], [put(f"{prefix}/x".encode(), b"x")])
                    break
        assert await held_by(stranger, f"{prefix}/x")


async def test_members_of_several_clusters_without_a_majority_are_refused(three: Etcd, stranger: str, prefix: str):
    async with client_of([stranger, three.addresses[0], "127.0.0.1:1"]) as client:
        with pytest.raises(StoreBroken, match=pattern(words.several_clusters)):
            await settle_format(client, prefix, 1)


async def test_clusters_that_were_started_with_the_same_flags_are_told_apart(prefix: str, tmp_path: Path) -> None:
    """With etcd's defaults, each of them forms a cluster of the same id."""
    members = [Member("default", tmp_path / name, peer_url="http://localhost:2380") for name in "ab"]
    try:
        for member in members:
            member.data.parent.mkdir()
            member.start(member.peer)
            await written([member.address])
        async with client_of([member.address for member in members]) as client:
            with pytest.raises(StoreBroken, match=pattern(words.members_differ)):
                await settle_format(client, prefix, 1)
    finally:
        for member in members:
            member.kill()
            member.release()


async def test_if_no_member_answers_its_cluster_is_not_known_yet(prefix: str) -> None:
    async with client_of(["127.0.0.1:1"]) as client:
        with pytest.raises(StoreSilent):
            await settle_format(client, prefix, 1)


# Users of etcd.


async def test_a_server_that_is_no_longer_permitted_waits_until_it_is_again(prefix: str, tmp_path: Path) -> None:
    """Somebody enables etcd's users while servers run. At the start it is a wrong setting."""
    with etcd_cluster(tmp_path, 1) as etcd:
        async with client_of(etcd.addresses) as client, client_of(etcd.addresses) as late:
            await settle_format(client, prefix, 1)
            for command in ("user add root:secret", "user grant-role root root", "auth enable"):
                await asyncio.to_thread(etcd.ctl, *command.split())
            not_permitted = pattern(words.not_permitted, member=etcd.addresses[0])
            with pytest.raises(StoreUnavailable, match=not_permitted) as raised:
                await client.get(b"-")
            assert not isinstance(raised.value, StoreSilent)
            with pytest.raises(StoreBroken, match=not_permitted):
                await settle_format(late, prefix, 1)
            await asyncio.to_thread(etcd.ctl, "--user", "root:secret", "auth", "disable")
            await client.get(b"-")


# TLS.


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    make_tls(folder)
    return folder


@pytest.fixture
def secure(tls: Path, tmp_path: Path):
    member = Member("secure", tmp_path, tls)
    member.start(member.peer)
    yield member
    member.kill()
    member.release()


async def test_etcd_is_reached_over_tls_with_a_client_certificate(secure: Member, tls: Path) -> None:
    await answers_over_tls(secure, tls)


async def answers_over_tls(secure: Member, tls: Path) -> None:
    """Return once the member has answered."""
    files = EtcdTls(f"{tls}/ca.pem", f"{tls}/server.pem", f"{tls}/server.key")
    async with client_of([secure.address], files) as client:
        await answered(client)


@pytest.mark.parametrize(
    ("ca", "own"), [("ca", None), (None, "server"), (None, None)], ids=["no certificate", "no CA", "no TLS"]
)
async def test_a_client_without_the_right_certificate_is_refused(secure: Member, tls: Path, ca, own) -> None:
    """The member answers: a refused connection says nothing about certificates."""
    await answers_over_tls(secure, tls)
    papers = EtcdTls(ca and f"{tls}/{ca}.pem", own and f"{tls}/{own}.pem", own and f"{tls}/{own}.key")
    async with client_of([secure.address], papers) as client:
        problem = words.tls_fails if ca or own else words.problem  # without TLS, the connection only closes
        with pytest.raises(StoreUnavailable, match=pattern(problem, member=secure.address)):
            await client.get(b"-")


async def test_a_lease_that_has_ended_is_no_fault_of_etcd(three: Etcd) -> None:
    async with client_of(three.addresses) as client:
        lease_id, _ = await client.grant(60)
        await client.revoke(lease_id)
        with pytest.raises(LeaseGone):
            await client.transact([], [put(b"/of-a-lease", b"", lease_id)])


def test_a_bad_file_is_named(tls: Path, tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match=pattern(tls_words.unreadable, flag="--etcd-ca", path=f"{tmp_path}/none")):
        EtcdTls(ca=f"{tmp_path}/none").credentials()
    cert, key = f"{tls}/server.pem", f"{tls}/etcd.key"
    with pytest.raises(BadCertificate, match=pattern(tls_words.other_key("--etcd-cert", cert, "--etcd-key", key))):
        EtcdTls(cert=cert, key=key).credentials()


# Files that are renewed.


class Papers:
    """Certificates of an etcd of one member and of its client, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = Authority(folder), Authority(folder, "new")
        self.old.issue("etcd", "127.0.0.1")
        self.old.issue("server", "127.0.0.1")
        self.files = EtcdTls(f"{folder}/ca.pem", f"{folder}/server.pem", f"{folder}/server.key")
        self.member = Member("renewed", folder, folder)

    def spoil(self) -> None:
        """Leave half a certificate in the client's file."""
        Path(self.files.cert or "").write_text("half a certifi")

    async def starts(self) -> None:
        """Start the member again, with the certificates of now. Return when it answers a client with these files."""
        self.member.kill()
        self.member.start(self.member.peer)
        async with client_of([self.member.address], self.files) as client:
            await answered(client)


@pytest.fixture
def papers(tls: Path, tmp_path: Path) -> Iterator[Papers]:
    papers = Papers(tmp_path)
    yield papers
    papers.member.kill()
    papers.member.release()


async def test_new_files_are_used_from_then_on_and_a_watch_begins_again(papers: Papers) -> None:
    papers.old.trust_also(papers.new)
    await papers.starts()
    async with client_of([papers.member.address], papers.files) as client:
        heard = asyncio.create_task(client.changed(b"/never", 1 + (await client.get(b"-"))[1]))
        for name in ("etcd", "server"):
            papers.new.issue(name, "127.0.0.1")
        await client.renew(b"-")
        async with asyncio.timeout(PATIENCE_S):
            await heard
        papers.old.give_way(papers.new)
        await papers.starts()
        await answered(client)  # its connection has broken


async def test_a_request_continues_while_the_files_are_renewed(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", PATIENCE_S)
    await papers.starts()
    async with TcpProxy(papers.member.address) as gate, client_of([gate.address], papers.files) as client:
        await client.get(b"-")
        of_open = gate.hold_answers_of_new()
        renewed = asyncio.create_task(client.renew(b"-"))
        async with asyncio.timeout(PATIENCE_S):
            await gate.holds()  # it connects with the new files
            of_open.clear()
            with_old_files = client._members[0].channel
            asked = asyncio.create_task(client.get(b"-"))
            await gate.holds()
            gate.release()
            await until(lambda: client._members[0].channel is not with_old_files)
            of_open.set()
            assert await asked
            await renewed


async def test_files_that_etcd_does_not_accept_are_not_used(papers: Papers) -> None:
    await papers.starts()
    async with client_of([papers.member.address], papers.files) as client:
        await client.get(b"-")
        papers.new.issue("server", "127.0.0.1")
        why = pattern(words.only_with_old_files)
        with pytest.raises(StoreUnavailable, match=why):
            await client.renew(b"-")
        papers.spoil()
        with pytest.raises(BadCertificate):
            await client.renew(b"-")
        await client.get(b"-")


async def test_bad_files_do_not_replace_good_ones_while_etcd_does_not_answer(papers: Papers) -> None:
    async with client_of([papers.member.address], papers.files) as client:
        papers.new.issue("server", "127.0.0.1")
        with pytest.raises(StoreSilent):
            await client.renew(b"-")
        papers.member.start(papers.member.peer)
        await answered(client)
        with pytest.raises(StoreUnavailable, match=pattern(words.only_with_old_files)):
            await client.renew(b"-")


async def test_if_etcd_does_not_answer_with_the_files_in_use_it_gets_the_new_ones(papers: Papers) -> None:
    """The files in use may be the reason, such as an expired certificate."""
    papers.old.trust_also(papers.new)
    async with client_of([papers.member.address], papers.files) as client:
        for name in ("etcd", "server"):
            papers.new.issue(name, "127.0.0.1")
        with pytest.raises(StoreSilent):
            await client.renew(b"-")
        papers.old.give_way(papers.new)
        await papers.starts()
        await client.renew(b"-")
        await answered(client)
