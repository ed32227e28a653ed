"""Addresses as people write them: of etcd's members, and of this server as agents reach it."""

import socket
from dataclasses import dataclass

from rdzv_server.storage.base import StoreBroken

ETCD_PORT = 2379
ANYWHERE = "192.0.2.1:9"
"""Address that RFC 5737 reserves for documentation: the route to it is the default route."""
FORM = "etcd://HOST[:PORT],HOST[:PORT],.../CLUSTER, where /CLUSTER may be left out"


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Place of a cluster in etcd: members, `HOST:PORT`, and the prefix of its keys."""

    members: tuple[str, ...]
    prefix: str

    @classmethod
    def parse(cls, text: str) -> "EtcdPlace":
        """Parse the value of `--store`. Raises `StoreBroken`."""
        hosts, _, cluster = text.removeprefix("etcd://").partition("/")
        members = tuple(_member(host, text) for host in hosts.split(","))
        cluster = cluster.strip("/") or "default"
        if not cluster.isprintable() or " " in cluster:
            raise StoreBroken(f"--store {text}: the cluster's name has a character that cannot be in a key")
        return cls(members, f"/rdzv-server/{cluster}")

    def own_address(self) -> str:
        """Address of this machine on the route to etcd, else on the default route, at which other machines reach it."""
        found = [address for member in (*self.members, ANYWHERE) if (address := _source(member))]
        return next((each for each in found if not each.startswith("127.") and each != "::1"), socket.gethostname())


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    is_name = bool(host) and host.isprintable() and not set(host) & set(" /,:[]")
    is_ipv6 = host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1])
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535
    return bool(colon) and (is_name or is_ipv6) and is_port and len(text) <= 256


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        return False
    return True


def _member(text: str, whole: str) -> str:
    """Address of one member, with its port."""
    for candidate in (text, f"{text}:{ETCD_PORT}", f"[{text}]:{ETCD_PORT}"):
        if is_address(candidate):
            return candidate
    raise StoreBroken(f"--store {whole}: {text!r} is no etcd member; give {FORM}")


def _source(member: str) -> str | None:
    """Address from which this machine would reach the member; nothing is sent."""
    host, _, port = member.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, _, _, _, address in found:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None
