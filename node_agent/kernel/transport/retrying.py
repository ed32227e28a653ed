"""Retrying client: repeats exchanges until they succeed, by the policy of `core/backoff.py`."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Ack, JoinRequest, PollRequest, Reply, Request

from node_agent import words
from node_agent.kernel.core.backoff import RETRIED, Cut, Retry, Unreachable, is_from_server


class Transport(Protocol):
    """A connection to the server, reopened when needed. An agent uses two at the same time."""

    async def connect(self) -> str:
        """Make sure that there is a connection, and return this node's address on it. Raises `Unreachable`."""

    async def exchange(self, request: Request) -> Reply | Ack:
        """Send a request and return its answer. Raises `Unreachable`, or the `ProtocolError` with which the server
        refuses.
        """

    async def close(self) -> None:
        """Close the connection."""


class RetryingClient:
    """Tries each request again on one transport until the server answers.

    `failed` is called with failures to report. `refused` is called whenever rdzv-server answers that it cannot serve
    now. `cut` is called with held polls that were cut and answered at the next try.
    """

    def __init__(
        self,
        transport: Transport,
        failed: Callable[[Unreachable | ProtocolError], None] = lambda error: None,
        cut: Callable[[Cut], None] = lambda cut: None,
        refused: Callable[[], None] = lambda: None,
        *,
        has_joined: bool = False,
    ) -> None:
        """`has_joined`: whether the server has answered the agent over another transport. The client then retries when
        kept out.
        """
        self._transport = transport
        self._failed = failed
        self._cut = cut
        self._refused = refused
        self._retry = Retry(has_joined=has_joined)
        self._is_free = asyncio.Lock()

    async def ask(self, request: Request) -> Reply | Ack:
        """Return the answer to the request. Raises the `ProtocolError` with which the server refuses it.

        Requests are sent one at a time, in the order of the calls. A join without an address gets the one from which
        this node reaches the server.
        """
        async with self._is_free:
            while True:
                tried_at = asyncio.get_running_loop().time()
                try:
                    answer = await self._exchange(request)
                except RETRIED as error:
                    await self._pause(error, tried_at, was_held=isinstance(request, PollRequest) and request.hold)
                    if isinstance(error, Unreachable) and isinstance(request, PollRequest):
                        request = replace(request, hold=False)  # the agent must know at once whether the server is back
                except ProtocolError:
                    self._answered()
                    raise
                else:
                    self._answered()
                    return answer

    async def close(self) -> None:
        await self._transport.close()

    async def _exchange(self, request: Request) -> Reply | Ack:
        address = await self._transport.connect()
        if isinstance(request, JoinRequest):
            request = _addressed(request, address)
        return await self._transport.exchange(request)

    def _answered(self) -> None:
        if cut := self._retry.answered():
            self._cut(cut)

    async def _pause(self, error: Unreachable | ProtocolError, tried_at: float, *, was_held: bool) -> None:
        """Wait until it is worth trying again. Raises the error if it never is."""
        now = asyncio.get_running_loop().time()
        pause = self._retry.failed(error, now, now - tried_at, os.urandom(1)[0] / 255, was_held=was_held)
        if is_from_server(error):
            self._refused()
        if pause.failure:
            self._failed(pause.failure)
        sooner = error.sooner if isinstance(error, Unreachable) else None
        if sooner is None:
            await asyncio.sleep(pause.delay_s)
        elif not sooner.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.delay_s):
                    await sooner.wait()


def _addressed(request: JoinRequest, address: str) -> JoinRequest:
    """Return the join with this node's address. Raises `Unreachable` if workers could not use it as MASTER_ADDR.

    A socket reports its link-local address without the zone. A node that asks for a rank above 0 needs no such address,
    since another node is master.
    """
    addr = request.addr or address
    if not request.node_rank and _lacks_zone(addr):
        raise Unreachable("address", words.connection.own_address_link_local(addr), is_final=True)
    return replace(request, addr=addr)


def _lacks_zone(address: str) -> bool:
    """Return whether this is an IPv6 address of fe80::/10 without an interface."""
    first, colon, _ = address.lower().partition(":")
    return bool(colon) and len(first) == 4 and first[:3] in ("fe8", "fe9", "fea", "feb") and "%" not in address
