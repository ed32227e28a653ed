"""Worker that writes much output: lines of 100 bytes to stdout, as fast as possible.

It then reports how long that took, and waits. Arguments: the socket for that report; how many megabytes. It writes 8
KiB at once, as buffered output does in most languages.
"""

import os
import signal
import socket
import sys
import time

LINE = b"x" * 99 + b"\n"
CHUNK = LINE * (8192 // len(LINE))


def main() -> None:
    count = int(float(sys.argv[2]) * 1e6) // len(CHUNK)
    began_ns = time.monotonic_ns()
    for _ in range(count):
        left = memoryview(CHUNK)
        while left:
            left = left[os.write(1, left) :]
    taken_ns = time.monotonic_ns() - began_ns
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.sendto(f"{count * len(CHUNK)} {taken_ns}".encode(), sys.argv[1])
    while True:
        signal.pause()


main()
