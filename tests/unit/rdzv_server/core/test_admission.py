"""Who may join, who gets a seat, and who takes whose place."""

import pytest
from rdzv_protocol.errors import AgentFenced, MalformedMessage, NodeRankTaken, ServerUnavailable, SettingsConflict
from rdzv_protocol.messages import Finish, Start, Stop, Wait
from rdzv_protocol.settings import RequestedSettings, RunSettings

from rdzv_server.core import admission
from rdzv_server.core.admission import JUST_S, MOST_NAMESAKES
from rdzv_server.core.effects import Announce
from rdzv_server.core.run import AgentState, Stage
from tests.support.scenario import Scenario, a_join, durable, running, settings_of, snapshot


def refused(run, error, *names, **changes):
    """The refusal's sentence; nothing has changed."""
    before = snapshot(run.run)
    with pytest.raises(error) as refusal:
        run.join(*names, **changes)
    assert snapshot(run.run) == before
    return str(refusal.value)


# Settings.


def test_the_first_agents_settings_become_the_runs():
    assert admission.settings_of(a_join("a", settings=settings_of("2:3", max_restarts=4))) == RunSettings(
        min_nodes=2, max_nodes=3, max_restarts=4
    )


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(MalformedMessage, match="min_nodes 3 is above max_nodes 2: ask for --nnodes MIN:MAX"):
        admission.settings_of(a_join("a", settings=settings_of("3:2")))


def test_other_settings_are_refused_with_both_values():
    run = Scenario("2:3")
    sentence = refused(run, SettingsConflict, "a", settings=settings_of("2:4", max_restarts=5))
    assert "max_nodes is 3 here, not 4; max_restarts is 0 here, not 5" in sentence
    assert "min_nodes" not in sentence


def test_an_agent_without_settings_takes_the_runs():
    run = Scenario("2")
    run.join("a", settings=settings_of("2"))
    run.join("b", settings=RequestedSettings())
    assert run.participants() == ["a", "b"]


def test_a_run_holds_no_more_agents_than_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(admission, "MOST_AGENTS", 2)
    run = Scenario("1:2")
    run.join("a", "b")
    assert refused(run, ServerUnavailable, "c") == "run run holds 2 agents, as many as a run may"


# Commands.


def announced(run):
    return [effect.reason for effect in run.effects if isinstance(effect, Announce)]


def test_a_node_that_runs_another_command_is_named_once_and_joins():
    run = Scenario("3")
    run.join("a", command="1")
    run.join("b", command="2")
    sentence = "node b runs another command than node a: set --run-id if these are two runs"
    assert announced(run) == [sentence] == [admission.differs(run.run, a_join("b", command="2"))]
    run.join("c")  # says nothing of its command
    assert run.participants() == ["a", "b", "c"]
    run.restarts()
    assert admission.differs(run.run, a_join("b", command="2")) == sentence
    assert not any(admission.differs(run.run, run.run.agents[name].join) for name in "ac")


def test_commands_are_compared_with_the_next_one_after_the_first_is_gone():
    run = Scenario("3")
    run.join("a", command="1")
    run.leaves("a")
    run.join("b", command="2")
    assert run.run.command_of == "b" and "another command" not in "".join(announced(run))
    assert admission.differs(run.run, a_join("c", command="1")).startswith("node c runs another command than node b")


# Node ranks.


def test_a_node_rank_that_a_live_node_holds_is_refused():
    run = Scenario("2")
    run.join("a", node_rank=1)
    run.join("b", node_rank=1)
    run.hears("a")
    assert refused(run, NodeRankTaken, "b", node_rank=1) == (
        "--node-rank 1 of run run is taken by node a: give every node its own, or leave it out"
    )


def test_a_node_rank_is_free_again_once_its_node_is_gone():
    run = Scenario("2")
    run.join("a", node_rank=1)
    run.leaves("a")
    run.join("b", node_rank=1)
    assert run.told(Wait) == {"b"}


def test_a_new_node_takes_the_node_rank_of_one_that_has_disconnected():
    run = Scenario("2", disconnect_grace_s=60)
    run.join("a", node_rank=0)
    run.disconnects("a")
    run.join("b", node_rank=0)
    assert set(run.run.agents) == {"b"}
    with pytest.raises(AgentFenced):
        run.directive("a")


def test_a_node_rank_is_refused_when_its_holder_has_shown_that_it_lives():
    run = Scenario("2")
    run.join("a", node_rank=1)
    run.join("b", node_rank=1)
    assert run.woken() == ["a"] and set(run.run.agents) == {"a"}, "it is asked first"
    run.hears("a")
    refused(run, NodeRankTaken, "b", node_rank=1)
    run.passes(JUST_S)
    refused(run, NodeRankTaken, "b", node_rank=1)  # it is asked once in a lease


def test_a_node_rank_is_free_when_its_holder_gives_no_sign_of_life():
    run = Scenario("2", lease_s=4)
    run.join("a", node_rank=1)
    run.join("b", node_rank=1)
    run.passes(1.9)
    assert set(run.run.agents) == {"a"}
    run.passes(0.1)
    run.join("b", node_rank=1)
    assert set(run.run.agents) == {"b"}


def test_who_has_left_the_run_claims_nothing():
    run = running("1:2", "a", "b")
    run.leaves("b")
    refused(run, AgentFenced, "b", node="a")
    assert not run.run.leases.probed_until


# More than max.


def test_an_agent_beyond_max_stands_by():
    run = running("2", "a", "b")
    run.join("c")
    assert run.told(Wait) == {"c"}
    assert run.told(Start) == {"a", "b"}


def test_a_standby_takes_a_lost_nodes_place_without_a_wait():
    run = running("2", "a", "b")
    run.join("spare")
    run.is_lost("a")
    run.join("b")
    assert run.participants() == ["spare", "b"]


def test_participants_get_a_seat_before_standbys():
    run = running("2", "a", "b", max_restarts=1)
    run.join("spare")
    run.fails("a")
    run.join("b", "a")
    assert run.participants() == ["a", "b"]
    assert run.reason("spare") == "standing by: round 2 has its 2 nodes"


def test_the_first_standby_is_the_first_to_get_a_seat():
    run = running("2", "a", "b")
    run.join("first", "second")
    run.is_lost("b")
    run.join("a")
    assert run.participants() == ["a", "first"]


def test_a_standby_exits_0_when_the_run_succeeds():
    run = running("1", "a")
    run.join("spare")
    run.succeeds("a")
    assert run.directive("spare") == Finish(succeeded=True, reason="all workers of 1 node exited 0")
    assert "spare" in run.woken()


# A node's agent starts again.


def test_a_restarted_agent_takes_the_place_of_one_whose_end_nobody_saw():
    run = running("2", "a", "b", lease_s=6)
    run.join("a-again", node="a")
    assert run.told(Start) == {"a", "b"}, "it may live, and then they are two nodes"
    run.passes(3)
    assert run.reason("b") == "node a lost: another agent of its node joined, and it gave no sign of life"
    run.join("b")
    assert run.participants() == ["a-again", "b"]
    assert run.ledger() == [("node_lost", False)]


def test_no_round_begins_with_one_that_is_probed():
    """It died while it waited, unseen; its restart and the last node to rejoin are there before it is lost."""
    run = running("2", "a", "b", max_restarts=1, lease_s=6)
    run.fails("b")
    run.join("a")
    run.passes(JUST_S)
    run.join("a-again", node="a")
    run.join("b")
    assert run.reason("b") == "3 (a, a, b) joined of 2 to 2; waiting for a sign of life of a"
    run.passes(3)
    assert run.participants() == ["a-again", "b"]
    assert run.ledger() == [("node_lost", False)]


def test_a_round_begins_when_the_probe_is_answered():
    run = Scenario("2", lease_s=6)
    run.join("first", node="a")
    run.passes(JUST_S)
    run.join("second", node="a")
    assert run.told(Wait) == {"first", "second"}
    run.hears("first")
    assert run.participants() == ["first", "second"]


def test_agents_of_one_name_that_join_together_form_at_once():
    """As those of one machine do that have no node id of their own."""
    run = Scenario("8")
    run.join(*(f"agent {number}" for number in range(8)), node="machine")
    assert len(run.participants()) == 8


def test_a_name_that_many_have_probes_a_few():
    many = 10 * MOST_NAMESAKES
    run = Scenario(f"{many}")
    for number in range(many - 1):
        run.join(f"agent {number}", node="localhost")
    run.passes(JUST_S)
    run.join("last", node="localhost")
    assert len(run.woken()) == MOST_NAMESAKES


def test_an_agent_that_stops_its_workers_is_given_the_time_until_it_speaks_again():
    run = running("2", "a", "b", max_restarts=1, lease_s=6)
    run.fails("b")
    run.join("a-again", node="a")
    run.passes(4)
    assert run.told(Stop) == {"a", "b"}
    run.passes(1)
    assert run.told(Stop) == {"b"}


# Who has no connection gets no seat.


def test_a_round_does_not_begin_with_one_whose_connection_is_closed():
    run = Scenario("2", disconnect_grace_s=1)
    run.join("a")
    run.disconnects("a")
    run.join("b")
    assert run.reason("b") == "2 (a, b) joined of 2 to 2; waiting for a sign of life of a"
    run.passes(0.9)
    run.hears("a")
    assert run.participants() == ["a", "b"]


def test_one_whose_connection_stays_closed_misses_the_round():
    run = Scenario("2", disconnect_grace_s=1)
    run.join("a")
    run.disconnects("a")
    run.join("b", "c")
    run.passes(1)
    assert run.participants() == ["b", "c"]


def test_a_standby_without_a_connection_holds_no_round_up():
    run = running("2", "a", "b", max_restarts=1, disconnect_grace_s=60)
    run.join("spare")
    run.disconnects("spare")
    run.fails("a")
    run.join("a", "b")
    assert run.participants() == ["a", "b"]


def test_no_last_call_ends_while_a_connection_is_closed():
    run = Scenario("1:3", last_call_timeout_s=5, disconnect_grace_s=60)
    run.join("a", "b")
    run.disconnects("b")
    run.passes(59)
    assert run.told(Wait) == {"a", "b"}
    run.passes(1)
    assert run.participants() == ["a"]


def test_after_a_restart_of_the_server_nobody_gets_a_seat_before_it_is_heard():
    run = Scenario("2", lease_s=10)
    run.join("a")
    run.restarts()
    run.join("b")
    assert run.told(Wait) == {"a", "b"}
    run.hears("a")
    assert run.participants() == ["a", "b"]


def test_a_restarted_agent_takes_its_dead_predecessors_place_at_once():
    run = running("2", "a", "b", disconnect_grace_s=60)
    run.disconnects("a")
    run.join("a-again", node="a")
    assert run.told(Stop) == {"b"}
    assert run.reason("b") == "node a lost: a new agent of the same node joined"
    run.join("b")
    assert run.participants() == ["a-again", "b"]
    assert run.ledger() == [("node_lost", False)]


def test_two_live_agents_of_one_node_are_two_nodes():
    run = Scenario("2")
    run.join("first", "second", node="a")
    assert run.participants() == ["first", "second"]


def test_a_rejoining_agent_does_not_take_the_place_of_its_disconnected_neighbour():
    run = Scenario("3", max_restarts=1, disconnect_grace_s=60)
    run.join("first", "second", node="a")
    run.join("b")
    run.fails("b")
    run.join("second")
    run.disconnects("second")
    run.join("first")
    assert "second" in run.run.agents


# Fencing.


def test_a_departed_agent_is_fenced():
    run = running("2", "a", "b")
    run.leaves("a")
    assert refused(run, AgentFenced, "a") == "agent a of node a is no longer part of run run"


def test_an_agent_that_claims_a_past_in_this_run_is_fenced():
    run = running("2", "a", "b")
    refused(run, AgentFenced, "stranger", after_round=1)


@pytest.mark.parametrize("changes", [{"node": "elsewhere"}, {"node_rank": 1}])
def test_an_agent_keeps_its_node_and_its_node_rank(changes):
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    refused(run, MalformedMessage, "a", **changes)


def test_a_repeated_join_changes_nothing():
    run = Scenario("2:3")
    run.join("a", "b")
    before = durable(run.run)
    run.join("a", after_round=0)
    assert durable(run.run) == before
    assert run.records[-1].fact.join.agent_id == "b", "and is not recorded"


def test_a_join_that_was_delayed_into_the_running_round_changes_nothing():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.join("a", "b")
    before = durable(run.run)
    run.join("a", after_round=1)
    run.join("b", after_round=0)
    assert durable(run.run) == before
    assert run.told(Start) == {"a", "b"}


def test_a_first_join_that_arrives_again_does_not_count_as_the_next_one():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.join("a", after_round=0)
    assert run.told(Stop) == {"a", "b"}


def test_a_repeated_join_is_a_sign_of_life():
    run = Scenario("2", lease_s=10)
    run.join("a")
    run.disconnects("a")
    run.join("a", after_round=0)
    run.passes(9)
    assert set(run.run.agents) == {"a"}


def test_a_joining_agent_waits_with_its_own_local_world_size_of_this_round():
    run = Scenario("1", max_restarts=1)
    run.join("a", local_world_size=8)
    run.fails("a")
    run.join("a", local_world_size=4)
    assert run.assignment("a").world_size == 4


def test_nobody_gets_a_seat_in_a_run_that_has_ended():
    run = running("2", "a", "b", max_restarts=1)
    run.join("spare")
    run.fails("a")
    run.leaves("spare")
    run.passes(run.settings.join_timeout_s)
    assert run.stage is Stage.FAILED
    run.join("a")
    assert run.told(Finish) == {"a", "b"}, "a delayed join does not hide the end from its agent"
    assert run.run.agents["a"].state is AgentState.STOPPING
