"""An agent's retrying client, modelled: one exchange at a time, tried again until it is answered."""

from collections import deque
from collections.abc import Callable
from random import Random

from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError, from_code
from rdzv_protocol.messages import Ack, ErrorReply, JoinRequest, PollRequest, Reply, Request
from rdzv_protocol.timing import ANSWER_TIMEOUT_S

from node_agent.core.backoff import RETRIED, Retry, Unreachable
from simulation.clock import Timer
from simulation.network import Connection, Host, Network
from simulation.server import Server

CONNECT_TIMEOUT_S = 5.0

Answer = Reply | Ack | ProtocolError
Answered = Callable[[Answer], None]


class Client:
    """Retrying client of one agent: requests that are asked meanwhile wait for their turn."""

    def __init__(
        self,
        host: Host,
        network: Network,
        server: Server,
        rng: Random,
        failed: Callable[[Exception], None],
        *,
        has_joined: bool = False,
    ) -> None:
        self.connection: Connection | None = None
        self._host, self._network, self._server, self._rng = host, network, server, rng
        self._asked: deque[tuple[Request, Answered]] = deque()
        self._tries = 0
        """Number of tries of all exchanges together: the answer to a try that was given up is nobody's."""
        self._failed = failed
        self._retry = Retry(has_joined=has_joined)
        self._tried_at = host.now
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._asked

    def ask(self, request: Request, answered: Answered) -> None:
        self._asked.append((request, answered))
        if len(self._asked) == 1:
            self._try()

    def close(self) -> None:
        """Give up what is under way, and the connection."""
        self._is_closed = True
        self._asked.clear()
        self._drop()

    def _try(self) -> None:
        if self._is_closed:
            return
        self._tries += 1
        self._tried_at = self._host.now
        if self.connection:
            self._send()
        elif self._host.is_cut:
            self._await_timeout(CONNECT_TIMEOUT_S)
        else:
            self._timer = self._host.later(2 * self._network.weather.latency_s, self._connected)

    def _connected(self) -> None:
        self.connection = connection = Connection(self._host)
        connection.closed = lambda: self._broken(connection)
        self._send()

    def _send(self) -> None:
        (request, _), connection, this = self._asked[0], self.connection, self._tries
        assert connection
        kind, body = type(request), encode(request)

        def respond(is_answer: bool, answer: bytes) -> None:
            self._network.send(connection, lambda: self._answered(this, is_answer, answer), up=False)

        self._await_timeout(ANSWER_TIMEOUT_S)
        self._network.send(connection, lambda: self._server.receive(kind, body, connection, respond), up=True)
        self._network.send_again(self._host, lambda stray: self._server.receive(kind, body, stray, lambda *_: None))

    def _answered(self, this: int, is_answer: bool, body: bytes) -> None:
        if this != self._tries or not self._asked:
            return
        request, answered = self._asked[0]
        answer = _decoded(request, is_answer, body)
        if isinstance(answer, RETRIED):
            self._fail(answer)
            return
        self._stop_timer()
        self._tries += 1
        self._retry.answered()
        self._asked.popleft()
        if self._asked:
            self._try()
        answered(answer)

    def _await_timeout(self, timeout_s: float) -> None:
        self._timer = self._host.later(timeout_s, lambda: self._fail(Unreachable("HTTP", "no answer")))

    def _broken(self, connection: Connection) -> None:
        if self.connection is not connection:
            return
        self.connection = None
        if self._asked:
            self._fail(Unreachable("HTTP", "the server closed the connection"))

    def _fail(self, error: Unreachable | ProtocolError) -> None:
        if self._is_closed:
            return
        self._drop()
        self._tries += 1
        now = self._host.now
        pause = self._retry.failed(error, now, now - self._tried_at, self._rng.random())
        self._timer = self._host.later(pause.delay_s, self._try)
        if pause.failure:
            self._failed(pause.failure)

    def _drop(self) -> None:
        self._stop_timer()
        if self.connection:
            self._network.close(self.connection)
            self.connection = None

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def _decoded(request: Request, is_answer: bool, body: bytes) -> Answer:
    if is_answer:
        return decode(Reply, body) if isinstance(request, JoinRequest | PollRequest) else decode(Ack, body)
    refusal = decode(ErrorReply, body)
    return from_code(refusal.code, refusal.message)
