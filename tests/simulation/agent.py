"""An agent's process, modelled: carries out what its real machine asks for, and feeds it what happens."""

from typing import TYPE_CHECKING

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.evidence import Evidence, StackGroup, frame
from rdzv_protocol.messages import (
    AnswerRequest,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Progress,
    Reply,
    ReportRequest,
    Request,
    SuspectRequest,
)
from rdzv_protocol.queries import Examine, LogTail, Notice, Noticed, Query, QueryAnswer, Refused

from node_agent.core.effects import Ask, Effect, Exit, Log, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.core.events import Answer as QueryAnswered
from node_agent.core.events import (
    Answered,
    ConnectionFailed,
    Event,
    Reported,
    Signalled,
    Started,
    Suspected,
    TimePassed,
)
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
SAVES_S = (0.0, 0.2, 1.0, 5.0, 60.0)
"""Times that workers may take to save when they are told that the round ends."""
STOP_S = 30.0
_TORCH = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
HANGS_AT = "data.py:31"
_HANGS = (frame("load", "/home/user/data.py", 31), frame("main", "/home/user/train.py", 80))
_WAITS = (frame("all_reduce", _TORCH, 7), frame("main", "/home/user/train.py", 88))


class AgentProcess:
    """One agent from its start to its exit code, or to its death. `join`: what its command line asks for."""

    def __init__(self, cluster: "Cluster", host: Host, join: JoinRequest, *, exits_when_excluded: bool = False) -> None:
        self.name, self.host, self.join = join.agent_id, host, join
        self.machine = AgentMachine(
            join,
            server="the server",
            exits_when_excluded=exits_when_excluded,
            notice_s=join.settings.notice_timeout_s if "notice" in join.queries else None,
            stop_s=STOP_S,
        )
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
        """Whether the agent is neither dead nor exited."""
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

    def suspect(self, round_: int, source: str, ranks: tuple[int, ...]) -> None:
        """Let the agent suspect that its workers of the round hang; with no ranks, that they no longer do."""
        self.host.later(0.0, lambda: self.feed(Suspected(round_, source, "no progress for 5 s", ranks)))

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
                self._send(replace(effect, progress=self._progress()))
            case ReportRequest(round=round_):
                self.side_client.ask(effect, lambda answer: self._reported(round_, answer))
            case LeaveRequest() | AnswerRequest() | SuspectRequest():
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
            case Ask(Notice() as notice):
                self._tell_workers(notice)
            case Ask(query):
                self.host.later(self._cluster.rng.choice(LOOKS_UP_S), lambda: self._look_up(query))
            case Log():
                pass
            case _:
                raise AssertionError(f"an effect that nobody carries out: {effect}")

    def _progress(self) -> Progress | None:
        """A step a second, and a checkpoint every ten, until they hang."""
        if (workers := self.workers) is None or not workers.are_training:
            return None
        step = int((workers.hung_since or self.host.now) - workers.started_at)
        return Progress(
            round=workers.round, lowest_step=step, highest_step=step, checkpoint_step=step // 10 * 10,
            age_s=self.host.now - workers.started_at - step, step_s=1.0, checkpoint_s=0.1 * (step // 10),
        )  # fmt: skip

    def _tell_workers(self, notice: Notice) -> None:
        """Let each worker group save in a time of its own, if enough of it is left; some exit then."""
        self._cluster.watch.noticed(self, notice)
        saves_s, left_s = self._cluster.rng.choice(SAVES_S), 0.9 * notice.remaining_s
        ends = self._cluster.rng.random() < 0.2
        self.host.later(min(saves_s, left_s), lambda: self._have_saved(notice, saves_s <= left_s, ends))

    def _have_saved(self, notice: Notice, have_all: bool, ends: bool) -> None:
        if (workers := self.workers) is None or not workers.are_training or workers.round != notice.round:
            self.feed(QueryAnswered(notice.number, Refused(reason="no workers of this round")))
            return
        size = self.join.local_world_size
        self.feed(QueryAnswered(notice.number, Noticed(listening=size, acknowledged=size if have_all else 0)))
        if have_all and ends and workers.are_training:
            self._cluster.note(self.name, "the workers have saved, and end")
            workers.finish(interrupted=True)

    def _look_up(self, query: Query) -> None:
        """Answer about the round that is asked about, if it is the last one here."""
        is_here = query.round == self.machine.round
        answer = self._examined() if isinstance(query, Examine) else self._log(query)
        self.feed(QueryAnswered(query.number, answer if is_here else Refused(reason="another round")))

    def _log(self, query: Query) -> QueryAnswer:
        """Log that names this agent and the round that is asked about."""
        return LogTail(path=self.agent_id, text=str(query.round), offset=query.number)

    def _examined(self) -> QueryAnswer:
        """Stacks of the workers: all in a collective, but for the one that hangs."""
        workers = self.live_workers
        if workers is None or not workers.are_training:
            return Refused(reason="no workers")
        ranks = workers.assignment.ranks
        groups = ((tuple(rank for rank in ranks if rank != workers.hung), _WAITS), ((workers.hung,), _HANGS))
        return Evidence(groups=tuple(
            StackGroup(ranks=those, frames=frames) for those, frames in groups if those and those != (None,)
        ))  # fmt: skip

    def _send(self, request: Request) -> None:
        assert self.client.is_idle, "an agent has two requests under way"
        self.client.ask(request, self._answered)

    def _answered(self, answer: Answer) -> None:
        assert isinstance(answer, Reply | ProtocolError)
        self.feed(Answered(answer))

    def _reported(self, round_: int, answer: Answer) -> None:
        self._cluster.note(self.name, answer)
        self.feed(Reported(round_))

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
