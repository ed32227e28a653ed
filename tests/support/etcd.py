"""A real etcd cluster on loopback, whose members can be killed, stopped and started again."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority

PATIENCE_S = 30.0
QUICK = ("--heartbeat-interval", "100", "--election-timeout", "500")
"""Flags of a member whose own elections take half a second. Its shortest lease is then one second."""


def need_etcd() -> None:
    """Skip the test or the module if etcd is not installed."""
    for program, package in (("etcd", "etcd-server"), ("etcdctl", "etcd-client")):
        if not shutil.which(program):
            pytest.skip(f"{program} is not on PATH (Debian: apt-get install {package})", allow_module_level=True)
    need_aetcd()


def need_aetcd() -> None:
    pytest.importorskip("aetcd", reason="aetcd is not installed: pip install '.[etcd]'")


class Member:
    """One etcd process, at ports that stay reserved while the cluster lives. `tls`: a folder, see `make_tls`.

    `peer_url`: URL that it gives to other members, in place of its own.
    """

    def __init__(self, name: str, folder: Path, tls: Path | None = None, peer_url: str = "") -> None:
        self.name = name
        self._peer_url = peer_url
        self._folder = folder
        self._tls = tls
        self._held = [_held_port(), _held_port()]
        self.client_port, self.peer_port = (held.getsockname()[1] for held in self._held)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{self.name}={self._peer_url or f'http://127.0.0.1:{self.peer_port}'}"

    def start(self, peers: str) -> None:
        client, peer = f"http{'s' * bool(self._tls)}://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        command = [
            "etcd", "--name", self.name, "--data-dir", str(self.data), *QUICK, "--logger", "zap",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--initial-cluster", peers,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", self._peer_url or peer,
            "--enable-grpc-gateway=false",
        ]  # fmt: skip
        if self._tls:
            command += ["--client-cert-auth", "--trusted-ca-file", str(self._tls / "ca.pem")]
            command += ["--cert-file", str(self._tls / "etcd.pem"), "--key-file", str(self._tls / "etcd.key")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        environment["ETCD_UNSUPPORTED_ARCH"] = {"aarch64": "arm64"}.get(os.uname().machine, "")
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def signal(self, signum: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(signum)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def data(self) -> Path:
        """Folder of what it has written. Change it only while the member does not run."""
        return self._folder / self.name

    def check(self) -> None:
        """Raise with its exit status and its last lines if it has ended by itself."""
        assert self._process
        if (code := self._process.poll()) is not None:
            lines = (self._folder / f"{self.name}.log").read_text(errors="replace").splitlines()[-20:]
            raise RuntimeError("\n".join([f"etcd {self.name} (pid {self._process.pid}) ended with {code}:", *lines]))

    def release(self) -> None:
        for held in self._held:
            held.close()


class Etcd:
    """A cluster of etcd members."""

    def __init__(self, folder: Path, size: int) -> None:
        self.members = [Member(f"m{number}", folder) for number in range(size)]

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def store(self) -> str:
        """Value of `--store`."""
        return f"etcd://{','.join(self.addresses)}"

    def start(self, member: Member | None = None) -> None:
        for each in self.members if member is None else [member]:
            each.start(",".join(every.peer for every in self.members))

    def ctl(self, *command: str, endpoints: Sequence[str] = ()) -> str:
        """Return the answer of etcdctl from all members, or from the named ones."""
        at = ",".join(endpoints or self.addresses)
        call = ("etcdctl", "--endpoints", at, "--dial-timeout=30s", "--command-timeout=30s", *command)
        environment = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    def check(self) -> None:
        """Raise if a member has ended by itself."""
        for member in self.members:
            member.check()

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.release()


def make_tls(folder: Path) -> None:
    """Write certificates of an authority, of etcd and of a server: each `NAME.pem`, the last two with a `NAME.key`."""
    authority = Authority(folder)
    for name in ("etcd", "server"):
        authority.issue(name, "127.0.0.1")


@contextmanager
def etcd_cluster(folder: Path, size: int) -> Iterator[Etcd]:
    """Yield a cluster that answers."""
    etcd = Etcd(folder, size)
    try:
        etcd.start()
        etcd.ctl("get", "-")
        yield etcd
    finally:
        etcd.end()


@contextmanager
def grpc_proxy(folder: Path, etcd: Etcd) -> Iterator[str]:
    """Yield the address of etcd's own proxy, which passes requests to this cluster, and shares watches of a key."""
    held = _held_port()
    address = f"127.0.0.1:{held.getsockname()[1]}"
    command = ["etcd", "grpc-proxy", "start", "--endpoints", ",".join(etcd.addresses), "--listen-addr", address]
    with open(folder / "proxy.log", "ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as proxy:
        try:
            yield address
        finally:
            proxy.kill()
            held.close()


async def written(addresses: Sequence[str], key: str = "/written") -> None:
    """Return once one of these members has accepted a write. They may have to start, or to elect a leader, first."""
    from aetcd import rpc

    from rdzv_server.storage.base import StoreUnavailable
    from rdzv_server.storage.etcd_client import EtcdClient

    client = EtcdClient(addresses)
    put = rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=b"x"))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(StoreUnavailable):
                    await client.transact([], [put])
                    return
                await asyncio.sleep(0.02)
    finally:
        await client.close()


def _held_port() -> socket.socket:
    """Return a bound socket that does not listen. The kernel gives its port only to programs that ask for it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Shared:
    """The part of etcd that the servers of one test share."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client, self.prefix = client, prefix
        self.records = f"{prefix}/records/".encode()

    async def put(self, key: str, value: bytes) -> int:
        """Write a key, and return the revision."""
        from rdzv_server.storage.etcd_client import put

        return (await self.client.transact([], [put(f"{self.prefix}{key}".encode(), value)]))[1]

    async def delete(self, key: str) -> None:
        from rdzv_server.storage.etcd_client import delete

        await self.client.transact([], [delete(f"{self.prefix}{key}".encode())])

    async def lead(self) -> Any:
        """Return the store of a new leader. The previous one leads no more."""
        from rdzv_server.storage.etcd import EtcdStore

        await self.delete("/leader")
        number = await self.put("/leader", b"a:29400")
        return EtcdStore(self.client, self.prefix, f"{self.prefix}/leader".encode(), number)
