"""Ports for servers that start later."""

import socket

import pytest

from benchmarks.stage import PORTS, free_port


def test_a_server_may_listen_there_and_nobody_else_is_given_it():
    port = free_port()
    with socket.socket() as stranger, pytest.raises(OSError, match="Address already in use"):
        stranger.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername()[1] == port


def test_no_client_is_given_it_as_its_own():
    """Else who tries to reach a server that is not there yet may be connected with itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = map(int, file.read().split())
    if first < PORTS.stop:
        pytest.skip(f"this machine gives its clients ports from {first}")
    assert not first <= free_port() <= last
