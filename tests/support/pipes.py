"""Pipes and sockets that nobody reads for a while."""

import os
from contextlib import suppress


def fill(file: int, data: bytes = b"x" * 4_096) -> int:
    """Write the data again and again, until there is no room. Return the number of bytes written."""
    filled, was_blocking = 0, os.get_blocking(file)
    os.set_blocking(file, False)
    with suppress(BlockingIOError):
        while True:
            filled += os.write(file, data)
    os.set_blocking(file, was_blocking)
    return filled


def drain(file: int) -> bytes:
    """Return what can be read without waiting. `file`: a non-blocking one."""
    data = b""
    with suppress(BlockingIOError):
        while part := os.read(file, 1 << 16):
            data += part
    return data
