"""The bridge that joins the hosts: it forwards Ethernet frames between ports, and makes every fault of a network.

It runs in the test's own process, without a kernel bridge and `tc netem`: many kernels lack netem, and here a fault is
exact. A fault begins with the next frame, affects one direction, and loses the same frames each time.
"""

import asyncio
import os
from contextlib import suppress
from itertools import permutations

LONGEST_FRAME = 1 << 16
ETHERNET_HEADER = 14
ARP, IPV6 = b"\x08\x06", b"\x86\xdd"
TCP = 6

LOST_OF_TEN = frozenset({2, 5, 8})
"""Frames that a lossy network loses of every ten in one direction of a conversation. Never two in a row: TCP's pauses
double with each loss, and a test must not depend on luck."""


class Switch:
    """Ports by the names of their hosts."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._learned: dict[bytes, str] = {}
        self._sent: dict[bytes, int] = {}
        self._unplugged: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._without_ipv6: set[str] = set()
        self._lossy = False
        self._bad_link = ""
        self._delay_s = 0.0
        self._longest = LONGEST_FRAME

    def plug(self, host: str, descriptor: int) -> None:
        """Read and write this host's frames through `descriptor`, which the switch closes at the end."""
        self._ports[host] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._receive, host)

    def close(self) -> None:
        for descriptor in self._ports.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._ports.clear()

    # Faults. Each lasts until `heal`.

    def unplug(self, host: str) -> None:
        """Block all frames to and from the host, as if it were switched off."""
        self._unplugged.add(host)

    def cut(self, source: str, target: str) -> None:
        """Drop packets from source to target, in this direction only.

        It is like a route that is broken further on: both still resolve the address of their next hop.
        """
        self._cut.add((source, target))

    def isolate(self, host: str) -> None:
        """Block all packets between the host and the others."""
        self._cut |= {pair for pair in permutations(self._ports, 2) if host in pair}

    def lose_ipv6(self, host: str) -> None:
        """Drop all TCP packets over IPv6 to and from the host, as a firewall that knows only IPv4 does."""
        self._without_ipv6.add(host)

    def lose_three_of_ten(self) -> None:
        """Lose 30 % of all frames."""
        self._lossy = True

    def spoil(self, host: str) -> None:
        """Lose 30 % of all frames to and from the host: a bad cable."""
        self._bad_link = host

    def delay(self, seconds: float) -> None:
        """Delay every frame by this time."""
        self._delay_s = seconds

    def swallow_above(self, mtu: int) -> None:
        """Drop packets longer than this without an ICMP message: a path MTU black hole."""
        self._longest = mtu + ETHERNET_HEADER

    def heal(self) -> None:
        """End all faults."""
        self._unplugged.clear()
        self._cut.clear()
        self._without_ipv6.clear()
        self._lossy, self._bad_link, self._delay_s, self._longest = False, "", 0.0, LONGEST_FRAME

    # Frames.

    def _receive(self, source: str) -> None:
        with suppress(BlockingIOError):
            self._forward(source, os.read(self._ports[source], LONGEST_FRAME))

    def _forward(self, source: str, frame: bytes) -> None:
        self._learned[frame[6:12]] = source
        known = self._learned.get(frame[:6])
        for target in [known] if known else list(self._ports):
            if target != source and self._passes(source, target, frame):
                self._deliver(target, frame)

    def _passes(self, source: str, target: str, frame: bytes) -> bool:
        if self._unplugged & {source, target} or len(frame) > self._longest:
            return False
        if (source, target) in self._cut and frame[12:14] != ARP:
            return False
        if self._without_ipv6 & {source, target} and frame[12:14] == IPV6 and frame[20] == TCP:
            return False
        return not ((self._lossy or self._bad_link in (source, target)) and self._is_lost(frame))

    def _is_lost(self, frame: bytes) -> bool:
        conversation = frame[:14] + frame[26:38]  # the Ethernet header, the IPv4 addresses and the TCP ports
        # the first lost frame differs between conversations
        number = self._sent.setdefault(conversation, len(self._sent))
        self._sent[conversation] += 1
        return number % 10 in LOST_OF_TEN

    def _deliver(self, target: str, frame: bytes) -> None:
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._write, target, frame)
        else:
            self._write(target, frame)

    def _write(self, target: str, frame: bytes) -> None:
        with suppress(KeyError, OSError):  # the test is over, or the host's device is down or full
            os.write(self._ports[target], frame)
