"""The server's shell, modelled: parks polls, knows which connection carries whom, arms one timer. Its core is real."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import (
    Ack,
    ErrorReply,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Request,
    Wait,
)
from rdzv_protocol.timing import HOLDS_PER_LEASE, LONGEST_HOLD_S

from rdzv_server.core.effects import Announce, Effect, Record, WakeAgents
from rdzv_server.core.events import (
    AgentDisconnected,
    AgentHeard,
    Event,
    NodeJoined,
    NodeLeft,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.registry import Registry
from rdzv_server.service.agent_connections import Connections
from rdzv_server.service.long_polls import Key
from simulation.clock import Clock, Timer
from simulation.network import Connection

ADDR = "10.0.0.254"
EPOCH = "epoch-1"
FIRST_HOLD_S = 1.0
RETENTION_S = 86_400.0

Respond = Callable[[bool, bytes], None]
"""Sends an answer: whether it is one, else a refusal, and its bytes."""


@dataclass(slots=True)
class Parked:
    connection: Connection
    respond: Respond
    timer: Timer


class Server:
    """`trace` is told what the core announces."""

    def __init__(self, clock: Clock, trace: Callable[[str, Any], None]) -> None:
        self.registry = Registry(RETENTION_S)
        self.records: list[Record] = []
        self.heard_at: dict[str, float] = {}
        """When each agent was heard last, and since when its connection is closed: the truth about both."""
        self.closed_at: dict[str, float] = {}
        self._clock, self._trace = clock, trace
        self._parked: dict[Key, Parked] = {}
        self._connections = Connections(self._disconnected)
        self._timer: Timer | None = None

    def receive(self, kind: type[Request], body: bytes, connection: Connection, respond: Respond) -> None:
        """Take a request and answer it, now or when its hold ends."""
        try:
            self._serve(decode(kind, body), connection, respond)
        except ProtocolError as error:
            self._refuse(error, respond)

    def lost(self, connection: Connection) -> None:
        """The connection closed: its parked polls are cancelled, and the agents whose current one it was are absent."""
        for key in [key for key, parked in self._parked.items() if parked.connection is connection]:
            self._parked.pop(key).timer.cancel()
        self._connections.lost(connection)

    def _disconnected(self, key: Key) -> None:
        self.closed_at.setdefault(key[1], self._clock.now)
        try:
            self._submit(key[0], AgentDisconnected(key[1]))
        except ProtocolError as error:
            self._trace("server", error)

    def _serve(self, request: Request, connection: Connection, respond: Respond) -> None:
        run_id, agent_id = key = (request.run_id, request.agent_id)
        match request:
            case JoinRequest():
                self._connections.bind(connection, key)
                self._submit(run_id, NodeJoined(request, ADDR))
                leases = self.registry.machine_of(run_id, agent_id).run.leases
                if agent_id not in leases.probed_until:  # a copy is no sign of life
                    self._hear(agent_id)
                revision, directive = self._directive(key)
                hold_s = min(FIRST_HOLD_S, self._hold_s(key)) if isinstance(directive, Wait) else 0.0
                self._reply(key, revision, hold_s, connection, respond)
            case PollRequest(revision=revision, hold=hold):
                self._connections.bind(connection, key)
                self._hear(agent_id)
                self._submit(run_id, AgentHeard(agent_id))
                self._reply(key, revision, self._hold_s(key) if hold else 0.0, connection, respond)
            case ReportRequest(round=round_, failure=failure):
                self._hear(agent_id)
                self._submit(run_id, AgentHeard(agent_id))
                told = WorkersFailed(agent_id, round_, failure) if failure else WorkersSucceeded(agent_id, round_)
                self._submit(run_id, told)
                respond(True, encode(Ack(epoch=EPOCH)))
            case LeaveRequest(reason=reason):
                self._submit(run_id, NodeLeft(agent_id, reason))
                respond(True, encode(Ack(epoch=EPOCH)))

    def _hear(self, agent_id: str) -> None:
        self.heard_at[agent_id] = self._clock.now
        self.closed_at.pop(agent_id, None)

    # The core.

    def _submit(self, run_id: str, event: Event) -> None:
        effects: list[Effect] = []
        try:
            _, happened = self.registry.handle(run_id, event, self._clock.now)
            effects += happened
        finally:
            effects += self.registry.pass_time(self._clock.now)
            self._act(effects)
            self._arm()

    def _pass_time(self) -> None:
        self._act(self.registry.pass_time(self._clock.now))
        self._arm()

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
        at = self.registry.next_deadline()
        assert at is None or at > self._clock.now, "the server's timer spins"
        self._timer = None if at is None else self._clock.at(at, self._pass_time)

    def _act(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Record():
                    self.records.append(effect)
                case Announce():
                    self._trace("server", effect.reason)
                case WakeAgents(run_id, agent_ids):
                    for agent_id in agent_ids:
                        self._release((run_id, agent_id))

    # Parked polls.

    def _reply(self, key: Key, seen: int, hold_s: float, connection: Connection, respond: Respond) -> None:
        if hold_s == 0.0 or self._directive(key)[0] > seen:
            self._answer(key, respond)
            return
        self._release(key)
        self._parked[key] = Parked(connection, respond, self._clock.later(hold_s, lambda: self._release(key)))

    def _release(self, key: Key) -> None:
        if parked := self._parked.pop(key, None):
            parked.timer.cancel()
            self._answer(key, parked.respond)

    def _answer(self, key: Key, respond: Respond) -> None:
        try:
            revision, directive = self._directive(key)
            reply = Reply(epoch=EPOCH, revision=revision, lease_s=self._lease_s(key), directive=directive)
        except ProtocolError as error:
            self._refuse(error, respond)
        else:
            respond(True, encode(reply))

    def _refuse(self, error: ProtocolError, respond: Respond) -> None:
        respond(False, encode(ErrorReply(code=error.code, message=str(error))))

    def _directive(self, key: Key) -> tuple[int, Any]:
        return self.registry.machine_of(*key).directive_for(key[1], self._clock.now)

    def _hold_s(self, key: Key) -> float:
        return min(LONGEST_HOLD_S, self._lease_s(key) / HOLDS_PER_LEASE)

    def _lease_s(self, key: Key) -> float:
        return self.registry.machine_of(*key).run.settings.lease_s
