"""Network of a campaign's nodes: a network namespace for each, joined by a bridge, so that a cable can be pulled."""

import os
import subprocess
from contextlib import ExitStack, suppress
from typing import Self

from tests.hosts import namespaces
from tests.hosts.namespaces import Namespace

DEVICE = "eth0"
LOOPBACK = "127.0.0.1"


class Network:
    """Network as a context manager. A node that is cut off keeps its processes and connections, but receives nothing.

    Without namespaces (`why_impossible`) all nodes share the loopback, and none can be cut off.
    """

    def __init__(self, nodes: int) -> None:
        self.why_impossible = namespaces.why_impossible()
        self._nodes = nodes
        self._namespaces: list[Namespace] = []
        pid = os.getpid()
        self._bridge = f"yb{pid}"
        self._prefix = f"198.{18 + (pid >> 8) % 2}.{pid % 256}"
        """Prefix of addresses that are reserved for benchmarks (RFC 2544), a different one for each process."""
        self._undone = ExitStack()

    def __enter__(self) -> Self:
        if self.why_impossible is None:
            namespaces.remove_leftovers()
            with ExitStack() as undone:
                self._build(undone)
                self._undone = undone.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undone.close()

    @property
    def address(self) -> str:
        """Address of this process and of the server."""
        return LOOPBACK if self.why_impossible else f"{self._prefix}.1"

    def address_of(self, node: int) -> str:
        return LOOPBACK if self.why_impossible else f"{self._prefix}.{10 + node}"

    def command(self, node: int, command: list[str]) -> list[str]:
        """Return the command, changed to run on the node."""
        return list(self._namespaces[node].command(*command)) if self._namespaces else command

    def cut(self, node: int) -> None:
        """Pull the node's cable."""
        _ip("link", "set", self._cable(node), "down")

    def mend(self, node: int) -> None:
        _ip("link", "set", self._cable(node), "up")

    def _build(self, undone: ExitStack) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        undone.callback(_ip, "link", "del", self._bridge)
        _ip("addr", "add", f"{self._prefix}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        addresses = {f"node{node}": self.address_of(node) for node in range(self._nodes)}
        names = {"localhost": LOOPBACK, "server": self.address, **addresses}
        hosts = "".join(f"{address} {name}\n" for name, address in names.items())
        for node in range(self._nodes):
            self._namespaces.append(namespace := Namespace())
            undone.callback(namespace.remove)
            cable = self._cable(node)
            _ip("link", "add", cable, "type", "veth", "peer", "name", DEVICE, "netns", namespace.name)
            undone.callback(_remove_device, cable)
            _ip("link", "set", cable, "master", self._bridge, "up")
            namespace.replace_file("hosts", hosts)  # otherwise each look-up of a peer's name waits for a name server
            namespace.configure(f"addr add {self.address_of(node)}/24 dev {DEVICE}", f"link set {DEVICE} up")

    def _cable(self, node: int) -> str:
        return f"yc{os.getpid()}-{node}"


def _remove_device(name: str) -> None:
    with suppress(subprocess.CalledProcessError):  # the device is gone with the namespace at its other end
        _ip("link", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)
