"""A virtual cluster of one run: hosts, agents, a server, the possible events, and the checks meanwhile."""

from collections import deque
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from rdzv_protocol.actions import ActionRequest, DrainRequest, LogsRequest
from rdzv_protocol.messages import Assignment, Blame, JoinRequest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.kernel.liveness import TOGETHER_S
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.service.interface import OperatorRequest
from simulation.agent import AgentProcess
from simulation.clock import Clock
from simulation.invariants import Watch
from simulation.network import CALM, Host, Network, Weather
from simulation.server import Server
from simulation.workers import Workers

RUN_ID = "run"
TRACE_LENGTH = 120
HANG_S = 5.0
"""Seconds without progress after which agents suspect a hang."""


UNNOTICED = "unnoticed"
"""Source of a hang that no agent notices."""


class Violation(AssertionError):
    """An invariant does not hold, or an expected event did not come in time. Contains the last events."""


class Cluster:
    """A cluster. `work_s`: shortest and longest training of a round's workers, None to train until they are told to
    `finish`.
    """

    def __init__(
        self,
        settings: RequestedSettings,
        *,
        explicit: bool = True,
        seed: int = 0,
        weather: Weather = CALM,
        work_s: tuple[float, float] | None = None,
        exclusion: ExclusionPolicy | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.entropy = Random(seed)
        """Replacement for the kernel's random numbers in the agents' processes."""
        self.clock = Clock()
        self.hosts: list[Host] = []
        self.agents: list[AgentProcess] = []
        self.work_s = work_s
        self._hangs: list[tuple[Workers, str]] = []
        """Workers of which one hangs or did, with the source by which agents notice."""
        self._is_checked = True
        self.trace: deque[tuple[float, str, Any]] = deque(maxlen=TRACE_LENGTH)
        self.server = Server(self.clock, self.note, exclusion)
        self.network = Network(self.clock, self.rng, weather, self.server.lost)
        self.watch = Watch(self.clock, self.server)
        self._settings, self._explicit = settings, explicit

    def note(self, who: str, what: Any) -> None:
        """Add an event to the trace. All changes of the state are added."""
        self.trace.append((self.clock.now, who, what))
        self._is_checked = False

    # State.

    @property
    def run(self) -> Run | None:
        """The latest attempt."""
        attempts = self.server.registry.runs()
        return attempts[-1] if attempts else None

    @property
    def live(self) -> list[AgentProcess]:
        return [agent for agent in self.agents if agent.is_live]

    @property
    def training(self) -> list[AgentProcess]:
        return [agent for agent in self.agents if agent.is_training]

    # Events.

    def add_host(self) -> Host:
        number = len(self.hosts) + 1
        self.hosts.append(Host(self.clock, f"n{number}", f"10.0.0.{number}"))
        return self.hosts[-1]

    def start_agent(
        self, host: Host, local_world_size: int = 1, *, is_old: bool = False, exits_when_excluded: bool = False
    ) -> AgentProcess:
        """Start an agent process on the host, beside or after others. `is_old`: it does not know drains, notices and
        examinations.
        """
        join = JoinRequest(
            run_id=RUN_ID,
            agent_id="",
            node_id=host.name,
            after_round=0,
            addr=host.addr,
            port=0,
            local_world_size=local_world_size,
            settings=self._settings,
            explicit_run_id=self._explicit,
            sort_key=f"s{len(self.agents) % 2}" if self._settings.rank_policy == "topology" else "",
        )
        agent = AgentProcess(self, host, join, is_old=is_old, exits_when_excluded=exits_when_excluded)
        self.note(agent.name, "starts")
        self.agents.append(agent)
        self.watch.know(agent)
        return agent

    def fail(
        self, agent: AgentProcess, exit_code: int = 1, *, is_consequence: bool = False, blame: Blame = "unknown"
    ) -> None:
        """Make one of the agent's workers fail, if any trains."""
        if agent.is_training:
            self.note(agent.name, f"a worker ends with {exit_code}")
            failure = agent.workers.fail(exit_code, is_consequence=is_consequence, blame=blame)
            self.watch.failed(agent.agent_id, agent.workers, failure)

    def kill_with_peers(self, agent: AgentProcess) -> None:
        """Kill an agent that trains. The workers of the others fail soon, and say that they have lost a peer."""
        workers, died_at = agent.workers, self.clock.now
        others = [other for other in self._of_the_round(workers) if other is not agent] if agent.is_training else []
        self.kill(agent)
        for other in others:
            self.clock.later(self.rng.uniform(0.0, 0.3), lambda other=other: self._follows(other, agent, died_at))

    def _follows(self, other: AgentProcess, dead: AgentProcess, died_at: float) -> None:
        if other.is_training and self._is_one_round(other.workers, dead.workers):
            self.watch.follows(other.agent_id, other.workers, dead.agent_id, died_at)
            self.fail(other, is_consequence=True)

    def hang(self, agent: AgentProcess, source: str = "progress") -> None:
        """Make one of the agent's workers hang. All others wait for it, and the agents notice by this source."""
        if not agent.is_training or agent.workers.hung_since is not None:
            return
        workers = agent.workers
        workers.hung = self.rng.choice(workers.assignment.ranks)
        self.note(agent.name, f"rank {workers.hung} hangs")
        self.watch.hung(workers)
        self._hangs.append((workers, source))
        for other in self._of_the_round(workers):
            self._waits(other, other.workers, workers, source)

    def _waits(self, agent: AgentProcess, own: Workers, hung: Workers, source: str) -> None:
        """Make the agent's workers wait for the one that hangs. The agent notices."""
        own.hung_since, is_own = self.clock.now, own is hung
        is_sure = source == "timer"  # a timer shows which worker hangs, and the other nodes have none
        if source != UNNOTICED and (is_own or not is_sure):
            ranks = (hung.hung,) if is_sure else tuple(own.assignment.ranks)
            at_s = HANG_S + self.rng.random() * (not is_own)
            self.clock.later(at_s, lambda: self._suspect(agent, hung, source, ranks))

    @property
    def unnoticed(self) -> list[AgentProcess]:
        """Agents with a worker that hangs without its agent noticing."""
        teams = [workers for workers, source in self._hangs if source == UNNOTICED and workers.hung is not None]
        return [agent for agent in self.training if agent.workers in teams]

    def go_on(self, hung: AgentProcess, source: str = "progress") -> None:
        """Let the worker that hangs continue, with all others."""
        if (workers := hung.live_workers) and workers.hung is not None:
            self.note(hung.name, f"rank {workers.hung} continues")
            workers.hung = None
            for other in self._of_the_round(workers):
                other.workers.hung_since, other.workers.resumed_at = None, self.clock.now
                self._suspect(other, workers, source, ())

    def _suspect(self, agent: AgentProcess, hung: Workers, source: str, ranks: tuple[int, ...]) -> None:
        """Let an agent suspect workers that still hang, or retract it for those that no longer do."""
        own = agent.workers if agent.is_training else None
        if own and self._is_one_round(own, hung) and bool(ranks) == (own.hung_since is not None):
            agent.suspect(own.round, source, ranks)

    def _of_the_round(self, workers: Workers) -> list[AgentProcess]:
        return [agent for agent in self.training if self._is_one_round(agent.workers, workers)]

    @staticmethod
    def _is_one_round(one: Workers, other: Workers) -> bool:
        return (one.attempt, one.round) == (other.attempt, other.round)

    def finish(self, agent: AgentProcess) -> None:
        """Let the agent's workers complete their work, if they train and do not wait for one that hangs."""
        if agent.is_training and agent.workers.hung_since is None:
            self.note(agent.name, "the workers are done")
            self.watch.succeeded(agent.agent_id, agent.workers)
            agent.workers.finish()

    def kill(self, agent: AgentProcess, *, with_host: bool = False) -> None:
        """Kill the process, which closes its connections. With `with_host` nothing closes."""
        self.note(agent.name, "is killed")
        agent.host.is_suspect = True
        agent.die(with_host=with_host)

    def signal(self, agent: AgentProcess) -> None:
        self.note(agent.name, "gets SIGTERM")
        agent.host.is_suspect = True
        agent.signal()

    def freeze(self, host: Host) -> None:
        self.note(host.name, "falls silent")
        host.freeze()

    def cut(self, host: Host) -> None:
        self.note(host.name, "is cut off")
        host.cut()

    def recover(self, host: Host) -> None:
        """End the host's silence, and make it reachable again."""
        self.note(host.name, "is back")
        host.thaw()
        host.heal()

    def disconnect(self, agent: AgentProcess) -> None:
        if connection := agent.transport.connection:
            self.note(agent.name, "its connection breaks")
            agent.host.suffers()
            self.network.break_(connection)

    def restart_server(self, down_s: float, *, is_killed: bool) -> None:
        """Kill the server, or tell it to go, and start it again with its state after `down_s` seconds."""
        if self.server.is_down:
            return
        self.note("server", "is killed" if is_killed else "gets SIGTERM")
        if not is_killed:
            self.server.close()
        self.server.die()
        self.network.server_died()
        self.clock.later(down_s, self._server_starts)

    def _server_starts(self) -> None:
        self.note("server", "starts again")
        self.server.restart()

    def break_path(self, hosts: Collection[Host], within_s: float, down_s: float) -> None:
        """Break the connections of these hosts within these seconds, as a proxy that restarts, and refuse new ones."""
        self.note("world", f"the path of {[host.name for host in hosts]} breaks")
        if within_s > TOGETHER_S or len(hosts) == 1:  # this is not seen to have one cause
            for host in hosts:
                host.suffers()
        self.network.path_breaks(hosts, within_s, down_s)

    def ask_for_log(self, rank: int) -> None:
        """Let an operator ask for the end of a worker's log."""
        self.note("operator", f"asks for the log of rank {rank}")
        question = OperatorRequest(LogsRequest(run_id=RUN_ID, rank=rank), "an operator")
        asked_at = self.watch.asked()
        self.server.ask(question, lambda answer: self.watch.answered(question, asked_at, answer))

    def act(self, request: ActionRequest) -> None:
        """Let an operator request an action."""
        self.note("operator", request)
        if isinstance(request, DrainRequest):
            self.watch.drained_nodes.add(request.node_id)
        self.server.act(request)
        self._check()

    # Time.

    def passes(self, seconds: float) -> None:
        """Let time pass, event by event, and check the invariants after each."""
        self._advance(self.clock.now + seconds, lambda: False)

    def until(self, reached: Callable[[], bool], within_s: float, goal: str) -> None:
        """Let time pass until `reached`. Raises `Violation` if it does not come in time."""
        if not self._advance(self.clock.now + within_s, reached):
            raise Violation(f"not within {within_s:g} s: {goal}\n{self.story()}")

    def story(self) -> str:
        """Return the last events and the present state, for people."""
        lines = [f"{at:10.4f}  {who:15}  {what}" for at, who, what in self.trace]
        for run in self.server.registry.runs():
            states = ", ".join(f"{agent.agent_id} {agent.state}({agent.round})" for agent in run.agents.values())
            lines.append(f"attempt {run.attempt}: {run.stage}, round {run.round}: {states or 'nobody'}")
        for agent in self.agents:
            workers = f"{agent.workers.live} workers of round {agent.workers.round}" if agent.workers else "no workers"
            fate = "dead" if agent.is_dead else agent.machine.state.value
            lines.append(f"{agent.agent_id}: {fate}, {workers}, exit code {agent.exit_code}")
        return "\n".join(lines)

    def _advance(self, until: float, reached: Callable[[], bool]) -> bool:
        try:
            while not reached():
                self._check()  # also after actions without the clock
                if not self.clock.step(until):
                    return reached()
                self._check()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}\n{self.story()}") from error
        return True

    def _check(self) -> None:
        if not self._is_checked:
            self.watch.check()
            self._is_checked = True

    def start_workers(self, agent: AgentProcess, assignment: Assignment) -> Workers:
        attempt = self.watch.starts(agent, assignment)
        workers = Workers(agent.host, self.rng, assignment, attempt, agent.feed)
        for hung, source in self._hangs:
            if hung.hung is not None and hung.are_training and self._is_one_round(hung, workers):
                self._waits(agent, workers, hung, source)
        if self.work_s:
            agent.host.later(self.rng.uniform(*self.work_s), lambda: self._work_ends(agent, workers))
        return workers

    def _work_ends(self, agent: AgentProcess, workers: Workers) -> None:
        if agent.workers is workers and self.work_s:
            self.finish(agent)
