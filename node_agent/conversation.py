"""Exchanges that come about in the end: what fails below the protocol is tried again, and said once."""

import asyncio
import os
from collections.abc import Callable

from node_agent.core import backoff
from node_agent.link import Link, Unreachable
from protocol.errors import ServerUnavailable
from protocol.messages import Ack, Reply, Request


class ServerLost(Exception):
    """The server could not be reached for as long as the user allows. One line that says what to do."""


class Conversation:
    """One line to the server. `say` is told when the server cannot be reached and when it is back."""

    def __init__(self, link: Link, endpoint: str, connect_timeout_s: float, say: Callable[[str], None] | None) -> None:
        self._link = link
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._say = say
        self._has_answered = False
        self._line_is_free = asyncio.Lock()

    async def ask(self, request: Callable[[str], Request]) -> Reply | Ack:
        """The answer to the request that `request` makes of this node's address; one at a time, in the order of asking.

        Raises the `ProtocolError` that refuses it, or `ServerLost` if the server never answered within the limit.
        """
        async with self._line_is_free:
            return await self._ask(request)

    async def close(self) -> None:
        await self._link.close()

    async def _ask(self, request: Callable[[str], Request]) -> Reply | Ack:
        loop = asyncio.get_running_loop()
        began, attempt, said = loop.time(), 0, ""
        while True:
            tried_at = loop.time()
            try:
                answer = await self._link.exchange(request(await self._link.connect()))
            except (Unreachable, ServerUnavailable) as error:
                # A line that stood for a while and broke is worth another at once: the grace for coming back is short.
                attempt = 1 if loop.time() - tried_at > backoff.LONGEST_S else attempt + 1
                if not self._has_answered and loop.time() - began >= self._connect_timeout_s:
                    raise ServerLost(self._advice(error)) from None
                said = self._tell(error, said)
                await asyncio.sleep(backoff.delay(attempt, os.urandom(1)[0] / 255))
                continue
            self._has_answered = True
            if said and self._say:
                self._say(f"reached rdzv-server at {self._endpoint} after {loop.time() - began:.1f} s")
            return answer

    def _tell(self, error: Exception, said: str) -> str:
        """Say how far we got, unless that is what was said last."""
        stage = str(error)
        if self._say and stage != said:
            if self._has_answered:
                self._say(f"lost rdzv-server at {self._endpoint} ({stage}); workers keep running, trying again")
            else:
                limit = f"trying for {self._connect_timeout_s:g} s"
                self._say(f"cannot reach rdzv-server at {self._endpoint} yet ({stage}); {limit}")
        return stage

    def _advice(self, error: Exception) -> str:
        stage = error.stage if isinstance(error, Unreachable) else "server"
        hint = {
            "name": "check the name in --endpoint",
            "connect": "check that rdzv-server runs there and that no firewall is between",
            "HTTP": "check that this port is rdzv-server's",
            "server": "look at its log",
        }[stage]
        return f"no rdzv-server at {self._endpoint} within {self._connect_timeout_s:g} s ({error}): {hint}"
