"""The network under the tests: its faults work as named, and nothing of it remains."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.hosts import namespaces
from tests.hosts.namespaces import FILES, NAMES, PREFIX, Namespace, remove_leftovers
from tests.hosts.network import Network
from tests.support.programs import PATIENCE_S, Program

pytestmark = pytest.mark.hosts

# A datagram echo: one packet there, one back, and none is sent again.
ECHO = """
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("", 9))
print("ready", flush=True)
while True:
    data, peer = echo.recvfrom(65536)
    print("heard", len(data), flush=True)
    echo.sendto(data, peer)
"""
SHOUT = """
import socket, sys
shout = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
shout.settimeout(float(sys.argv[3]))
shout.sendto(bytes(int(sys.argv[2])), (sys.argv[1], 9))
try:
    print("answered", len(shout.recv(65536)))
except TimeoutError:
    print("silence")
"""


QUIET_S = 0.3
"""Seconds of silence after which no more answer comes."""


class Pair:
    """Hosts a and b. Host b echoes."""

    def __init__(self, network: Network, echo: Program) -> None:
        self.network = network
        self.echo = echo

    async def shout(self, size: int = 8, patience_s: float = PATIENCE_S / 3) -> str:
        """Return what a receives from b after it has sent this number of bytes."""
        command = (sys.executable, "-c", SHOUT, self.network["b"].address, str(size), str(patience_s))
        program = await self.network["a"].start(Program, *command)
        assert await program.exit_code() == 0, program.err
        return program.out[0]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Network("ab") as network:
        echo = await network["b"].start(Program, sys.executable, "-c", ECHO)
        try:
            await echo.line("ready")
            yield Pair(network, echo)
        finally:
            await echo.end()


async def test_hosts_reach_each_other(pair: Pair) -> None:
    assert await pair.shout() == "answered 8"


async def test_a_cut_blocks_only_one_direction(pair: Pair) -> None:
    pair.network.switch.cut("b", "a")
    assert await pair.shout(patience_s=QUIET_S) == "silence"
    await pair.echo.line("heard 8")
    pair.network.switch.heal()
    pair.network.switch.cut("a", "b")
    assert await pair.shout(9, QUIET_S) == "silence"
    pair.network.switch.heal()
    assert await pair.shout() == "answered 8"
    assert not any("heard 9" in line for line in pair.echo.out)


async def test_an_isolated_host_is_back_when_the_network_is_healed(pair: Pair) -> None:
    pair.network.switch.isolate("b")
    assert await pair.shout(patience_s=QUIET_S) == "silence"
    pair.network.switch.heal()
    assert await pair.shout() == "answered 8"


async def test_a_delay_applies_in_both_directions(pair: Pair) -> None:
    await pair.shout()  # the neighbours know each other now
    pair.network.switch.delay(0.1)
    began = time.monotonic()
    assert await pair.shout() == "answered 8"
    assert time.monotonic() - began >= 0.2


async def test_a_black_hole_swallows_only_large_packets(pair: Pair) -> None:
    pair.network.switch.swallow_above(1280)
    assert await pair.shout(1252) == "answered 1252"  # and 28 bytes of headers
    assert await pair.shout(1253, QUIET_S) == "silence"


async def test_three_frames_of_ten_are_lost(pair: Pair) -> None:
    pair.network.switch.lose_three_of_ten()
    lost = [pair.network.switch._is_lost(b"the same conversation") for _ in range(100)]
    assert sum(lost) == 30
    assert not any(all(pair) for pair in pairwise(lost))


async def went_in(namespace: Namespace, program: Program) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while namespace.pids() != [program.pid]:  # noqa: ASYNC110 - each look takes its time
            await asyncio.sleep(0)


async def test_a_failing_test_does_not_leave_namespaces() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Network("ab", ipv6=True) as network:
            names = [host.namespace.name for host in network.hosts.values()]
            network["a"].lose_names()
            inside = await network["a"].start(Program, "sleep", "1000")
            assert all((NAMES / name).exists() for name in names)
            await went_in(network["a"].namespace, inside)
            raise ZeroDivisionError
    assert await inside.exit_code() < 0
    assert not any((NAMES / name).exists() or (FILES / name).exists() for name in names)


async def test_leftovers_of_a_killed_test_run_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = await Program.start("true")
    await maker.exit_code()
    monkeypatch.setattr(os, "getpid", lambda: maker.pid)
    leftover = Namespace()
    monkeypatch.undo()
    leftover.replace_file("resolv.conf", "")
    inside = await Program.start(*leftover.command("sleep", "1000"))
    await went_in(leftover, inside)
    ours = Namespace()
    try:
        remove_leftovers()
        assert await inside.exit_code() < 0
        assert not (NAMES / leftover.name).exists() and not (FILES / leftover.name).exists()
        assert (NAMES / ours.name).exists()
    finally:
        ours.remove()


def test_names_fit_and_identify_their_owner() -> None:
    assert len(f"{PREFIX}4194304-999") <= 15
    assert namespaces._leftovers([f"{PREFIX}{os.getpid()}-1", "somebody-else", f"{PREFIX}0-1"]) == {f"{PREFIX}0-1"}


def test_a_machine_without_the_tools_reports_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    namespaces.why_impossible.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "tests/install-debian-packages.sh" in (namespaces.why_impossible() or "")
    monkeypatch.undo()
    namespaces.why_impossible.cache_clear()
    monkeypatch.setattr(namespaces, "TUN", str(tmp_path / "tun"))
    assert "No such file" in (namespaces.why_impossible() or "")
    namespaces.why_impossible.cache_clear()
