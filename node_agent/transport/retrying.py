"""Exchanges that come about in the end: what fails below the protocol is tried again, and said once."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from math import inf

from msgspec import Struct, field
from rdzv_protocol.errors import KEPT_OUT, NotLeader, ServerUnavailable
from rdzv_protocol.messages import Ack, Reply, Request

from node_agent.core import backoff
from node_agent.transport.base import Link, Unreachable

HANDOVER_S = 0.5
"""One of several servers hands over to another one in less, and nobody need be told that it went."""


class ServerLost(Exception):
    """The server could not be reached for as long as the user allows. One line that says what to do."""


class Conversation:
    """One line to the server. `say` is told when the server cannot be reached and when it is back."""

    def __init__(
        self,
        link: Link,
        endpoint: str,
        connect_timeout_s: float,
        say: Callable[[str], None] | None,
        lost_timeout_s: float = inf,
        *,
        has_joined: bool = False,
    ) -> None:
        """`has_joined`: the agent has been answered over another line: what keeps it out is borne."""
        self._link = link
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._lost_timeout_s = lost_timeout_s
        self._say = say
        self._has_answered = False
        self._has_joined = has_joined
        self._line_is_free = asyncio.Lock()

    async def ask(self, request: Callable[[str], Request]) -> Reply | Ack:
        """The answer to the request that `request` makes of this node's address; one at a time, in the order of asking.

        Raises the `ProtocolError` that refuses it, or `ServerLost` if the server did not answer within the limit: the
        one for its first answer, or the one for a server that is gone.
        """
        async with self._line_is_free:
            return await self._ask(request)

    async def close(self) -> None:
        await self._link.close()

    async def _ask(self, request: Callable[[str], Request]) -> Reply | Ack:
        loop = asyncio.get_running_loop()
        outage = None if self._has_answered else _Outage(loop.time())
        while True:
            tried_at = loop.time()
            try:
                answer = await self._link.exchange(request(await self._link.connect()))
            except (Unreachable, ServerUnavailable, NotLeader, *KEPT_OUT) as error:
                if isinstance(error, KEPT_OUT) and not self._has_joined:
                    raise
                outage = outage or _Outage(loop.time())
                await self._bear(error, outage, loop.time() - tried_at)
                continue
            self._has_answered = self._has_joined = True
            if outage and outage.said and self._say:
                self._say(f"reached rdzv-server at {self._endpoint} after {loop.time() - outage.since:.1f} s")
            return answer

    async def _bear(self, error: Exception, outage: "_Outage", stood_s: float) -> None:
        """Wait until it is worth trying again. Raises `ServerLost` when it is worth it no more."""
        # A line that stood for a while and broke is worth another at once: the grace for coming back is short.
        outage.attempt = 1 if stood_s > backoff.LONGEST_S else outage.attempt + 1
        outage.cause = outage.cause or error
        lasts_s = asyncio.get_running_loop().time() - outage.since
        if isinstance(error, Unreachable) and error.is_final and not self._has_joined:
            raise ServerLost(f"cannot use rdzv-server at {self._endpoint} ({error})") from None
        if lasts_s >= self._limit_s:
            raise ServerLost(self._advice(error)) from None
        sooner = error.sooner if isinstance(error, Unreachable) else None
        if sooner and sooner.is_set():
            return
        if sooner is None or lasts_s >= HANDOVER_S:
            self._tell(outage.cause, outage.said)
            outage.cause = None
        await _pause(backoff.delay(outage.attempt, os.urandom(1)[0] / 255), sooner)

    @property
    def _limit_s(self) -> float:
        return self._lost_timeout_s if self._has_answered else self._connect_timeout_s

    def _tell(self, error: Exception, said: set[str]) -> None:
        """Say how far we got, unless that has been said, or that another server leads is all there is to say."""
        stage = str(error)
        is_old = stage in said or (said and isinstance(error, Unreachable) and error.stage == "leader")
        if self._say and not is_old:
            if said:
                self._say(f"still no rdzv-server at {self._endpoint} ({stage})")
            elif self._has_answered:
                limit = "" if self._limit_s == inf else f" for {self._limit_s:g} s"
                self._say(f"lost rdzv-server at {self._endpoint} ({stage}); workers keep running, trying again{limit}")
            else:
                limit = f"trying for {self._limit_s:g} s"
                self._say(f"cannot reach rdzv-server at {self._endpoint} yet ({stage}); {limit}")
        said.add(stage)

    def _advice(self, error: Exception) -> str:
        stage = error.stage if isinstance(error, Unreachable) else "server"
        hint = {
            "name": "check the name in --endpoint, or in --master-addr",
            "connect": "check that rdzv-server runs there and that no firewall is between",
            "TLS": "check the certificates of both sides",
            "HTTP": "check that this port is rdzv-server's",
            "server": "look at its log",
            "leader": "check that etcd runs, and that rdzv-server reaches it",
        }[stage]
        return f"no rdzv-server at {self._endpoint} within {self._limit_s:g} s ({error}): {hint}"


class _Outage(Struct):
    """A while without the server, within one request."""

    since: float
    attempt: int = 0
    cause: Exception | None = None
    """What happened first, of that which has not been said."""
    said: set[str] = field(default_factory=set)


async def _pause(delay_s: float, sooner: asyncio.Event | None) -> None:
    """Wait, until it is worth trying again."""
    if sooner is None:
        await asyncio.sleep(delay_s)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await sooner.wait()
