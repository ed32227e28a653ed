"""Stories with a fixed schedule, second by second, about what an agent and the server can only do right together.

The server's own rules are tested in `tests/unit/rdzv_server/core`, and the ordinary course of a run in
`tests/integration`, with the real programs.
"""

from typing import Any

import pytest
from msgspec.structs import replace
from rdzv_protocol.actions import DrainRequest
from rdzv_protocol.codec import encode
from rdzv_protocol.messages import JoinRequest, ReportRequest
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.core.machine import State
from rdzv_server.core.kernel import departures
from rdzv_server.core.kernel.run import Stage
from simulation.agent import AgentProcess
from simulation.cluster import Cluster, Violation
from simulation.network import Connection

SOON_S = 0.1
"""Seconds for a few messages in both directions."""
LEASE_S = 10.0


class Story(Cluster):
    """Agents a, b, ... on separate hosts, on a calm network. Workers stop at once and work until told."""

    def __init__(self, nodes: str, agents: int, **settings: object) -> None:
        low, _, high = nodes.partition(":")
        given = {"min_nodes": int(low), "max_nodes": int(high or low), "max_restarts": 3, "lease_s": LEASE_S}
        super().__init__(RequestedSettings(**(given | settings)))
        for _ in range(agents):
            self.arrives()

    def arrives(self) -> AgentProcess:
        host = self.add_host()
        host.stop_takes_s = (0.01, 0.01)
        return self.start_agent(host)

    def runs_on(self, *agents: AgentProcess, within_s: float = SOON_S) -> None:
        """Check that exactly these agents work, in this order of group ranks, in a round of the server."""

        def reached() -> bool:
            if self.run is None or self.run.membership is None:
                return False
            seats = sorted(self.run.membership.seats.values(), key=lambda seat: seat.group_rank)
            told = [seat.agent_id for seat in seats] == [agent.agent_id for agent in agents]
            return told and all(agent.is_training and agent.workers.round == self.round for agent in agents)

        self.until(reached, within_s, f"runs on {[agent.name for agent in agents]}")

    def restarts_on(self, *agents: AgentProcess) -> None:
        """Check `runs_on` after an event that has just happened."""
        self.passes(0.001)
        self.runs_on(*agents)

    def copy_of_first_join_arrives(self, agent: AgentProcess, agent_id: str) -> None:
        """Deliver the agent's first join once more, over a separate connection."""
        join = replace(agent.joined, agent_id=agent_id, after_round=0)
        self.server.receive(JoinRequest, encode(join), Connection(agent.host), lambda *_: None)

    def ends(self, stage: Stage, within_s: float = SOON_S) -> None:
        self.until(lambda: not self.live, within_s, "every agent exits")
        assert self.run.stage is stage

    @property
    def round(self) -> int:
        return self.run.round


def running(nodes: str, agents: int, **settings: object) -> tuple[Story | AgentProcess, ...]:
    """Return a story in which all agents work in the first round, and the agents."""
    story = Story(nodes, agents, **settings)
    story.runs_on(*story.agents)
    return story, *story.agents


# Silence.


def test_a_host_that_was_silent_stops_its_workers_before_it_rejoins():
    story, a, b = running("1:2", 2)
    story.freeze(b.host)
    story.runs_on(a, within_s=LEASE_S + SOON_S)
    assert b.live_workers, "its workers are frozen with it"
    b.host.stop_takes_s = (3.0, 3.0)
    story.recover(b.host)
    story.until(lambda: b.machine.state is State.STOPPING, SOON_S, "told that it is fenced")
    story.passes(2.9)
    assert len(story.run.agents) == 1
    story.runs_on(a, b, within_s=1.0)
    assert b.agent_id.endswith(".2")


def silence(story: Story, agent: AgentProcess) -> None:
    story.freeze(agent.host)
    story.passes(6)
    story.recover(agent.host)


def partition(story: Story, agent: AgentProcess) -> None:
    story.disconnect(agent)
    story.passes(60)
    story.cut(agent.host)
    story.rng.seed(3)  # messages under way arrive when the cut heals, and the connection does not hang
    story.passes(3)
    story.recover(agent.host)


def breaks(story: Story, agent: AgentProcess) -> None:
    for _ in range(20):
        story.disconnect(agent)
        story.passes(5)


@pytest.mark.parametrize("disturb", [silence, partition, breaks])
def test_a_disturbance_shorter_than_the_lease_changes_nothing(disturb):
    story, a, _ = running("2", 2)
    disturb(story, a)
    story.passes(60)
    assert story.round == 1


# Departures after a failure.


def drained_while_a_round_forms(*, is_lost: bool) -> Story:
    """Return a run of which an operator has drained a node after a worker of another one had failed."""
    story, a, b, c = running("2:3", 3)
    b.host.stop_takes_s, c.host.stop_takes_s = (1.0, 1.0), (15.0, 15.0)
    story.fail(a)
    story.passes(SOON_S)
    story.act(DrainRequest(node_id=b.host.name))
    story.passes(SOON_S)
    if is_lost:
        story.kill(b)
    story.runs_on(a, c, within_s=15.0 + SOON_S)
    assert [gone.left for gone in story.run.departures] == [not is_lost]
    return story


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_drain_after_a_failure_does_not_excuse_it(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model notices a server for which it does."""
    assert drained_while_a_round_forms(is_lost=is_lost).run.restart_count == 1
    place = departures._left_its_place

    def excuse(*given: Any, **more: Any) -> None:
        place(*given, **more | {"explains": True})

    monkeypatch.setattr(departures, "_left_its_place", excuse)
    with pytest.raises(Violation, match="free by a drain"):
        drained_while_a_round_forms(is_lost=is_lost)


def test_a_loss_before_a_drain_excuses_the_failure() -> None:
    story, a, b = running("1:2", 2)
    b.host.stop_takes_s = (2.0, 2.0)
    story.fail(a)
    story.kill(b)
    story.passes(SOON_S)
    story.act(DrainRequest(node_id=b.host.name))
    story.runs_on(a, within_s=2.0 + SOON_S)
    assert story.run.restart_count == 0


# Copies and gaps.


def test_a_late_copy_of_the_first_join_does_not_count_as_a_rejoin():
    story, a, b = running("2", 2)
    agent_id = b.agent_id
    b.host.stop_takes_s = (5.0, 5.0)
    story.fail(a)
    story.passes(1)
    story.copy_of_first_join_arrives(b, agent_id)
    story.passes(1)
    assert story.run.stage is Stage.FORMING
    assert b.live_workers
    story.runs_on(a, b, within_s=5)


def test_a_late_copy_of_a_lost_agents_join_does_not_bring_it_back():
    story, a, b = running("1:2", 2)
    agent_id = b.agent_id
    story.kill(b)
    story.runs_on(a, within_s=2)
    story.copy_of_first_join_arrives(b, agent_id)
    story.passes(60)
    assert story.round == 2


def test_a_late_copy_of_an_old_success_does_not_count_in_a_later_round():
    story, a, b = running("2", 2)
    story.finish(a)
    story.passes(1)
    story.fail(b)
    story.restarts_on(a, b)
    copy = encode(ReportRequest(run_id="run", agent_id=a.agent_id, secret=a.joined.secret, round=1))
    story.server.receive(ReportRequest, copy, Connection(a.host), lambda *_: None)
    story.finish(b)
    story.passes(60)
    assert story.run.stage is Stage.RUNNING
    story.finish(a)
    story.ends(Stage.SUCCEEDED)


def test_a_join_repeated_over_a_new_connection_is_a_sign_of_life():
    story = Story("2", 1, disconnect_grace_s=0.2)
    (a,) = story.agents
    for _ in range(3):
        story.passes(SOON_S)
        assert a.transport.is_asking, "the join waits for its answer"
        story.disconnect(a)
    story.passes(60)
    assert list(story.run.agents) == [a.agent_id]


def test_an_agent_that_never_got_its_round_joins_the_next():
    story = Story("2", 2)
    a, b = story.agents
    story.until(lambda: story.run and story.run.stage is Stage.RUNNING, 1.0, "the round runs")
    story.network.break_(b.transport.connection)  # with the answer that reports it
    story.until(lambda: a.workers is not None, SOON_S, "one of them has heard")
    story.fail(a)
    story.runs_on(a, b, within_s=1.0)
    assert b.workers.round == 2


def test_an_agent_whose_workers_outlive_the_run_waits_for_them():
    """An agent without messages for the server: its timer must not spin."""
    story, a, b = running("2", 2, join_timeout_s=5.0)
    b.host.stop_takes_s = (20.0, 20.0)
    story.kill(a)
    story.until(lambda: b.machine.state is State.ENDING, 10.0, "the run gives up")
    steps = story.clock.steps
    story.passes(10)
    assert b.live_workers
    assert story.clock.steps - steps < 10
    story.ends(Stage.FAILED, within_s=10)


# The simulation itself.


def test_a_simulation_that_never_recovers_reports_its_state():
    story = Story("2", 1)
    with pytest.raises(Violation, match=r"not within 5 s: two work\n(.*\n)*.*n1-.*: joining, no workers"):
        story.until(lambda: len(story.training) == 2, 5.0, "two work")
