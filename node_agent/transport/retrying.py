"""Retrying client: exchanges that come about in the end, by the policy of `core/backoff.py`."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Ack, JoinRequest, PollRequest, Reply, Request

from node_agent.core.backoff import RETRIED, Retry, Unreachable
from node_agent.transport.base import Transport


class RetryingClient:
    """One transport to the server, tried again until it answers. `failed` is told of failures to report."""

    def __init__(
        self,
        transport: Transport,
        failed: Callable[[Unreachable | ProtocolError], None] = lambda error: None,
        *,
        has_joined: bool = False,
    ) -> None:
        """`has_joined`: the agent has been answered over another transport: what keeps it out is borne."""
        self._transport = transport
        self._failed = failed
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
                    await self._pause(error, tried_at)
                    if isinstance(error, Unreachable) and isinstance(request, PollRequest):
                        request = replace(request, hold=False)  # whether the server is back is to be known at once
                except ProtocolError:
                    self._retry.answered()
                    raise
                else:
                    self._retry.answered()
                    return answer

    async def close(self) -> None:
        await self._transport.close()

    async def _exchange(self, request: Request) -> Reply | Ack:
        address = await self._transport.connect()
        if isinstance(request, JoinRequest) and not request.addr:
            request = replace(request, addr=address)
        return await self._transport.exchange(request)

    async def _pause(self, error: Unreachable | ProtocolError, tried_at: float) -> None:
        """Wait until it is worth trying again. Raises the error if it never is."""
        now = asyncio.get_running_loop().time()
        pause = self._retry.failed(error, now, now - tried_at, os.urandom(1)[0] / 255)
        if pause.failure:
            self._failed(pause.failure)
        sooner = error.sooner if isinstance(error, Unreachable) else None
        if sooner is None:
            await asyncio.sleep(pause.delay_s)
        elif not sooner.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.delay_s):
                    await sooner.wait()
