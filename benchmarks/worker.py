"""Plain worker: it reports its first line, then sleeps until it is killed. Argument: the socket for that."""

import time

AT_NS = time.monotonic_ns()

import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402

with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
    line.sendto(f"{os.environ['RANK']} {os.getpid()} {AT_NS}".encode(), sys.argv[1])
while True:
    signal.pause()
