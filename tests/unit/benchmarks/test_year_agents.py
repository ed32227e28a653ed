"""Agents in the same state are simulated as one. Witnesses check that each would have done the same."""

import pytest
from rdzv_protocol.messages import Assignment, JoinRequest, PollRequest, Reply, Start, Stop
from rdzv_protocol.settings import RequestedSettings

from benchmarks.year import agents as year_agents
from benchmarks.year.agents import Agent, Agents, Unlike
from node_agent.kernel.core import events
from node_agent.kernel.core.effects import StartWorkers
from node_agent.kernel.core.machine import State

STOP = Stop(round=1, reason="node n9 failed")


@pytest.fixture
def agents(monkeypatch) -> Agents:
    """Agents, every third of which is a witness."""
    monkeypatch.setattr(year_agents, "CHECK_EVERY", 3)
    return Agents()


def start(agents: Agents, number: int) -> Agent:
    join = JoinRequest(
        run_id="r", agent_id=f"a{number}", node_id=f"n{number}", after_round=0, addr=f"n{number}", port=1,
        local_world_size=1, settings=RequestedSettings(),
    )  # fmt: skip
    agent = agents.start(join, checks=False)
    assert [type(effect) for effect in agent.handle_alike("started", events.Started)] == [JoinRequest]
    return agent


def answer(directive: Start | Stop, revision: int = 1) -> events.Answered:
    return events.Answered(Reply(epoch="1", revision=revision, lease_s=10.0, directive=directive))


def assignment(rank: int) -> Assignment:
    return Assignment(
        round=1, group_rank=rank, group_world_size=9, first_rank=rank, local_world_size=1, world_size=9,
        first_role_rank=rank, role_world_size=9, master_addr="n0", master_port=1, restart_count=0, max_restarts=3,
    )  # fmt: skip


def start_workers(agents: Agents, those: list[Agent]) -> None:
    agents.pass_time(1.0)
    for rank, agent in enumerate(those):
        effects = agent.handle_alike("start", answer, Start(assignment=assignment(rank), reason=""), rank + 1)
        assert {type(effect) for effect in effects} == {StartWorkers, PollRequest}
        agent.revision = rank + 1


def test_agents_to_which_the_same_happens_stay_in_one_state_and_keep_their_names(agents):
    those = [start(agents, number) for number in range(9)]
    start_workers(agents, those)
    assert len({agent.state for agent in those}) == 1
    assert [agent.agent_id for agent in those] == [f"a{number}.1" for number in range(9)]
    joins = [agent.own_join(those[0].join) for agent in those]
    assert [(join.agent_id, join.node_id) for join in joins] == [(f"a{number}.1", f"n{number}") for number in range(9)]


def test_an_agent_that_diverges_does_not_affect_the_others_and_can_merge_again(agents):
    those = [start(agents, number) for number in range(9)]
    start_workers(agents, those)
    agents.pass_time(2.0)
    those[4].handle(answer(STOP, 10))
    assert [agent.machine.state for agent in those].count(State.STOPPING) == 1
    for agent in those[:4] + those[5:]:
        agent.handle_alike("stop", answer, STOP, 10)
    assert len({agent.state for agent in those}) == 1


def test_a_step_that_would_differ_for_another_agent_is_noticed(agents):
    """Events with the same name differ, so a witness does something else than the agents before it."""
    those = [start(agents, number) for number in range(9)]
    start_workers(agents, those)
    agents.pass_time(2.0)
    with pytest.raises(Unlike, match="where others would"):
        for round_, agent in enumerate(those, start=1):
            agent.handle_alike("stop", answer, Stop(round=round_, reason=""), 10)
