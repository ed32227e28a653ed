"""How a node is found lost, and how soon."""

from collections import OrderedDict

import pytest
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import Start, Stop

from rdzv_server.core.events import AgentDisconnected, WorkersFailed
from rdzv_server.core.liveness import Leases
from tests.support.scenario import NEVER, Scenario, a_failure, durable, running

# By silence.


def test_a_node_is_lost_when_its_lease_runs_out():
    run = running("1:2", "a", "b", lease_s=10)
    run.passes(5)
    run.hears("a")
    run.passes(4.9)
    assert run.told(Start) == {"a", "b"}
    run.passes(0.1)
    assert run.told(Stop) == {"a"}
    assert run.reason("a") == "node b lost: not heard for 10 s"


def test_a_node_that_is_heard_in_time_is_never_lost():
    run = running("2", "a", "b", lease_s=10)
    for _ in range(10):
        run.passes(9)
        run.hears("a", "b")
    assert run.told(Start) == {"a", "b"}


def test_a_standby_without_a_lease_gets_no_seat():
    run = running("1", "a", lease_s=10)
    run.join("spare")
    run.passes(9)
    run.hears("a")
    run.passes(1)
    assert set(run.run.agents) == {"a"}
    assert run.told(Start) == {"a"}


# By a closed connection.


def test_a_node_is_lost_when_it_does_not_come_back_within_the_grace():
    run = running("1:2", "a", "b", disconnect_grace_s=1)
    run.disconnects("b")
    run.passes(0.9)
    assert run.told(Start) == {"a", "b"}
    run.passes(0.1)
    assert run.reason("a") == "node b lost: its connection closed and it was not back within 1 s"


def test_a_node_that_comes_back_in_time_is_not_lost():
    run = running("2", "a", "b", disconnect_grace_s=1)
    run.disconnects("b")
    run.passes(0.9)
    run.hears("b")
    run.passes(100)
    assert run.told(Start) == {"a", "b"}


def test_the_grace_counts_from_the_first_close():
    run = running("1:2", "a", "b", disconnect_grace_s=1)
    run.disconnects("b")
    run.passes(0.6)
    run.disconnects("b")
    run.passes(0.4)
    assert run.told(Stop) == {"a"}


def test_a_disconnected_node_can_still_run_out_of_its_lease():
    run = running("1:2", "a", "b", lease_s=10, disconnect_grace_s=60)
    run.passes(9)
    run.hears("a")
    run.disconnects("b")
    run.passes(1)
    assert run.reason("a") == "node b lost: not heard for 10 s"


def test_a_closed_connection_of_a_stranger_means_nothing():
    run = running("1", "a")
    before = durable(run.run)
    run.disconnects("stranger")
    run.hears("stranger")
    run.passes(100)
    assert durable(run.run) == before


# By what others report.


CORROBORATED = "node b lost: its connection closed and other nodes' workers failed"


def test_a_failure_elsewhere_corroborates_an_earlier_disconnect():
    run = running("1:3", "a", "b", "c", disconnect_grace_s=60)
    run.disconnects("b")
    run.fails("a")
    assert run.reason("c") == CORROBORATED
    run.join("a", "c")
    assert run.participants() == ["a", "c"]
    assert run.ledger() == [("node_lost", False)]


def test_a_disconnect_after_a_failure_elsewhere_is_a_loss_at_once():
    run = running("1:3", "a", "b", "c", max_restarts=1, disconnect_grace_s=60)
    run.fails("a")
    run.disconnects("b")
    assert CORROBORATED in run.announced()
    run.join("a", "c")
    assert run.ledger() == [("node_lost", False)]


def test_a_lost_node_does_not_spend_the_last_restart():
    run = running("1:2", "a", "b", max_restarts=0)
    run.disconnects("b")
    run.fails("a")
    run.join("a")
    assert run.participants() == ["a"]


def test_a_nodes_own_failure_does_not_corroborate_its_own_loss():
    run = running("1:2", "a", "b", max_restarts=1, disconnect_grace_s=60)
    run.fails("b")
    run.disconnects("b")
    assert "b" in run.run.agents
    run.hears("b")
    run.join("a", "b")
    assert run.ledger() == [("worker_failure", True)]


def test_a_node_that_has_rejoined_is_not_lost_by_corroboration():
    run = running("3", "a", "b", "c", max_restarts=1, disconnect_grace_s=60)
    run.fails("a")
    run.join("b")
    run.disconnects("b")
    assert "b" in run.run.agents


def test_a_standby_is_not_lost_by_corroboration():
    run = running("2", "a", "b", max_restarts=1, disconnect_grace_s=60)
    run.join("spare")
    run.disconnects("spare")
    run.fails("a")
    assert "spare" in run.run.agents


class Counting(OrderedDict):
    """Counts the entries that are looked through."""

    looked_at = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def test_a_mass_disconnect_while_one_still_stops_looks_at_each_a_few_times():
    nodes = 400
    names = [f"n{number}" for number in range(nodes)]
    run = running(str(nodes), *names, max_restarts=1, disconnect_grace_s=60)
    run.fails(names[0])
    run.join(*names[:-1])
    absent = run.run.leases.absent_since = Counting()
    for name in names:
        run.machine.handle(AgentDisconnected(name), run.now)
    assert names[-1] not in run.run.agents, "others failed: it is lost at once"
    assert absent.looked_at <= 3 * nodes


def test_failures_of_many_while_many_are_absent_look_at_each_a_few_times():
    nodes = 200
    names = [f"n{number}" for number in range(nodes)]
    run = running(str(nodes), *names, max_restarts=1, disconnect_grace_s=60)
    absent = run.run.leases.absent_since = Counting()
    for name in names[1:100]:
        run.machine.handle(AgentDisconnected(name), run.now)
    for name in (names[0], *names[100:]):
        run.machine.handle(WorkersFailed(name, 1, a_failure(name)), run.now)
    assert set(run.run.agents) == {names[0], *names[100:]}
    assert absent.looked_at <= 3 * nodes


# What follows.


def test_a_lost_agent_that_comes_back_is_fenced():
    run = running("1:2", "a", "b")
    run.is_lost("b")
    run.hears("b")
    with pytest.raises(AgentFenced, match="agent b is no longer part of run run"):
        run.directive("b")


def test_a_round_that_is_still_forming_forgets_a_lost_node():
    run = Scenario("2")
    run.join("a")
    run.is_lost("a")
    run.join("b")
    assert run.reason("b").startswith("waiting for 1 more node: 1 of 2 joined (b)")


def test_the_last_stopping_node_that_is_lost_lets_the_others_start():
    run = running("1:3", "a", "b", "c")
    run.leaves("a")
    run.join("b")
    run.is_lost("c")
    assert run.participants() == ["b"]


# The leases themselves.


def test_the_next_deadline_is_the_soonest_of_lease_and_grace():
    leases = Leases(lease_s=10, grace_s=1)
    assert leases.next_deadline() is None
    leases.renew("a", 0.0)
    leases.renew("b", 3.0)
    assert leases.next_deadline() == 10.0
    leases.disconnect("b", 4.0)
    assert leases.next_deadline() == 5.0
    leases.renew("b", 4.5)
    assert leases.next_deadline() == 10.0
    leases.renew("a", 6.0)
    assert leases.next_deadline() == 14.5


def test_a_dropped_agent_has_no_deadline():
    leases = Leases(lease_s=10, grace_s=1)
    leases.renew("a", 0.0)
    leases.disconnect("a", 0.0)
    leases.drop("a")
    assert leases.next_deadline() is None
    assert leases.expired(NEVER) is None
