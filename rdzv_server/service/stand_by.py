"""Stand-by of a server without etcd, for `--stand-by-for`: it serves only while the earlier servers do not answer.

A stand-by has no state of the earlier servers: agents form their runs again on it, and their workers start from their
last checkpoint. It asks each earlier server repeatedly, since a host that vanishes sends nothing. It counts failed
rounds of questions, not time: a stand-by whose own process stood still does not take the others for gone.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rdzv_protocol.flag_values import Endpoint, address
from rdzv_protocol.paths import HEALTHZ

from rdzv_server.threads import NoThread

ROUNDS = 4
"""Number of rounds of questions without an answer after which the earlier servers count as gone."""
FIRST_PAUSE_S = 0.25
"""Seconds between questions until a server has answered for the first time."""
FIRST_FACTOR = 6
"""Factor of the wait for servers that have never answered: they may still be starting from a slow disk."""


class StandBy:
    """Watch over the servers that have precedence over this one, in the order in which they take over.

    Each server waits `patience_s` for each server before it, so that the next one in the order takes over first.
    """

    def __init__(self, earlier: Sequence[Endpoint], patience_s: float) -> None:
        self._earlier = earlier
        self._patience_s = patience_s * len(earlier)
        self.is_back = False
        """Whether an earlier server has answered while this one served."""

    async def all_gone(self, answers: Callable[[str], None]) -> None:
        """Return when no earlier server answers any more. `answers` is called with the first server that answers."""
        for _ in range(round(self._patience_s * FIRST_FACTOR / FIRST_PAUSE_S)):
            if answered := await self._round(FIRST_PAUSE_S):
                answers(answered)
                break
        else:
            return
        failed = 0
        while failed < ROUNDS:
            failed = 0 if await self._round(self._patience_s / ROUNDS) else failed + 1

    async def any_back(self, own_port: int) -> str:
        """Return the address of an earlier server once one answers again.

        This server, at `own_port`, does not count.
        """
        while not (answered := await self._round(self._patience_s / ROUNDS, own_port)):
            pass
        self.is_back = True
        return answered

    async def _round(self, pause_s: float, own_port: int | None = None) -> str:
        """Ask each earlier server once, which takes `pause_s`. Return the first that answered; empty if none did.

        A round in which this process could not ask does not count.
        """
        answers: list[bool | None] = [None]
        while None in answers:
            asked = [_answers(endpoint, pause_s, own_port) for endpoint in self._earlier]
            answers, _ = await asyncio.gather(asyncio.gather(*asked), asyncio.sleep(pause_s))
        return next((address(*at) for at, answered in zip(self._earlier, answers, strict=True) if answered), "")


async def _answers(endpoint: Endpoint, within_s: float, own_port: int | None) -> bool | None:
    """Return whether another server answers, even if only that it speaks TLS. A name may lead to this machine itself.

    None if this process could not ask, for lack of a thread that looks the name up.
    """
    host, port = endpoint
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                if port == own_port and _is_local(writer.get_extra_info("peername")):
                    return False
                writer.write(f"GET {HEALTHZ} HTTP/1.1\r\nHost: {address(host, port)}\r\n\r\n".encode())
                return bool(await reader.read(1))
            finally:
                writer.close()
    except NoThread:
        return None
    except (OSError, TimeoutError):
        return False


def _is_local(peer: Sequence[Any] | None) -> bool:
    """Return whether an address belongs to this machine: then a socket can be bound to it."""
    if peer is None:
        return False
    host = str(peer[0])
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return True
    return False
