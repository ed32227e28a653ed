"""Several runs and their attempts: whatever happens, an attempt is never confused with another one."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rdzv_protocol.errors import AgentFenced, ProtocolError, RunSucceeded
from rdzv_protocol.messages import Finish

from rdzv_server.core.cordons import JOURNAL
from rdzv_server.core.effects import ForgetRun, Record
from rdzv_server.core.events import (
    AgentDisconnected,
    Event,
    LeaseRenewed,
    NodeJoined,
    NodeLeft,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.registry import Registry
from rdzv_server.core.run import Stage
from tests.support.scenario import SERVER_ADDR, a_failure, a_join, durable, settings_of, snapshot

RETENTION_S = 100.0
RUNS = ["one", "two"]

runs = st.sampled_from(RUNS)
agents = st.integers(0, 12).map("agent{}".format)
steps = st.one_of(st.sampled_from([0.0, 1.0, 10.0, RETENTION_S, 1_000.0]), st.floats(0.0, 50.0))


class RegistryStory(RuleBasedStateMachine):
    """Knows of each agent which attempt it joined; everything else is read from the registry."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.registry = Registry(RETENTION_S)
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.homes: dict[tuple[str, str], int] = {}
        """The attempt in which an agent of a run was first taken."""

    # What happens.

    @rule(
        run_id=runs,
        agent=agents,
        explicit=st.booleans(),
        rerun=st.booleans(),
        after_round=st.sampled_from([0, 0, 0, 0, 1]),
        nodes=st.sampled_from(["1", "1", "1:2"]),
    )
    def an_agent_joins(
        self, run_id: str, agent: str, explicit: bool, rerun: bool, after_round: int, nodes: str
    ) -> None:
        latest = self._latest(run_id)
        known = (run_id, agent) in self.homes
        settings = settings_of(nodes, last_call_timeout_s=5.0, join_timeout_s=20.0, lease_s=30.0)
        join = a_join(
            agent,
            run_id=run_id,
            explicit_run_id=explicit,
            rerun=rerun,
            after_round=after_round,
            settings=settings,
        )
        refusal = self._handle(run_id, NodeJoined(join, SERVER_ADDR))
        if known:
            assert refusal in (None, AgentFenced)
            assert self._latest(run_id) is latest, "an agent that is known begins nothing"
        elif refusal is None:
            now = self._latest(run_id)
            assert now is not None and not now.stage.is_end
            assert agent in now.agents
            self.homes[run_id, agent] = now.attempt
        elif refusal is RunSucceeded:
            assert latest.stage is Stage.SUCCEEDED and latest.explicit and explicit and not rerun

    @rule(run_id=runs, agent=agents, failed=st.booleans())
    def its_workers_end(self, run_id: str, agent: str, failed: bool) -> None:
        round_ = self._round(run_id, agent)
        failure = a_failure(agent)
        self._handle(run_id, WorkersFailed(agent, round_, failure) if failed else WorkersSucceeded(agent, round_))

    @rule(run_id=runs, agent=agents, event=st.sampled_from([LeaseRenewed, AgentDisconnected]))
    def a_sign(self, run_id: str, agent: str, event: type[LeaseRenewed | AgentDisconnected]) -> None:
        self._handle(run_id, event(agent))

    @rule(run_id=runs, agent=agents)
    def an_agent_leaves(self, run_id: str, agent: str) -> None:
        self._handle(run_id, NodeLeft(agent, "SIGTERM"))

    @rule(seconds=steps)
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.registry.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self._note(self.registry.pass_time(self.now))
        self.now = end

    @rule(seconds=steps)
    def the_server_stalls(self, seconds: float) -> None:
        self.now += seconds
        self._note(self.registry.pass_time(self.now))

    @rule()
    def the_server_restarts(self) -> None:
        again = Registry(RETENTION_S)
        for records in self.records.values():
            for record in records:
                again.replay(record)
        assert self._durable(again) == self._durable(self.registry)
        self.registry = again
        self._note(self.registry.pass_time(self.now))

    def _handle(self, run_id: str, event: Event) -> type[ProtocolError] | None:
        before = [snapshot(run) for run in self.registry.runs()]
        try:
            machine, effects = self.registry.handle(run_id, event, self.now)
            machine.run.validate()
            self._note(effects)
        except ProtocolError as error:
            assert [snapshot(run) for run in self.registry.runs()] == before
            return type(error)
        self._note(self.registry.pass_time(self.now))
        return None

    def _note(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self.records.setdefault((effect.run_id, effect.attempt), []).append(effect)
            elif isinstance(effect, ForgetRun):
                key = (effect.run_id, effect.attempt)
                self.records.pop(key, None)
                self.homes = {agent: home for agent, home in self.homes.items() if (agent[0], home) != key}

    def _latest(self, run_id: str):
        found = [run for run in self.registry.runs() if run.run_id == run_id]
        return max(found, key=lambda run: run.attempt, default=None)

    def _round(self, run_id: str, agent: str) -> int:
        found = [
            run.agents[agent].round for run in self.registry.runs() if run.run_id == run_id and agent in run.agents
        ]
        return found[-1] if found else 1

    @staticmethod
    def _durable(registry: Registry) -> dict:
        return {(run.run_id, run.attempt): durable(run) for run in registry.runs()}

    # What holds at all times.

    @invariant()
    def only_the_latest_attempt_goes_on(self) -> None:
        for run in self.registry.runs():
            assert run.stage.is_end or run is self._latest(run.run_id)

    @invariant()
    def what_is_remembered_is_what_is_recorded(self) -> None:
        assert {(run.run_id, run.attempt) for run in self.registry.runs()} == set(self.records) - {(JOURNAL, 0)}

    @invariant()
    def nothing_is_remembered_longer_than_the_retention_time(self) -> None:
        for run in self.registry.runs():
            assert run.ended_at is None or self.now < run.ended_at + RETENTION_S

    @invariant()
    def a_run_that_is_remembered_has_a_deadline(self) -> None:
        at = self.registry.next_deadline()
        assert at is None or at > self.now
        assert not self.registry.runs() or at is not None

    @invariant()
    def every_agent_reads_the_directive_of_its_own_attempt(self) -> None:
        for (run_id, agent), attempt in self.homes.items():
            machine = self.registry.machine_of(run_id, agent)
            run = machine.run
            assert run.attempt == attempt
            if agent in run.agents:
                directive = machine.directive_for(agent, self.now)[1]
                assert isinstance(directive, Finish) is run.stage.is_end


TestRegistryStory = RegistryStory.TestCase
