"""The longest pause of TCP before it sends a lost packet again, on kernels where programs can choose it."""

import socket

import pytest
from rdzv_protocol.timing import TCP_RTO_MAX_MS


def longest_pause_ms(connection: socket.socket) -> int:
    """Return the longest pause of this connection. Skip the test if the kernel is older than 6.15."""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
    except OSError:
        pytest.skip("this kernel has no option for the pauses of TCP")
