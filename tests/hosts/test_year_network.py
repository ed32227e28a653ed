"""The network of the campaign on real processes: a node's cable is pulled, and nothing else happens to it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest

from benchmarks.year.network import Network

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as listener:
    print("listens", flush=True)
    peer, _ = listener.accept()
    while text := peer.recv(99):
        peer.sendall(text)
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7)) as peer:
    peer.settimeout(0.5)
    for line in sys.stdin:
        try:
            peer.sendall(line.encode())
            print(peer.recv(99).decode().strip(), flush=True)
        except TimeoutError:
            print("silence", flush=True)
            peer.settimeout(30)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network
    links = subprocess.run(("ip", "-o", "link"), check=True, capture_output=True, text=True).stdout
    assert not [name for name in (f"yb{os.getpid()}", f"yc{os.getpid()}-") if name in links]


def start(network: Network, node: int, program: str) -> Popen[str]:
    command = network.command(node, [sys.executable, "-c", program, network.address_of(0)])
    return Popen(command, stdin=PIPE, stdout=PIPE, text=True)


def said(program: Popen[str], line: str = "") -> str:
    assert program.stdin and program.stdout
    if line:
        program.stdin.write(f"{line}\n")
        program.stdin.flush()
    return program.stdout.readline().strip()


def test_a_connection_survives_a_pulled_cable(network):
    with start(network, 0, ECHO) as echo:
        assert said(echo) == "listens"
        with start(network, 1, ASK) as asking:
            assert said(asking, "one") == "one"
            network.cut(1)
            assert said(asking, "two") == "silence"
            network.mend(1)
            assert "two" in said(asking, "three")
        echo.kill()
