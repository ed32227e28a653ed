"""Loss of a node: how it is found, and how soon."""

from collections import OrderedDict

import pytest
from rdzv_protocol.errors import AgentFenced

from rdzv_server.core.events import AgentDisconnected, WorkersFailed
from rdzv_server.core.liveness import Leases
from tests.support.scenario import NEVER, a_failure, running
from tests.support.stories import check, stories

CORROBORATED = "node b lost: its connection closed and other nodes' workers failed"


@stories({
    # by silence
    "its lease runs out": (
        "1:2 lease_s=10", "join a b; 5s; renew a; 4.9s", {"start": "a b"},
        "0.1s", {"stop": "a", "reason a": "node b lost: not heard for 10 s"},
    ),
    "a node that is heard in time is never lost": (
        "2 lease_s=10", "join a b; " + "; ".join(["9s; renew a b"] * 10), {"start": "a b"},
    ),
    "a standby without a lease gets no seat": (
        "1 lease_s=10", "join a spare; 9s; renew a; 1s", {"agents": "a", "start": "a"},
    ),
    # by a closed connection
    "it does not come back within the grace": (
        "1:2 disconnect_grace_s=1", "join a b; disconnect b; 0.9s", {"start": "a b"},
        "0.1s", {"reason a": "node b lost: its connection closed and it was not back within 1 s"},
    ),
    "a node that comes back in time is not lost": (
        "2 disconnect_grace_s=1", "join a b; disconnect b; 0.9s; renew b; 100s", {"start": "a b"},
    ),
    "the grace counts from the first close": (
        "1:2 disconnect_grace_s=1", "join a b; disconnect b; 0.6s; disconnect b; 0.4s", {"stop": "a"},
    ),
    "a disconnected node can still run out of its lease": (
        "1:2 lease_s=10 disconnect_grace_s=60", "join a b; 9s; renew a; disconnect b; 1s",
        {"reason a": "node b lost: not heard for 10 s"},
    ),
    "an unknown agent's connection means nothing": (
        "1", "join a; ignored disconnect unknown; ignored renew unknown; ignored 100s", {"start": "a"},
    ),
    # by what others report
    "a failure elsewhere corroborates an earlier disconnect": (
        "1:3 disconnect_grace_s=60", "join a b c; disconnect b; fail a", {"reason c": CORROBORATED},
        "join a c", {"ranks": "a c", "ledger": "node_lost"},
    ),
    "a disconnect after a failure elsewhere is a loss at once": (
        "1:3 max_restarts=1 disconnect_grace_s=60", "join a b c; fail a; disconnect b", {"announced": CORROBORATED},
        "join a c", {"ledger": "node_lost"},
    ),
    "a lost node does not spend the last restart": (
        "1:2 max_restarts=0", "join a b; disconnect b; fail a; join a", {"ranks": "a"},
    ),
    "a node's own failure does not corroborate its own loss": (
        "1:2 max_restarts=1 disconnect_grace_s=60", "join a b; fail b; disconnect b", {"agents": "a b"},
        "renew b; join a b", {"ledger": "worker_failure!"},
    ),
    "a node that has rejoined is not lost by corroboration": (
        "3 max_restarts=1 disconnect_grace_s=60", "join a b c; fail a; join b; disconnect b", {"agents": "a b c"},
    ),
    "a standby is not lost by corroboration": (
        "2 max_restarts=1 disconnect_grace_s=60", "join a b spare; disconnect spare; fail a", {"agents": "a b spare"},
    ),
    # what follows
    "a round that is still forming forgets a lost node": (
        "2", "join a; lose a; join b",
        {"reason b": "waiting for 1 more node: 1 of 2 joined (b); gives up in 599 s"},
    ),
    "the last stopping node that is lost lets the others start": (
        "1:3", "join a b c; leave a; join b; lose c", {"ranks": "b"},
    ),
})  # fmt: skip
def test_a_node_is_lost(story):
    check(story)


def test_a_lost_agent_that_comes_back_is_fenced():
    run = running("1:2", "a", "b")
    run.is_lost("b")
    run.renews("b")
    with pytest.raises(AgentFenced, match="agent b is no longer part of run run"):
        run.directive("b")


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


def test_after_a_hang_of_the_server_every_lease_grace_and_probe_begins_anew():
    leases = Leases(lease_s=10, grace_s=1)
    for name, at in (("a", 0.0), ("b", 2.0), ("c", 3.0)):
        leases.renew(name, at)
    leases.disconnect("b", 4.0)
    leases.probe("c", 5.0)
    leases.resume(100.0)
    assert (leases.expired(100.9), leases.next_deadline(), leases.ends_at("a")) == (None, 101.0, 110.0)
    leases.renew("b", 100.9)
    leases.renew("c", 100.9)
    assert (leases.expired(109.9), leases.next_deadline()) == (None, 110.0)
    assert leases.expired(110.0) == ("a", "not heard for 10 s")


def test_a_dropped_agent_has_no_deadline():
    leases = Leases(lease_s=10, grace_s=1)
    leases.renew("a", 0.0)
    leases.disconnect("a", 0.0)
    leases.drop("a")
    assert leases.next_deadline() is None
    assert leases.expired(NEVER) is None
