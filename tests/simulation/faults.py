"""A schedule: a seed's choices for a run, its hosts, its network and all faults."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rdzv_protocol import actions
from rdzv_protocol.settings import LAST_CALL_MOST_S, SCALE_UP_NOTICE_S, RequestedSettings, RunSettings

from rdzv_server.core.kernel import admission
from rdzv_server.core.kernel.run import AgentState, Run, Stage
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from simulation.agent import AgentProcess
from simulation.cluster import RUN_ID, UNNOTICED, Cluster
from simulation.network import CALM, LATEST_COPY_S, QUICK_STOP_S, Host, Weather

MOST_HOSTS = 7
SLOWEST_STOP_S = 30.0
FATAL = 42
SOURCES = ("progress", "progress", "silence", "timer", UNNOTICED)
STALLS_S = 100.0
"""Seconds for which workers stand still that hang unnoticed: health must tell."""
AFTERMATH_S = LATEST_COPY_S + 5.0
"""Seconds in which messages lost or copied before the calm show their effect."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Beginning of a schedule."""

    settings: RequestedSettings
    explicit: bool
    weather: Weather
    hosts: int
    work_s: tuple[float, float] | None
    faults: int
    spacing_s: float
    """Average seconds between two faults."""
    exclusion: ExclusionPolicy | None
    has_greedy_proxy: bool
    """Whether a proxy closes each connection after an answer."""


def draw(rng: Random) -> Plan:
    low = rng.choice((1, 1, 2, 2, 3, 4))
    high = low + rng.choice((0, 0, 1, 2, 3))
    legal_sizes = rng.choice((None, None, None, (1, 2, 4), (2, 3, 5)))
    settings = RequestedSettings(
        min_nodes=low,
        max_nodes=high,
        node_unit=2 if low % 2 == 0 and rng.random() < 0.3 else None,
        legal_sizes=legal_sizes if legal_sizes and any(low <= size <= high for size in legal_sizes) else None,
        shrink_after_s=rng.choice((None, None, 2.0, 8.0)),
        max_restarts=rng.choice((0, 1, 3, 10, 100)),
        join_timeout_s=rng.choice((20.0, 40.0)),
        last_call_timeout_s=rng.choice((0.0, 1.0, 10.0, None)),
        lease_s=rng.choice((4.0, 10.0)),
        disconnect_grace_s=rng.choice((0.0, 0.2, 1.0)),
        scale_up=rng.choice(("immediate", "immediate", "cooldown", "manual", "on-notice")),
        notice_timeout_s=rng.choice((None, None, 2.0, 8.0)),
        rank_policy=rng.choice((None, None, "topology", "fill-gaps")),
        on_hang=rng.choice((None, None, "fail", "report")),
        max_hang_restarts=rng.choice((None, None, 0, 1, 3)),
        scale_up_window_s=rng.choice((0.0, 0.1, 1.0)),
        scale_up_cooldown_s=15.0,
        restart_window_s=rng.choice((None, None, 20.0)),
        fatal_exit_codes=rng.choice(((), (), (FATAL,))),
        restart_backoff_s=rng.choice((None, None, 1.0, 4.0)),
        restart_backoff_max_s=rng.choice((2.0, 8.0, 30.0)),
        max_restarts_without_progress=rng.choice((None, None, None, 1, 3)),
    )
    return Plan(
        settings=settings,
        explicit=rng.random() < 0.5,
        weather=rng.choice(_WEATHERS),
        hosts=max(1, high + rng.choice((-1, 0, 0, 1))),
        work_s=rng.choice((None, None, (5.0, 9.0), (1.0, 60.0))),
        faults=rng.choice((0, 3, 10, 20, 30)),
        spacing_s=rng.choice((0.05, 0.7, 3.0)),
        exclusion=rng.choice((None, ExclusionPolicy(rng.choice((1, 2, 3)), 60.0, rng.choice((2.0, 15.0))))),
        has_greedy_proxy=rng.random() < 0.1,
    )


_WEATHERS = (
    CALM,
    CALM,
    Weather(latency_s=0.2, slow=0.01),
    Weather(breaks=0.02, slow=0.02),
    Weather(hangs=0.01, breaks=0.01),
    Weather(twice=0.2),
    Weather(latency_s=0.05, breaks=0.02, hangs=0.01, twice=0.1, slow=0.02),
)


class Schedule:
    """One seed's story: a stormy time, then a quiet one in which all must recover, then the end of the work."""

    def __init__(self, seed: int, *, judges_hangs: bool = True) -> None:
        """`judges_hangs`: whether the server finds out which workers hang; otherwise they continue after the storm."""
        rng = Random(seed)
        self.plan = draw(rng)
        plan = self.plan
        self.cluster = Cluster(
            plan.settings,
            explicit=plan.explicit,
            seed=rng.getrandbits(64),
            weather=plan.weather,
            work_s=plan.work_s,
            exclusion=plan.exclusion,
        )
        self.cluster.network.has_greedy_proxy = plan.has_greedy_proxy
        self._judges_hangs = judges_hangs and plan.settings.on_hang != "report"
        self._rng = self.cluster.rng
        self._scale = self._rng.choice((1, 1, 4))
        self._pending = 0
        """Faults that are still to come: a failure in a moment, a restarted agent."""

    def play(self) -> None:
        """Play the schedule. Raises `Violation` if anything is wrong."""
        cluster, plan = self.cluster, self.plan
        for _ in range(plan.hosts):
            self._later(self._rng.expovariate(2.0), self._arrive)
        cluster.passes(self._rng.choice((0.0, 0.1, 3.0)))
        for _ in range(plan.faults):
            cluster.passes(self._rng.expovariate(1 / plan.spacing_s))
            self._rng.choices(self._faults, self._weights)[0](self)
        cluster.passes(self._rng.uniform(0.0, 5.0))
        self._calm_down()
        if cluster.unnoticed:
            cluster.passes(STALLS_S)
            for agent in cluster.unnoticed:
                cluster.go_on(agent, UNNOTICED)
        cluster.passes(AFTERMATH_S)
        cluster.until(self.is_settled, self._patience_s(), "every agent has its place, or the run is over")
        cluster.passes(2 * self._settings.lease_s)
        assert not cluster.watch.open_questions, f"a question to an agent is left open\n{cluster.story()}"
        assert self.is_settled(), f"settled, and then unsettled again\n{cluster.story()}"
        self._finish_work()
        cluster.until(lambda: not cluster.live, 60.0, "every agent exits once the work is done")

    def is_settled(self) -> bool:
        """Return whether the run has reached its place or its end.

        Either every live agent works, has worked or waits with a reason, and the server knows no other agent. Or no
        agent is left, and the run has ended, is deserted, or is known to be silent.
        """
        cluster = self.cluster
        if self._pending:
            return False
        live = cluster.live
        run = cluster.run
        if any(cordon.until is not None for cordon in cluster.server.registry.nodes.state.cordons.values()):
            return False
        if run is not None and run.unheard_since is not None:
            return not live
        if run is None or run.stage is Stage.FORMING or run.stage.is_end:
            return not live and (run is None or run.stage.is_end or not run.agents)
        return len(live) == len(run.agents) and all(_is_placed(run, agent) for agent in live)

    @property
    def _settings(self) -> RunSettings:
        return self.plan.settings.resolve()

    def _calm_down(self) -> None:
        """Stop the faults. Messages under way still arrive, and the work continues without end."""
        cluster = self.cluster
        cluster.note("world", "calms down")
        cluster.network.weather, cluster.work_s = CALM, None
        if not self._judges_hangs:  # hung workers continue; otherwise the run must find out
            for agent in cluster.training:
                cluster.go_on(agent)
        for host in cluster.hosts:
            host.stop_takes_s = QUICK_STOP_S
            cluster.recover(host)
            if self._rng.random() < 0.7:
                cluster.act(actions.UncordonRequest(node_id=host.name))

    def _patience_s(self) -> float:
        """Return the seconds for all to recover: a copy arrives late, a dead agent's lease ends, a round forms or
        fails.
        """
        settings = self._settings
        last_call_s = LAST_CALL_MOST_S if settings.last_call_timeout_s is None else settings.last_call_timeout_s
        saves_s = SCALE_UP_NOTICE_S if settings.notice_timeout_s is None else settings.notice_timeout_s
        waits_s = settings.restart_backoff_max_s if settings.restart_backoff_s else 0.0
        once = settings.join_timeout_s + last_call_s + settings.lease_s + SLOWEST_STOP_S + saves_s + waits_s
        return 3 * (once + 30.0 + settings.scale_up_cooldown_s)

    def _finish_work(self) -> None:
        cluster = self.cluster
        cluster.note("world", "work is done")
        cluster.work_s = (0.0, 1.0)
        for agent in cluster.live:
            cluster.clock.later(self._rng.random(), lambda agent=agent: cluster.finish(agent))

    # Faults.

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        def do() -> None:
            self._pending -= 1
            call()

        self._pending += 1
        self.cluster.clock.later(delay_s, do)

    def _arrive(self) -> None:
        if len(self.cluster.hosts) < MOST_HOSTS:
            self._start_on(self.cluster.add_host())

    def _start_on(self, host: Host) -> None:
        is_old, makes_room = self._rng.random() < 0.2, self._rng.random() < 0.3
        size = self._rng.randint(1, self._scale)
        self.cluster.start_agent(host, size, is_old=is_old, exits_when_excluded=makes_room)

    def _workers_fail(self) -> None:
        cluster = self.cluster
        victims = cluster.training
        exit_code = self._rng.choice((1, 1, 1, -9, FATAL))
        blame = self._rng.choice(("unknown", "unknown", "program", "node"))
        for agent in self._rng.sample(victims, min(len(victims), self._rng.choice((1, 1, 2, 5)))):
            after_s, suffers = self._rng.choice((0.0, 0.001, 0.3)), self._rng.random() < 0.3
            self._later(
                after_s,
                lambda agent=agent, suffers=suffers: cluster.fail(
                    agent, exit_code, is_consequence=suffers, blame=blame
                ),
            )

    def _worker_hangs(self) -> None:
        """Let a worker hang, for good or for a while that may end before any agent notices."""
        if training := self.cluster.training:
            agent, source = self._rng.choice(training), self._rng.choice(SOURCES)
            self.cluster.hang(agent, source)
            if self._rng.random() < 0.3:
                self.cluster.clock.later(self._rng.uniform(0.0, 15.0), lambda: self.cluster.go_on(agent, source))

    def _agent_dies(self) -> None:
        if agent := self._pick():
            self.cluster.kill(agent, with_host=self._rng.random() < 0.3)
            if self._rng.random() < 0.6:
                self._later(self._rng.choice((0.0, 0.5, 15.0)), lambda: self._start_on(agent.host))

    def _agent_dies_with_peers(self) -> None:
        if training := self.cluster.training:
            self.cluster.kill_with_peers(self._rng.choice(training))

    def _agent_is_told_to_go(self) -> None:
        if agent := self._pick():
            self.cluster.signal(agent)
            if self._rng.random() < 0.3:
                self._later(self._rng.uniform(0.0, 3.0), lambda: self.cluster.signal(agent))
            if self._rng.random() < 0.5:
                self._later(self._rng.uniform(0.0, 5.0), lambda: self._start_on(agent.host))

    def _host_falls_silent(self) -> None:
        self._for_a_while(self.cluster.freeze)

    def _host_is_cut_off(self) -> None:
        self._for_a_while(self.cluster.cut)

    def _for_a_while(self, strike: Callable[[Host], None]) -> None:
        if self.cluster.hosts:
            host = self._rng.choice(self.cluster.hosts)
            strike(host)
            self.cluster.clock.later(self._rng.choice((0.5, 3.0, 12.0, 30.0)), lambda: self.cluster.recover(host))

    def _connection_breaks(self) -> None:
        if agent := self._pick():
            self.cluster.disconnect(agent)

    def _server_restarts(self) -> None:
        self.cluster.restart_server(self._rng.choice((0.0, 0.1, 2.0, 12.0)), is_killed=self._rng.random() < 0.5)

    def _path_breaks(self) -> None:
        """Restart a proxy of all hosts, or of some."""
        hosts = self.cluster.hosts
        if hosts and self._rng.random() < 0.5:
            hosts = self._rng.sample(hosts, self._rng.randint(1, len(hosts)))
        within_s, down_s = self._rng.choice((0.0, 0.005, 0.5, 3.0)), self._rng.choice((0.0, 0.0, 1.5, 3.0))
        self.cluster.break_path(hosts, within_s, down_s)

    def _stops_grow_slow(self) -> None:
        if self.cluster.hosts:
            self._rng.choice(self.cluster.hosts).stop_takes_s = (1.0, self._rng.choice((2.0, SLOWEST_STOP_S)))

    def _logs_are_read(self) -> None:
        for _ in range(self._rng.choice((1, 1, 3, 20))):
            self.cluster.ask_for_log(self._rng.randint(0, 4))

    def _operator_acts(self) -> None:
        """Request an action, sometimes twice with one request id, which is carried out once."""
        request = self._rng.choices(_ACTIONS, _ACTION_WEIGHTS)[0](self)
        for _ in range(self._rng.choice((1, 1, 2))):
            self.cluster.act(request)
        if isinstance(request, actions.DrainRequest) and self._rng.random() < 0.5 and self.cluster.hosts:
            host = next(host for host in self.cluster.hosts if host.name == request.node_id)
            self._later(self._rng.uniform(0.0, 20.0), lambda: self._start_on(host))

    def _asks(self) -> dict[str, str]:
        return {"request_id": f"request-{self._rng.getrandbits(64):x}", "reason": "why not"}

    def _asks_of_node(self) -> dict[str, str]:
        return self._asks() | {"node_id": self._rng.choice(self.cluster.hosts).name if self.cluster.hosts else "n1"}

    def _drain(self) -> actions.ActionRequest:
        deadline_s, for_s = self._rng.choice((0.0, 2.0, SLOWEST_STOP_S)), self._rng.choice((None, 5.0, 30.0))
        return actions.DrainRequest(deadline_s=deadline_s, for_s=for_s, **self._asks_of_node())

    def _cordon(self) -> actions.ActionRequest:
        return actions.CordonRequest(for_s=self._rng.choice((None, 1.0, 30.0)), **self._asks_of_node())

    def _uncordon(self) -> actions.ActionRequest:
        return actions.UncordonRequest(**self._asks_of_node())

    def _restart(self) -> actions.ActionRequest:
        return actions.RestartRequest(run_id=RUN_ID, **self._asks())

    def _resize(self) -> actions.ActionRequest:
        low = self._rng.randint(1, 3)
        high = low + self._rng.randint(0, 3)
        return actions.ResizeRequest(run_id=RUN_ID, min_nodes=low, max_nodes=high, **self._asks())

    def _admit(self) -> actions.ActionRequest:
        return actions.AdmitRequest(run_id=RUN_ID, **self._asks())

    def _stop(self) -> actions.ActionRequest:
        return actions.StopRequest(run_id=RUN_ID, **self._asks())

    def _pick(self) -> AgentProcess | None:
        live = self.cluster.live
        return self._rng.choice(live) if live else None

    _faults = (
        _workers_fail,
        _worker_hangs,
        _agent_dies,
        _agent_dies_with_peers,
        _agent_is_told_to_go,
        _host_falls_silent,
        _host_is_cut_off,
        _connection_breaks,
        _server_restarts,
        _path_breaks,
        _stops_grow_slow,
        _arrive,
        _logs_are_read,
        _operator_acts,
    )
    _weights = (6, 3, 2, 2, 2, 2, 2, 2, 1, 1, 2, 2, 2, 6)


_ACTIONS = (
    Schedule._drain, Schedule._cordon, Schedule._uncordon, Schedule._restart, Schedule._resize, Schedule._admit,
    Schedule._stop,
)  # fmt: skip
_ACTION_WEIGHTS = (4, 3, 3, 3, 3, 3, 1)
_LEFT_OUT = {"_forget"}
"""Only a run that has ended can be forgotten, and a schedule plays one run until it ends."""
assert {f"_{action.name}" for action in actions.ACTIONS} == {call.__name__ for call in _ACTIONS} | _LEFT_OUT, (
    "each operator's action is in a schedule, or is left out for a reason"
)


def _is_placed(run: Run, process: AgentProcess) -> bool:
    agent = run.agents.get(process.agent_id)
    if agent is None:
        return False
    if agent.state is AgentState.CORDONED:
        return process.live_workers is None
    if agent.state is AgentState.WAITING:
        return process.live_workers is None and _stands_by_rightly(run)
    done = agent.state is AgentState.SUCCEEDED and process.machine.state.value == "succeeded"
    is_working = process.is_training and process.workers.hung_since is None
    return done or (agent.state is AgentState.RUNNING and is_working)


def _stands_by_rightly(run: Run) -> bool:
    full = admission.free_seats(run) == 0
    return full or bool(run.succeeded) or run.settings.scale_up == "manual"
