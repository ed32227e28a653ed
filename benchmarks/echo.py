"""Sends back what it receives, at once. Arguments: host and port to connect to."""

import socket
import sys

with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as line:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := line.recv(4096):
        line.sendall(message)
