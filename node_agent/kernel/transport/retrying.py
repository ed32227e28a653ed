"""Retrying client: exchanges that come about in the end, by the policy of `core/backoff.py`."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Ack, JoinRequest, PollRequest, Reply, Request

from node_agent import words
from node_agent.kernel.core.backoff import RETRIED, Cut, Retry, Unreachable
from node_agent.kernel.transport.base import Transport


class RetryingClient:
    """One transport to the server, tried again until it answers.

    `failed` is told of failures to report, `cut` of held polls that were cut and answered at the next try.
    """

    def __init__(
        self,
        transport: Transport,
        failed: Callable[[Unreachable | ProtocolError], None] = lambda error: None,
        cut: Callable[[Cut], None] = lambda cut: None,
        *,
        has_joined: bool = False,
    ) -> None:
        """`has_joined`: the agent has been answered over another transport: what keeps it out is borne."""
        self._transport = transport
        self._failed = failed
        self._cut = cut
        self._retry = Retry(has_joined=has_joined)
        self._is_free = asyncio.Lock()

    async def ask(self, request: Request) -> Reply | Ack:
        """The answer to the request; one at a time, in the order of asking. Raises the `ProtocolError` that refuses it.

        A join without an address names the one from which this node reaches the server.
        """
        async with self._is_free:
            while True:
                tried_at = asyncio.get_running_loop().time()
                try:
                    answer = await self._exchange(request)
                except RETRIED as error:
                    await self._pause(error, tried_at, was_held=isinstance(request, PollRequest) and request.hold)
                    if isinstance(error, Unreachable) and isinstance(request, PollRequest):
                        request = replace(request, hold=False)  # whether the server is back is to be known at once
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
    """The join with this node's address. Raises `Unreachable` if workers could not connect to it as MASTER_ADDR.

    A socket tells its link-local address without the zone. If the node asks for a rank above 0, another one is master.
    """
    addr = request.addr or address
    if not request.node_rank and _lacks_zone(addr):
        raise Unreachable("address", words.connection.own_address_link_local(addr), is_final=True)
    return replace(request, addr=addr)


def _lacks_zone(address: str) -> bool:
    """Whether this is an IPv6 address of fe80::/10 that names no interface."""
    first, colon, _ = address.lower().partition(":")
    return bool(colon) and len(first) == 4 and first[:3] in ("fe8", "fe9", "fea", "feb") and "%" not in address
