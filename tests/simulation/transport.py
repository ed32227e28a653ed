"""An agent's transport on the simulated network. On a real one it is `node_agent.kernel.transport.http`."""

import asyncio
from typing import TYPE_CHECKING

from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import from_code
from rdzv_protocol.messages import Ack, ErrorReply, JoinRequest, PollRequest, Reply, Request
from rdzv_protocol.timing import ANSWER_TIMEOUT_S

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from simulation.network import Connection

if TYPE_CHECKING:
    from simulation.agent import AgentProcess

CONNECT_TIMEOUT_S = 5.0

_Answer = tuple[bool, bytes]
"""Whether it is an answer or a refusal, and its bytes."""


class SimulatedTransport:
    """One of an agent's two transports."""

    def __init__(self, process: "AgentProcess") -> None:
        self.connection: Connection | None = None
        self._process = process
        self._answer: asyncio.Future[_Answer] | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a request waits for its answer."""
        return self._answer is not None

    async def connect(self) -> str:
        host = self._process.host
        if self.connection is None:
            if host.is_cut:
                await asyncio.sleep(CONNECT_TIMEOUT_S)
                raise Unreachable("connect", "no answer")
            await asyncio.sleep(2 * self._process.network.weather.latency_s)
            if self._process.server.is_down or host.now < host.path_down_until:
                raise Unreachable("connect", "refused")
            self.connection = connection = self._process.network.open(host)
            connection.closed = lambda: self._process.loop.do(self._broken, connection)
        return host.addr

    async def exchange(self, request: Request) -> Reply | Ack:
        request = self._process.sends(request)
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._send(request)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                is_answer, body = await self._answer
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unreachable("HTTP", "no answer") from None
            raise
        finally:
            self._answer = None
        if self._process.network.has_greedy_proxy:
            await self.close()
        if not is_answer:
            refusal = decode(ErrorReply, body)
            raise from_code(refusal.code, refusal.message)
        return decode(Reply if isinstance(request, JoinRequest | PollRequest) else Ack, body)

    async def close(self) -> None:
        if self.connection and not self._process.is_dead:
            self.die()

    def die(self, *, with_host: bool = False) -> None:
        """Close the connection, as the kernel does for a dead process. With its host it only hangs."""
        if self.connection:
            self.connection.hangs |= with_host
            self._process.network.close(self.connection)
            self.connection = None

    def _send(self, request: Request) -> None:
        server, network, connection, answer = self._process.server, self._process.network, self.connection, self._answer
        assert connection and answer
        kind, body = type(request), encode(request)

        def arrived(told: _Answer) -> None:
            if not answer.done():
                answer.set_result(told)

        def respond(is_answer: bool, told: bytes) -> None:
            network.send(connection, lambda: self._process.loop.do(arrived, (is_answer, told)), up=False)

        network.send(connection, lambda: server.receive(kind, body, connection, respond), up=True)
        network.send_again(connection.host, lambda stray: server.receive(kind, body, stray, lambda *_: None))

    def _broken(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
            if self._answer and not self._answer.done():
                self._answer.set_exception(Unreachable("HTTP", words.connection.CLOSED))
