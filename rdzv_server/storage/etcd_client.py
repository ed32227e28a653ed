"""Client of an etcd cluster, which uses any member that answers.

The messages and stubs are those of `aetcd`. Its own client supports only one member and no TLS; see ADR 12. If a member
refuses, or hangs beyond a deadline, the client asks the next one, and asks that one first from then on. So a request
may reach etcd twice, or after its caller got an error. All requests are safe to repeat.
"""

import asyncio
import logging
import os
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # hide gRPC's own lines on stderr; failures are raised anyway

import grpc
from aetcd import rpc
from rdzv_protocol.certificates import load_authorities, load_own

from rdzv_server.storage.base import StoreBroken, StoreSilent, StoreUnavailable
from rdzv_server.tasks import first_of
from rdzv_server.threads import in_thread_or_here
from rdzv_server.words import etcd as words

log = logging.getLogger("rdzv_server")

ATTEMPT_S = 2.0
"""Most seconds for one member's answer to a request that is not urgent."""
WATCH_RETRY_S = 0.2
BEHIND_S = 1.0
"""Seconds before a watch ends whose member is behind what this server has read: the member may be cut off for long."""

_CHANNEL = {
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.min_reconnect_backoff_ms": 1_000,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.dns_min_time_between_resolutions_ms": 1_000,  # a name may be a Service that leads to all members
    "grpc.keepalive_time_ms": 10_000,  # for a watch on a vanished host; etcd accepts at most one in 5 s
    "grpc.keepalive_timeout_ms": 3_000,
    "grpc.max_receive_message_length": -1,
}
_NOT_PERMITTED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_OF_USERS = ("user name is empty", "auth store")
"""Parts of details that mean the same, with the status INVALID_ARGUMENT. The second one passes by itself: etcd's users
have changed while it had the request."""
_SILENT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
"""Statuses of requests that a member did not answer; without a majority, it answers none."""
_TIMED_OUT = "context deadline exceeded"
"""What a member answers, with the status UNKNOWN, if it did not hear from a majority in time."""

_OF_TLS = ("TSI_", "SSL_ERROR")
"""Parts of gRPC's details about a connection whose TLS fails. It reports no reason that the other side has sent."""


T = TypeVar("T")


class LeaseGone(StoreUnavailable):
    """Refusal to attach a key to a lease that has ended."""


class EtcdTls(NamedTuple):
    """Paths of PEM files. `cert` and `key`: this server's own, if etcd asks for them. If all are None: no TLS."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> Any:
        """Read the files. Return credentials for gRPC's channels; None without TLS.

        Raises `rdzv_protocol.certificates.BadCertificate`.
        """
        if not any(self):
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # gRPC would not say what is wrong with a file
        if self.cert is not None and self.key is not None:
            load_own(context, self.cert, self.key, "--etcd-cert", "--etcd-key")
        if self.ca is not None:
            load_authorities(context, "--etcd-ca", self.ca)
        files = (Path(path).read_bytes() if path is not None else None for path in (self.ca, self.key, self.cert))
        return grpc.ssl_channel_credentials(*files)


NO_TLS = EtcdTls()


class _Member:
    """Member of the etcd cluster: a channel, and the stubs that use it."""

    def __init__(self, address: str, credentials: Any) -> None:
        options = list(_CHANNEL.items())
        self.address = address
        if credentials is None:
            self.use(grpc.aio.insecure_channel(address, options))
        else:
            self.use(grpc.aio.secure_channel(address, credentials, options))

    def use(self, channel: grpc.aio.Channel) -> None:
        """Use this channel for all later requests."""
        self.channel = channel
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)


class EtcdClient:
    """Client of the etcd cluster with members at these addresses, `HOST:PORT`.

    Every method raises `StoreUnavailable`; this is `StoreSilent` if no member answers. For a request that etcd will
    never accept, every method raises `StoreBroken`. Before `identify` that is also one without permission.
    """

    def __init__(self, addresses: Sequence[str], tls: EtcdTls = NO_TLS) -> None:
        """Read the TLS files, and connect to no member yet. Raises `rdzv_protocol.certificates.BadCertificate`."""
        self._tls = tls
        credentials = tls.credentials()
        self._renewed = asyncio.Event()
        self._members = [_Member(address, credentials) for address in addresses]
        self._cluster = 0
        """Id of the cluster of the members; 0 until `identify` has found it. Other clusters' answers do not count."""
        self._strangers: set[str] = set()
        """Addresses at which another cluster has answered last."""
        self._mark = b""
        self.name = words.name(addresses)
        self.revision = 0
        """Highest revision in etcd's answers to reads and writes. Later answers have no lower one while etcd keeps its
        data."""

    async def close(self) -> None:
        await _close(member.channel for member in self._members)

    async def renew(self, key: bytes) -> None:
        """Read the TLS files again, and connect anew with them; requests that are under way continue.

        It reads `key` from etcd with the new files. If that fails, it keeps using the files that are in use, and raises
        `StoreUnavailable`; this is `StoreSilent` if etcd does not answer with those either, and may accept the new ones
        later. It also keeps them if it raises `rdzv_protocol.certificates.BadCertificate`.
        """
        credentials = await in_thread_or_here(self._tls.credentials)
        replacing = {member: _Member(member.address, credentials) for member in self._members}
        answers_now = await self._answers(key)
        try:
            await self._ask(_reads(key), list(replacing.values()))
        except (StoreBroken, StoreUnavailable) as error:
            await _close(member.channel for member in replacing.values())
            if answers_now:
                raise StoreUnavailable(words.only_with_old_files(str(error))) from None
            raise StoreSilent(str(error)) from None
        replaced = [member.channel for member in replacing]
        for member, new in replacing.items():
            member.use(new.channel)
        self._renewed.set()
        self._renewed = asyncio.Event()
        await _close(replaced, grace_s=inf)

    async def identify(self, mark: bytes) -> None:
        """Find out which cluster the members form, so that a member of another one counts as one that fails.

        An address may lead to another etcd: one that was started anew without its members, or another team's. `mark`:
        any key that this server may read. Raises `StoreBroken` if the members form several clusters, and none of these
        has most of the addresses.
        """
        self._mark = mark
        ids = await self._look_at_members(_cluster_of) or {"": _cluster_of(await self._ask(_reads(mark)))}
        most = self._of_most(ids)
        if most is None and len(set(ids.values())) > 1:
            raise StoreBroken(words.several_clusters([f"{address}: {each:x}" for address, each in ids.items()]))
        self._cluster = most or next(iter(ids.values()))
        self._members.sort(key=lambda member: ids.get(member.address) != self._cluster)  # ask these first

    async def verify(self) -> None:
        """Check that the members that answer have the same mark, which must exist by now.

        Clusters that were started with the same flags have the same id. Raises `StoreBroken`.
        """
        marks = await self._look_at_members(_creation_of)
        created = {address: each.revision for address, each in marks.items() if each.cluster == self._cluster}
        if len(set(created.values())) > 1:
            raise StoreBroken(words.members_differ(sorted(created), self._mark.decode()))

    async def _look_at_members(self, fact_of: Callable[[Any], T]) -> dict[str, T]:
        """Read the mark from each member, until most of them have given the same fact or all were asked.

        Return the facts by address, without members that do not answer.
        """

        async def read(member: _Member) -> tuple[str, Any]:
            with suppress(grpc.aio.AioRpcError):
                return member.address, await _reads(self._mark)(member)
            return member.address, None

        asked, found = [asyncio.ensure_future(read(member)) for member in self._members], dict[str, T]()
        try:
            for each in asyncio.as_completed(asked):
                address, answer = await each
                if answer is not None:
                    found[address] = fact_of(answer)
                if self._of_most(found) is not None:
                    break
        finally:
            for task in asked:
                task.cancel()
        return found

    def _of_most(self, facts: Mapping[str, T]) -> T | None:
        """Return the fact that more than half of all members have given; None if there is none."""
        for fact, times in Counter(facts.values()).most_common(1):
            if 2 * times > len(self._members):
                return fact
        return None

    def _is_own(self, answer: Any) -> bool:
        """Return whether an answer is not known to be of another cluster: `etcd grpc-proxy` names none in some."""
        told = _cluster_of(answer)
        return 0 in (told, self._cluster) or told == self._cluster

    async def _counts(self, member: _Member, answer: Any) -> bool:
        """Return whether an answer comes from this cluster. If most members now form another one, it is that."""
        if not self._is_own(answer):
            self._cluster = self._of_most(await self._look_at_members(_cluster_of)) or self._cluster
        if self._is_own(answer):
            self._strangers.discard(member.address)
            return True
        self._note_stranger(member)
        return False

    def _note_stranger(self, member: _Member) -> None:
        if member.address not in self._strangers:
            self._strangers.add(member.address)
            log.error("%s", words.other_cluster(member.address))

    async def _answers(self, key: bytes) -> bool:
        """Return whether etcd lets this server read the key now."""
        with suppress(StoreBroken, StoreUnavailable):
            await self._ask(_reads(key))
            return True
        return False

    async def get(self, key: bytes) -> tuple[Any | None, int]:
        """Read a key. Return it with its value, or None if it does not exist, and the store's revision."""
        answer = await self._ask(_reads(key))
        return (answer.kvs[0] if answer.kvs else None), self._revision_of(answer)

    async def range(
        self, begin: bytes, end: bytes, limit: int = 0, *, keys_only: bool = False
    ) -> tuple[Sequence[Any], bool, int]:
        """Read the keys from `begin` to below `end`.

        Return the keys with their values, whether there are more, and the store's revision.
        """
        request = rpc.RangeRequest(key=begin, range_end=end, limit=limit, keys_only=keys_only)
        answer = await self._ask(lambda member: member.kv.Range(request, timeout=2 * ATTEMPT_S))
        return answer.kvs, answer.more, self._revision_of(answer)

    async def pages(
        self, begin: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> AsyncGenerator[tuple[Sequence[Any], int], None]:
        """Yield the keys from `begin` to below `end`, at most `limit` at a time, each time with the store's revision.

        Other tasks run between two pages.
        """
        more = True
        while more:
            keys, more, revision = await self.range(begin, end, limit, keys_only=keys_only)
            yield keys, revision
            begin = keys[-1].key + b"\0" if keys else begin
            await asyncio.sleep(0)

    async def transact(self, compare: Sequence[Any], do: Sequence[Any]) -> tuple[bool, int]:
        """Do all operations if every comparison holds, else none.

        Return whether they were done, and the new revision.
        """
        request = rpc.TxnRequest(compare=compare, success=do)
        answer = await self._ask(lambda member: member.kv.Txn(request, timeout=ATTEMPT_S))
        return answer.succeeded, self._revision_of(answer)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Grant a lease. Return its id and its time to live in seconds, which etcd may have raised."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        answer = await self._ask(lambda member: member.lease.LeaseGrant(request, timeout=ATTEMPT_S))
        return answer.ID, answer.TTL

    async def keep_alive(self, lease_id: int, attempt_s: float) -> int:
        """Renew a lease. Return its seconds from now, 0 if it is gone. `attempt_s`: most seconds for each member."""

        async def ask(member: _Member) -> Any:
            call = member.lease.LeaseKeepAlive(timeout=attempt_s)
            try:
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
                if (answer := await call.read()) is not grpc.aio.EOF:
                    return answer
            finally:
                call.cancel()
            raise EOFError(words.CLOSED_STREAM)

        return int((await self._ask(ask)).TTL)

    async def time_to_live(self, lease_id: int) -> int:
        """Return the seconds until a lease ends, -1 if it is gone. This does not renew the lease."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = await self._ask(lambda member: member.lease.LeaseTimeToLive(request, timeout=ATTEMPT_S))
        return int(answer.TTL)

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and delete every key that is attached to it."""
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        await self._ask(lambda member: member.lease.LeaseRevoke(request, timeout=ATTEMPT_S))

    async def changed(self, key: bytes, from_revision: int, end: bytes = b"") -> None:
        """Return when a key, or any key from it to below `end`, has or may have changed at `from_revision` or later.

        Every member is watched, since one may be dead, hang or be cut off; the first report counts. After an outage
        etcd may be back without its data, and count its revisions from 1. So a watch that breaks off, or whose member
        has not reached `from_revision`, is such a report, too. So is `renew`, after which no watch uses the old files.
        """
        await first_of(
            self._renewed.wait(), *(self._watch(member, key, from_revision, end) for member in self._members)
        )

    async def _watch(self, member: _Member, key: bytes, from_revision: int, end: bytes) -> None:
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=from_revision)
        while True:
            call, watches = member.watch.Watch(wait_for_ready=True), False
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(rpc.WatchRequest(create_request=create))
                while (response := await call.read()) is not grpc.aio.EOF:
                    if not self._is_own(response):
                        call.cancel()
                        self._note_stranger(member)
                        await asyncio.sleep(BEHIND_S)
                        return
                    if response.events or response.canceled:  # canceled: the requested revision has been compacted
                        call.cancel()
                        return
                    if response.header.revision < from_revision - 1:
                        call.cancel()
                        await asyncio.sleep(BEHIND_S)
                        return
                    watches = True
            await asyncio.sleep(WATCH_RETRY_S)
            if watches:
                return

    def _is_hopeless(self, error: Exception) -> bool:
        """Return whether another member, or a later try, would fail as well.

        If etcd permits nothing at the start, a setting is wrong. Later, somebody has changed etcd's users, and may
        permit it again.
        """
        if not isinstance(error, grpc.aio.AioRpcError):
            return False
        return not self._cluster if _is_of_users(error) else error.code() is grpc.StatusCode.INVALID_ARGUMENT

    def _revision_of(self, answer: Any) -> int:
        revision = int(answer.header.revision)
        self.revision = max(self.revision, revision)
        return revision

    async def _ask(self, ask: Callable[[_Member], Awaitable[Any]], members: Sequence[_Member] | None = None) -> Any:
        """Return the first answer of a member, of all members or of these; each member is asked once."""
        problem, is_silent = "", True
        for member in list(self._members if members is None else members):
            try:
                answer = await ask(member)
                if await self._counts(member, answer):
                    return answer
                problem, is_silent = words.other_cluster(member.address), False
            except (grpc.aio.AioRpcError, EOFError) as error:
                problem, is_silent = _problem(member, error), is_silent and _is_silent(error)
                if self._is_hopeless(error):
                    raise StoreBroken(words.refuses(self.name, problem)) from None
                if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.NOT_FOUND:
                    raise LeaseGone(words.refuses(self.name, problem)) from None
            if self._members[0] is member:
                self._members.append(self._members.pop(0))
        raise (StoreSilent if is_silent else StoreUnavailable)(words.cannot_use(self.name, problem))


class _Creation(NamedTuple):
    """Cluster of a member, and the revision at which the mark was created there; 0 if there is no mark."""

    cluster: int
    revision: int


def _cluster_of(answer: Any) -> int:
    return int(answer.header.cluster_id)


def _creation_of(answer: Any) -> _Creation:
    return _Creation(_cluster_of(answer), answer.kvs[0].create_revision if answer.kvs else 0)


def _reads(key: bytes) -> Callable[[_Member], Awaitable[Any]]:
    return lambda member: member.kv.Range(rpc.RangeRequest(key=key), timeout=ATTEMPT_S)


async def _close(channels: Iterable[grpc.aio.Channel], grace_s: float | None = None) -> None:
    """Close channels. `grace_s`: most seconds for which requests that are under way may continue; None for none."""
    await asyncio.gather(*(channel.close(grace_s) for channel in channels))


def end_of(folder: bytes) -> bytes:
    """Return the first key after all keys below the folder, which ends in a slash: 0 follows / in ASCII."""
    return folder[:-1] + b"0"


def put(key: bytes, value: bytes, lease_id: int = 0) -> Any:
    """Return the operation that writes a key. `lease_id`: lease to attach it to; 0 for none."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease_id))


def delete(key: bytes, end: bytes = b"") -> Any:
    """Return the operation that deletes a key, or all keys from it to below `end`."""
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))


def is_made_at(key: bytes, revision: int) -> Any:
    """Return the comparison whether the key was created at this revision; 0: whether it does not exist."""
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision)


def is_free(key: bytes) -> Any:
    """Return the comparison whether the key does not exist."""
    return is_made_at(key, 0)


def is_there(key: bytes) -> Any:
    """Return the comparison whether the key exists."""
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.GREATER, create_revision=0)


def _is_of_users(error: grpc.aio.AioRpcError) -> bool:
    """Return whether etcd does not permit the request to this server's user."""
    return error.code() in _NOT_PERMITTED or any(part in (error.details() or "") for part in _OF_USERS)


def _is_silent(error: Exception) -> bool:
    """Return whether a member did not answer. Otherwise it refused the request, for example because its database is
    full.
    """
    return not isinstance(error, grpc.aio.AioRpcError) or error.code() in _SILENT or error.details() == _TIMED_OUT


def _problem(member: _Member, error: Exception) -> str:
    if not isinstance(error, grpc.aio.AioRpcError):
        return words.problem(member.address, error)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return words.no_answer(member.address)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in (error.details() or ""):
        return words.no_space(member.address)
    details = " ".join((error.details() or error.code().name).split())
    if _is_of_users(error):
        return words.not_permitted(member.address, details)
    if any(sign in details for sign in _OF_TLS):
        return words.tls_fails(member.address, details)
    return words.problem(member.address, details)
