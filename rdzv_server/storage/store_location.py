"""Places of the records, as `--store` names them: memory, a file, or a cluster of etcd."""

import os
import socket
from dataclasses import dataclass

from rdzv_protocol.flag_values import address, endpoint

from rdzv_server.storage.base import MemoryStore, Store, StoreBroken
from rdzv_server.words import etcd as etcd_words
from rdzv_server.words import storage as words

ETCD_PORT = 2379
ANYWHERE = "192.0.2.1:9"
"""Address that RFC 5737 reserves for documentation: the route to it is the default route."""


def make_store(name: str | None, port: int) -> tuple[Store, str]:
    """Make the store that `name` asks for. Return it and a phrase that says where it is. Raises `StoreBroken`.

    If `name` is None: a file for this port, in the folder where this user's services keep their state. If the kernel
    chooses the port, the state is in memory: agents would not find the server again after a restart.
    """
    if name is None:
        name = "memory" if port == 0 else f"sqlite:{_default_path(port)}"
    kind, _, place = name.partition(":")
    if kind == "memory" and not place:
        return MemoryStore(), words.IN_MEMORY
    if kind == "sqlite" and place:
        try:
            from rdzv_server.storage.sqlite import SqliteStore
        except ImportError as error:  # Python was built on a machine without the headers of SQLite
            raise StoreBroken(words.no_sqlite(str(error))) from None
        return SqliteStore(place), place
    raise StoreBroken(words.unknown_store(name))


def _default_path(port: int) -> str:
    """Return the path of the default store: in the folder that systemd gives a service, else in XDG's folder for state.

    A relative `XDG_STATE_HOME` has no effect, as XDG's specification asks: a server that is started in another folder
    would not find its runs. Raises `StoreBroken`.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    folder = os.environ.get("STATE_DIRECTORY") or os.path.join(state, "rdzv-server")
    if folder.startswith("~/"):  # Python finds no home; it would make a folder of this name where the server starts
        raise StoreBroken(words.NO_HOME)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreBroken(words.no_folder(folder, error.strerror)) from None
    return os.path.join(folder, f"port-{port}.db")


@dataclass(frozen=True, slots=True)
class EtcdLocation:
    """Place of a cluster in etcd: members, `HOST:PORT`, and the prefix of its keys."""

    members: tuple[str, ...]
    prefix: str

    @classmethod
    def parse(cls, text: str) -> "EtcdLocation":
        """Parse the value of `--store`. Raises `StoreBroken`."""
        hosts, _, cluster = text.removeprefix("etcd://").partition("/")
        members = tuple(_member(host, text) for host in hosts.split(","))
        cluster = cluster.strip("/") or "default"
        if not cluster.isprintable() or " " in cluster:
            raise StoreBroken(etcd_words.bad_cluster_name(text))
        return cls(members, f"/rdzv-server/{cluster}")

    def own_address(self) -> str:
        """Return this machine's address on the route to etcd, or else on the default route, where other machines reach
        it."""
        found = [address for member in (*self.members, ANYWHERE) if (address := _source(member))]
        return next((each for each in found if not each.startswith("127.") and each != "::1"), socket.gethostname())


def _member(text: str, whole: str) -> str:
    """Return the address of one member, with its port."""
    is_bare_ipv6 = text.count(":") > 1 and "[" not in text
    try:
        return address(*endpoint(f"[{text}]" if is_bare_ipv6 else text, ETCD_PORT))
    except ValueError:
        raise StoreBroken(etcd_words.no_member(whole, text)) from None


def _source(member: str) -> str | None:
    """Return the address from which this machine would reach the member, or None. Nothing is sent."""
    host, _, port = member.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, _, _, _, found_at in found:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(found_at)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None
