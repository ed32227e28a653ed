"""A reserved port is available only to the listener that it is meant for."""

import socket
import struct
from collections.abc import Iterator

import pytest

from node_agent.kernel.processes import ports
from node_agent.kernel.processes.ports import ReservedPort


@pytest.fixture
def port() -> Iterator[ReservedPort]:
    port = ReservedPort()
    yield port
    port.release()


def listen(number: int, family: int = socket.AF_INET6, address: str = "::") -> socket.socket:
    """Listen as torch's TCPStore does."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, number))
    listener.listen()
    return listener


EVERYWHERE = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1")]

IP_LOCAL_PORT_RANGE = 51
"""Since Linux 6.3: the ports from which the kernel chooses a free one for this socket."""


@pytest.mark.parametrize(("family", "address"), EVERYWHERE)
@pytest.mark.parametrize("reuse", [0, 1], ids=["plain", "SO_REUSEADDR"])
def test_a_reserved_port_is_never_given_out_as_a_free_one(port, family, address, reuse):
    with socket.socket(family, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("HH", port.number, port.number))
        except OSError:
            pytest.skip("this kernel chooses from all ports")
        with pytest.raises(OSError, match="Address already in use"):
            other.bind((address, 0))


@pytest.mark.parametrize(("family", "address"), EVERYWHERE)
def test_a_bind_to_the_reserved_port_without_sharing_is_refused(port, family, address):
    with socket.socket(family, socket.SOCK_STREAM) as other, pytest.raises(OSError, match="Address already in use"):
        other.bind((address, port.number))


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")])
def test_the_store_of_rank_0_can_listen_on_it(port, family, address):
    with (
        listen(port.number, family, address),
        socket.create_connection(("127.0.0.1", port.number), timeout=5) as client,
    ):
        assert client.getpeername()[1] == port.number


def test_connections_are_refused_before_there_is_a_store(port):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=5)


def test_a_host_without_ipv6_reserves_in_ipv4(monkeypatch):
    real = socket.socket

    def no_ipv6(family=socket.AF_INET, *args, **kwargs):
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *args, **kwargs)

    monkeypatch.setattr(ports.socket, "socket", no_ipv6)
    port = ReservedPort()
    with listen(port.number, socket.AF_INET, "0.0.0.0"):
        pass
    port.release()


@pytest.mark.torch
def test_torchs_own_store_can_listen_on_it(port):
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", port.number, 1, is_master=True, wait_for_workers=False)
    store.set("key", "value")
    assert store.get("key") == b"value"
