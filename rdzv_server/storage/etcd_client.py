"""Client of an etcd cluster, through whichever member answers.

The messages and stubs are `aetcd`'s. Its own client knows one member and no TLS; see docs/adr/0012.

A member that is dead refuses, one that hangs runs into a deadline: the next one is asked, and stays the first to be
asked. Every request may therefore reach etcd twice, or after the caller was told that it failed: each is one that may.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own lines on stderr; what fails is raised, too

import grpc
from aetcd import rpc

from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.tasks import first_of

log = logging.getLogger("rdzv_server")

ATTEMPT_S = 2.0
"""Seconds that one member may take for what is not in a hurry."""
WATCH_RETRY_S = 0.2

_CHANNEL = {
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.min_reconnect_backoff_ms": 1_000,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.keepalive_time_ms": 10_000,  # a watch on a host that vanished; etcd takes no more than one in 5 s
    "grpc.keepalive_timeout_ms": 3_000,
    "grpc.max_receive_message_length": -1,
}
_HOPELESS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}
"""Another member would say the same, and so would this one later."""
_NO_SPACE = "its space is used up: compact and defragment it, and see docs/failover.md for how to keep it small"

T = TypeVar("T")


class EtcdTls(NamedTuple):
    """Files in PEM. `cert` and `key`: who this server is, where etcd asks for it. Without any: no TLS."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> Any:
        """For gRPC. Raises `StoreBroken`."""
        try:
            files = (Path(path).read_bytes() if path is not None else None for path in (self.ca, self.key, self.cert))
            return grpc.ssl_channel_credentials(*files) if any(self) else None
        except OSError as error:
            raise StoreBroken(f"cannot read {error.filename}: {error.strerror}") from None


NO_TLS = EtcdTls()


class _Member:
    """One member of the cluster: a channel, and the stubs over it."""

    def __init__(self, address: str, credentials: Any) -> None:
        options = list(_CHANNEL.items())
        self.address = address
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)


class EtcdClient:
    """The cluster whose members are at these addresses, `HOST:PORT`. Every method raises `StoreUnavailable`.

    A request that etcd will never take, for want of a permission, say, raises `StoreBroken`.
    """

    def __init__(self, addresses: Sequence[str], tls: EtcdTls = NO_TLS) -> None:
        credentials = tls.credentials()
        self._members = [_Member(address, credentials) for address in addresses]
        self.name = f"etcd ({', '.join(addresses)})"

    async def close(self) -> None:
        for member in self._members:
            await member.channel.close()

    async def get(self, key: bytes) -> tuple[Any | None, int]:
        """The key and its value as they are now, None if it is not there; and the store's revision."""
        answer = await self._ask(lambda member: member.kv.Range(rpc.RangeRequest(key=key), timeout=ATTEMPT_S))
        return (answer.kvs[0] if answer.kvs else None), answer.header.revision

    async def range(
        self, begin: bytes, end: bytes, limit: int = 0, *, keys_only: bool = False
    ) -> tuple[Sequence[Any], bool, int]:
        """The keys from `begin` on and below `end` with their values, at most so many; whether there are more, and the
        store's revision."""
        request = rpc.RangeRequest(key=begin, range_end=end, limit=limit, keys_only=keys_only)
        answer = await self._ask(lambda member: member.kv.Range(request, timeout=2 * ATTEMPT_S))
        return answer.kvs, answer.more, answer.header.revision

    async def transact(self, compare: Sequence[Any], do: Sequence[Any]) -> tuple[bool, int]:
        """Do it all if every comparison holds, else nothing; whether it was done, and the store's revision after."""
        request = rpc.TxnRequest(compare=compare, success=do)
        answer = await self._ask(lambda member: member.kv.Txn(request, timeout=ATTEMPT_S))
        return answer.succeeded, answer.header.revision

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """A new lease: its id, and its time to live in seconds, which etcd may have raised."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        answer = await self._ask(lambda member: member.lease.LeaseGrant(request, timeout=ATTEMPT_S))
        return answer.ID, answer.TTL

    async def keep_alive(self, lease_id: int, attempt_s: float) -> int:
        """Renew the lease; the seconds that it has from now on, 0 if it is gone. `attempt_s`: for each member."""

        async def ask(member: _Member) -> Any:
            call = member.lease.LeaseKeepAlive(timeout=attempt_s)
            try:
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
                if (answer := await call.read()) is not grpc.aio.EOF:
                    return answer
            finally:
                call.cancel()
            raise EOFError("it closed the stream")

        return int((await self._ask(ask)).TTL)

    async def revoke(self, lease_id: int) -> None:
        """End the lease, and with it every key that hangs on it."""
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        await self._ask(lambda member: member.lease.LeaseRevoke(request, timeout=ATTEMPT_S))

    async def changed(self, key: bytes, from_revision: int, end: bytes = b"") -> None:
        """Return when the key has changed at this revision or later, or may have; or any from it on and below `end`.

        Every member is asked to tell, so that none is missed that is dead, hangs or is cut off; the first counts.
        """
        await first_of(*(self._watch(member, key, from_revision, end) for member in self._members))

    async def _watch(self, member: _Member, key: bytes, from_revision: int, end: bytes) -> None:
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=from_revision)
        while True:
            call = member.watch.Watch(wait_for_ready=True)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(rpc.WatchRequest(create_request=create))
                while (news := await call.read()) is not grpc.aio.EOF:
                    if news.events or news.canceled:  # canceled: what is asked for has been compacted away
                        call.cancel()
                        return
            await asyncio.sleep(WATCH_RETRY_S)

    async def _ask(self, ask: Callable[[_Member], Awaitable[T]]) -> T:
        """The answer of the first member that gives one, each asked once."""
        trouble = ""
        for member in list(self._members):
            try:
                return await ask(member)
            except (grpc.aio.AioRpcError, EOFError) as error:
                trouble = _words(member, error)
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in _HOPELESS:
                    raise StoreBroken(f"{self.name} refuses: {trouble}") from None
            if self._members[0] is member:
                self._members.append(self._members.pop(0))
        raise StoreUnavailable(f"cannot use {self.name}: {trouble}")


def end_of(folder: bytes) -> bytes:
    """The first key beyond all that begin with the folder, which ends in a slash: 0 follows / in ASCII."""
    return folder[:-1] + b"0"


def put(key: bytes, value: bytes, lease_id: int = 0) -> Any:
    """Operation that writes a key. `lease_id`: the lease that it hangs on."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease_id))


def delete(key: bytes, end: bytes = b"") -> Any:
    """Operation that deletes a key; or all from it on and below `end`."""
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))


def is_made_at(key: bytes, revision: int) -> Any:
    """Whether the key is there and was made at this revision. 0: whether it is not there."""
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision)


def is_free(key: bytes) -> Any:
    """Whether the key is not there."""
    return is_made_at(key, 0)


def _words(member: _Member, error: Exception) -> str:
    if not isinstance(error, grpc.aio.AioRpcError):
        return f"{member.address}: {error}"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{member.address}: no answer in time"
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in (error.details() or ""):
        return f"{member.address}: {_NO_SPACE}"
    return f"{member.address}: {' '.join((error.details() or error.code().name).split())}"
