"""An agent's process: the real runner, its machine and its clients, on a simulated host with simulated workers."""

import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.evidence import Evidence, StackGroup, frame
from rdzv_protocol.messages import JoinRequest, Progress, Reply, Request
from rdzv_protocol.queries import Examine, LogTail, Notice, Noticed, Query, QueryAnswer, Refused, TailLog

from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.effects import Ask, Exit, Log, OwnEffect, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.kernel.core.events import Answer, Event, Signalled, Started, Suspected
from node_agent.kernel.core.machine import AgentMachine, Capabilities
from node_agent.kernel.runner import Facts, Runner
from simulation.network import Host
from simulation.server import Loop
from simulation.transport import SimulatedTransport
from simulation.workers import Workers

if TYPE_CHECKING:
    from simulation.cluster import Cluster

LOOKS_UP_S = (0.0, 0.01, 0.01, 7.0)
"""Seconds that an answer to the server's query may take, including more than the server waits."""
SAVES_S = (0.0, 0.2, 1.0, 5.0, 60.0)
"""Seconds that workers may take to save after a notice."""
STOP_S = 30.0
_TORCH = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
HANGS_AT = "data.py:31"
_HANGS = (frame("load", "/home/user/data.py", 31), frame("main", "/home/user/train.py", 80))
_WAITS = (frame("all_reduce", _TORCH, 7), frame("main", "/home/user/train.py", 88))


class AgentLoop(Loop):
    """Event loop of one agent's process. Its random numbers come from the story's seed."""

    def __init__(self, host: Host, entropy: Random) -> None:
        super().__init__(host)
        self._entropy = entropy

    def do(self, callback: Callable[..., object], *args: Any) -> None:
        if self.is_dead:
            return
        os.urandom, kernels = self._entropy.randbytes, os.urandom
        try:
            super().do(callback, *args)
        finally:
            os.urandom = kernels

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        assert when > self.time(), "the agent's timer spins"
        return super().call_at(when, callback, *args, context=context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore tasks that remain at the end of a story."""


class AgentProcess:
    """One agent from its start to its exit code, or to its death. `join`: the request of its command line.

    `is_old`: it does not know drains, notices and examinations.
    """

    def __init__(
        self, cluster: "Cluster", host: Host, join: JoinRequest, *, is_old: bool, exits_when_excluded: bool = False
    ) -> None:
        self.host, self.network, self.server = host, cluster.network, cluster.server
        self.is_old, self.local_world_size = is_old, join.local_world_size
        self.loop = AgentLoop(host, cluster.entropy)
        self.transports: list[SimulatedTransport] = []
        self.joined: JoinRequest | None = None
        """The join that was sent last."""
        self.workers: Workers | None = None
        self.port = 0
        self.exit_code: int | None = None
        self.was_signalled = False
        self._cluster = cluster
        config = AgentConfig(
            command=Command(()),
            join=join,
            shutdown_timeout_s=STOP_S,
            exits_when_excluded=exits_when_excluded,
        )
        self.loop.do(self._begin, config)
        self.name = self.agent_id.rpartition(".")[0]
        host.later(0.0, lambda: self.feed(Started()))

    def _begin(self, config: AgentConfig) -> None:
        queries = (TailLog,) if self.is_old else (TailLog, Examine, Notice)
        notice_s = None if self.is_old else config.join.settings.notice_timeout_s
        self.runner = Runner(
            config,
            self._transport,
            "the server",
            self,
            self.loop,
            Capabilities(queries=queries, notice_s=notice_s),
        )

    def _transport(self) -> SimulatedTransport:
        self.transports.append(SimulatedTransport(self))
        return self.transports[-1]

    @property
    def machine(self) -> AgentMachine:
        return self.runner.machine

    @property
    def transport(self) -> SimulatedTransport:
        """Return a transport. The first is for joins and polls, the second for all other requests."""
        return self.transports[0]

    @property
    def is_dead(self) -> bool:
        return self.loop.is_dead

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
        if self.is_live:
            self._cluster.note(self.name, event)
            self.loop.do(self.runner.feed, event)

    def signal(self, name: str = "SIGTERM") -> None:
        self.was_signalled = True
        self.host.later(0.0, lambda: self.feed(Signalled(name)))

    def suspect(self, round_: int, source: str, ranks: tuple[int, ...]) -> None:
        """Make the agent suspect that its workers of the round hang, or without ranks that they no longer do."""
        event = Suspected(round_, source, "no progress for 5 s", ranks, Log("no progress for 5 s"))
        self.host.later(0.0, lambda: self.feed(event))

    def die(self, *, with_host: bool = False) -> None:
        """Send SIGKILL, or lose the whole host at once, which does not close connections."""
        self.loop.is_dead = True
        if self.workers:
            self.workers.die()
        for transport in self.transports:
            transport.die(with_host=with_host)

    def sends(self, request: Request) -> Request:
        """Take note of a request on its way to the server. Return it as this agent's version sends it."""
        self._cluster.note(self.name, request)
        if isinstance(request, JoinRequest):
            assert self.live_workers is None, "an agent joins while its workers run"
            request = self.joined = replace(request, drains=not self.is_old)
        return request

    # Host of the runner.

    def open_port(self) -> int:
        self.port = self.host.fresh_port()
        return self.port

    def answered(self, answer: Reply | ProtocolError) -> None:
        self._cluster.note(self.name, answer)

    def perform(self, effect: OwnEffect) -> None:
        self._cluster.note(self.name, effect)
        match effect:
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
                raise AssertionError(f"an effect without a handler: {effect}")

    @property
    def has_workers(self) -> bool:
        return self.live_workers is not None

    def crashed(self, error: BaseException) -> None:
        self.loop.errors.append(error)

    def abort(self) -> None:
        """Do nothing: the story has failed."""

    def filled(self, request: Facts) -> Facts:
        return replace(request, progress=self._progress())

    def _progress(self) -> Progress | None:
        """Report a step a second, and a checkpoint every ten, until they hang."""
        if (workers := self.workers) is None or not workers.are_training:
            return None
        step = int((workers.hung_since or self.host.now) - workers.started_at)
        return Progress(
            round=workers.round, lowest_step=step, highest_step=step, checkpoint_step=step // 10 * 10,
            age_s=self.host.now - workers.started_at - step, step_s=1.0, checkpoint_s=0.1 * (step // 10),
        )  # fmt: skip

    def _tell_workers(self, notice: Notice) -> None:
        """Let each worker group save in its own time, if enough is left. Some exit then."""
        self._cluster.watch.noticed(self, notice)
        saves_s, left_s = self._cluster.rng.choice(SAVES_S), 0.9 * notice.remaining_s
        ends = self._cluster.rng.random() < 0.2
        self.host.later(min(saves_s, left_s), lambda: self._have_saved(notice, saves_s <= left_s, ends))

    def _have_saved(self, notice: Notice, have_all: bool, ends: bool) -> None:
        if (workers := self.workers) is None or not workers.are_training or workers.round != notice.round:
            self.feed(Answer(notice.number, Refused(reason="no workers of this round")))
            return
        size = self.local_world_size
        self.feed(Answer(notice.number, Noticed(listening=size, acknowledged=size if have_all else 0)))
        if have_all and ends and workers.are_training:
            self._cluster.note(self.name, "the workers have saved, and end")
            workers.finish(interrupted=True)

    def _look_up(self, query: Query) -> None:
        """Answer about the requested round, if it is the last one here."""
        is_here = query.round == self.machine.round
        answer = self._examined() if isinstance(query, Examine) else self._log(query)
        self.feed(Answer(query.number, answer if is_here else Refused(reason="another round")))

    def _log(self, query: Query) -> QueryAnswer:
        """Return a log that names this agent and the requested round."""
        return LogTail(path=self.agent_id, text=str(query.round), offset=query.number)

    def _examined(self) -> QueryAnswer:
        """Return stacks of the workers: all in a collective, except the one that hangs."""
        workers = self.live_workers
        if workers is None or not workers.are_training:
            return Refused(reason="no workers")
        ranks = workers.assignment.ranks
        groups = ((tuple(rank for rank in ranks if rank != workers.hung), _WAITS), ((workers.hung,), _HANGS))
        return Evidence(groups=tuple(
            StackGroup(ranks=those, frames=frames) for those, frames in groups if those and those != (None,)
        ))  # fmt: skip

    def _exit(self, code: int) -> None:
        assert self.live_workers is None, "an agent exits while its workers run"
        self.exit_code = code
        self._cluster.watch.exited(self)
        self.loop.start(self.runner.close())
