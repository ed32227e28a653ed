"""Hosts on one network, each a separate network namespace. The switch between them makes the faults."""

import asyncio
import http.client
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar

from tests.hosts.namespaces import Namespace
from tests.hosts.switch import Switch
from tests.support.programs import PATIENCE_S, Program

DEVICE = "eth0"
SILENT_NAME_SERVER = "10.77.0.250"

P = TypeVar("P", bound=Program)


class Host:
    """A separate machine for the network. Files and processes are this machine's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.namespace = Namespace()

    def authority(self, port: int) -> str:
        """Return HOST:PORT of a program on this host, as in a URL."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"

    async def start(self, kind: type[P], *command: str, env: Mapping[str, str] | None = None) -> P:
        """Start a program on this host."""
        return await kind.start(*self.namespace.command(*command), env=env)

    async def get(self, port: int, path: str, tls: ssl.SSLContext | None = None, token: str = "") -> str:
        """Return the HTTP answer of a program on this host, even if the host is cut off."""
        return await asyncio.to_thread(self._get, port, path, tls, token)

    def change_address(self, address: str) -> None:
        """Replace the host's address while it runs."""
        self.namespace.configure(f"addr del {self.address}/24 dev {DEVICE}", f"addr add {address}/24 dev {DEVICE}")
        self.address = address

    def lose_names(self) -> None:
        """Make the name server silent, with no names in /etc/hosts either."""
        self.namespace.configure(f"neigh replace {SILENT_NAME_SERVER} lladdr 02:00:00:00:00:fa dev {DEVICE}")
        self.namespace.replace_file("resolv.conf", f"nameserver {SILENT_NAME_SERVER}\n")
        self.namespace.replace_file("hosts", "127.0.0.1 localhost\n::1 localhost\n")

    def _get(self, port: int, path: str, tls: ssl.SSLContext | None, token: str) -> str:
        connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE_S)
        connection.sock = self.namespace.connect(port)
        if tls:
            connection.sock = tls.wrap_socket(connection.sock, server_hostname="localhost")
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class Network:
    """One host for each letter, as an async context manager that leaves nothing behind.

    The first host's address is 10.77.0.1, the second's 10.77.0.2. With `ipv6` they are fd77::1 and fd77::2, without
    IPv4.
    """

    def __init__(self, names: str, *, ipv6: bool = False) -> None:
        self._names = names
        self._ipv6 = ipv6
        self.switch = Switch()
        self.hosts: dict[str, Host] = {}

    async def __aenter__(self) -> "Network":
        try:
            for number, name in enumerate(self._names, start=1):
                self._add(name, number)
        except BaseException:
            self._remove()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def processes(self) -> dict[str, list[int]]:
        """Return the hosts on which processes run, with their pids."""
        return {name: pids for name, host in self.hosts.items() if (pids := host.namespace.pids())}

    def _add(self, name: str, number: int) -> None:
        address, length = (f"fd77::{number}", "64 nodad") if self._ipv6 else (f"10.77.0.{number}", "24")
        host = self.hosts[name] = Host(address)
        self.switch.plug(name, host.namespace.tap(DEVICE))
        host.namespace.configure(f"addr add {address}/{length} dev {DEVICE}", f"link set {DEVICE} up")

    def _remove(self) -> None:
        self.switch.close()
        for host in self.hosts.values():
            host.namespace.remove()
