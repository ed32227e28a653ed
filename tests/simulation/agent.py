"""An agent's process, modelled: carries out what its real machine asks for, and feeds it what happens."""

from typing import TYPE_CHECKING

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import (
    AnswerRequest,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Request,
)
from rdzv_protocol.queries import LogTail, Query, Refused

from node_agent.core.effects import Ask, Effect, Exit, Say, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.core.events import Answer as QueryAnswer
from node_agent.core.events import Answered, ConnectionFailed, Event, Signalled, Started, TimePassed
from node_agent.core.machine import AgentMachine
from simulation.client import Answer, Client
from simulation.clock import Timer
from simulation.network import Host
from simulation.workers import Workers

if TYPE_CHECKING:
    from simulation.cluster import Cluster

LAST_REPORT_TIMEOUT_S = 2.0
LOOKS_UP_S = (0.0, 0.01, 0.01, 7.0)
"""Times that it may take to find out what the server asks: also longer than anybody waits."""


class AgentProcess:
    """One agent from its start to its exit code, or to its death. `join`: what its command line asks for."""

    def __init__(self, cluster: "Cluster", host: Host, join: JoinRequest) -> None:
        self.name, self.host, self.join = join.agent_id, host, join
        self.machine = AgentMachine(join, server="the server")
        self.workers: Workers | None = None
        self.port = 0
        self.exit_code: int | None = None
        self.is_dead = False
        self.was_signalled = False
        to_server = (host, cluster.network, cluster.server, cluster.rng)
        self.client = Client(*to_server, lambda error: self.feed(ConnectionFailed(error)))
        self.side_client = Client(*to_server, lambda error: None, has_joined=True)
        self._cluster = cluster
        self._timer: Timer | None = None
        host.later(0.0, lambda: self.feed(Started()))

    @property
    def agent_id(self) -> str:
        return self.machine.agent_id

    @property
    def is_live(self) -> bool:
        """Neither dead nor exited."""
        return not self.is_dead and self.exit_code is None

    @property
    def is_training(self) -> bool:
        return bool(self.is_live and self.workers and self.workers.are_training)

    @property
    def live_workers(self) -> Workers | None:
        return self.workers if self.workers and self.workers.live else None

    def feed(self, event: Event) -> None:
        if not self.is_live:
            return
        if not isinstance(event, TimePassed):
            self._cluster.note(self.name, event)
        for effect in self.machine.handle(event, self._cluster.clock.now):
            self._perform(effect)
        self._arm()

    def signal(self, name: str = "SIGTERM") -> None:
        self.was_signalled = True
        self.host.later(0.0, lambda: self.feed(Signalled(name)))

    def die(self, *, with_host: bool = False) -> None:
        """SIGKILL; or its whole host at once, which closes no connection."""
        self.is_dead = True
        if self.workers:
            self.workers.die()
        self._disarm()
        for client in (self.client, self.side_client):
            if with_host and client.connection:
                client.connection.hangs = True
            client.close()

    def _perform(self, effect: Effect) -> None:
        self._cluster.note(self.name, effect)
        match effect:
            case JoinRequest():
                assert self.live_workers is None, "an agent joins while its workers run"
                self.port = self.host.fresh_port()
                self._send(replace(effect, port=self.port))
            case PollRequest():
                self._send(effect)
            case ReportRequest() | LeaveRequest() | AnswerRequest():
                self.side_client.ask(effect, lambda answer: self._cluster.note(self.name, answer))
            case StartWorkers(assignment):
                assert self.live_workers is None, "an agent starts workers beside those of another round"
                self.workers = self._cluster.start_workers(self, assignment)
            case StopWorkers(kill=kill):
                assert self.workers, "an agent stops workers that it has not started"
                self.workers.stop(kill=kill)
            case Exit(code):
                self._exit(code)
            case WriteFailureReport(finish=finish):
                self._cluster.watch.reported(self, finish)
            case Ask(query):
                self.host.later(self._cluster.rng.choice(LOOKS_UP_S), lambda: self._look_up(query))
            case Say():
                pass

    def _look_up(self, query: Query) -> None:
        """Answer with who this is and which round is asked about, if it is the last one here."""
        tail = LogTail(path=self.agent_id, text=str(query.round), offset=query.number)
        is_here = query.round == self.machine.round
        self.feed(QueryAnswer(query.number, tail if is_here else Refused(reason="another round")))

    def _send(self, request: Request) -> None:
        assert self.client.is_idle, "an agent has two requests under way"
        self.client.ask(request, self._answered)

    def _answered(self, answer: Answer) -> None:
        assert isinstance(answer, Reply | ProtocolError)
        self.feed(Answered(answer))

    def _exit(self, code: int) -> None:
        assert self.live_workers is None, "an agent exits while its workers run"
        self.exit_code = code
        self._disarm()
        self._cluster.watch.exited(self)
        self.host.later(LAST_REPORT_TIMEOUT_S if not self.side_client.is_idle else 0.0, self._hang_up)

    def _hang_up(self) -> None:
        self.client.close()
        self.side_client.close()

    def _arm(self) -> None:
        self._disarm()
        if self.is_live and (at := self.machine.next_deadline()) is not None:
            assert at > self._cluster.clock.now, "the agent's timer spins"
            self._timer = self.host.later(at - self._cluster.clock.now, lambda: self.feed(TimePassed()))

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
