"""Loss of a node: how it is detected, and how soon."""

from collections import OrderedDict

import pytest
from rdzv_protocol.errors import AgentFenced

from rdzv_server.core.events import AgentDisconnected, NodeLost, TimePassed, WorkersFailed
from rdzv_server.core.kernel.liveness import HoldUp, Leases
from rdzv_server.core.kernel.run import AgentState
from rdzv_server.words import completion
from rdzv_server.words import losses as words
from tests.support.message_search import pattern
from tests.support.scenario import NEVER, a_failure, running
from tests.support.stories import check, play, stories, until

LOST_10 = words.not_heard(10)
TOGETHER_B = words.lost("b", words.excused(LOST_10, words.OTHERS_VANISHED))
CORROBORATED = words.lost("b", words.CORROBORATED)
NOT_BACK = words.lost("b", words.not_back(1))


@stories({
    # by silence
    "its lease runs out": (
        "1:2 lease_s=10", "join a b; 6s; renew a; 3.9s", {"start": "a b"},
        "0.1s", {"stop": "a", "reason a": words.lost("b", LOST_10)},
    ),
    "a node that is heard in time is never lost": (
        "2 lease_s=10", "join a b; " + "; ".join(["9s; renew a b"] * 10), {"start": "a b"},
    ),
    "a standby without a lease gets no seat": (
        "1 lease_s=10", "join a spare; 6s; renew a; 4s", {"agents": "a", "start": "a"},
    ),
    # by a closed connection
    "it does not come back within the grace": (
        "1:2 disconnect_grace_s=1", "join a b; disconnect b; 0.9s", {"start": "a b"},
        "0.1s", {"reason a": NOT_BACK},
    ),
    "a node that comes back in time is not lost": (
        "2 disconnect_grace_s=1", "join a b; disconnect b; 0.9s; renew b; 100s", {"start": "a b"},
    ),
    "the grace counts from the first close": (
        "1:2 disconnect_grace_s=1", "join a b; disconnect b; 0.6s; disconnect b; 0.4s", {"stop": "a"},
    ),
    "a disconnected node can still run out of its lease": (
        "1:2 lease_s=10 disconnect_grace_s=60", "join a b; 6s; renew a; disconnect b; 4s",
        {"reason a": words.lost("b", LOST_10)},
    ),
    "an unknown agent's connection means nothing": (
        "1", "join a; ignored disconnect unknown; ignored renew unknown; ignored 100s", {"start": "a"},
    ),
    # by others' reports
    "a failure elsewhere corroborates an earlier disconnect: the round does not wait for that node": (
        "1:3 max_restarts=1 disconnect_grace_s=60", "join a b c; disconnect b; fail a", {"stop": "a b c"},
        "join a c", {"ranks": "a c", "ledger": "node_lost", "why": CORROBORATED},
    ),
    "and a later one": (
        "1:3 max_restarts=1 disconnect_grace_s=60", "join a b c; fail a; disconnect b", {"agents": "a b c"},
        "join a c", {"ranks": "a c", "ledger": "node_lost", "why": CORROBORATED},
    ),
    "a node that comes back before the round begins was not lost, and the failure is charged": (
        "1:3 max_restarts=1 disconnect_grace_s=60", "join a b c; disconnect b; fail a; join a; renew b; join c",
        {"agents": "a b c"}, "join b", {"ranks": "a b c", "ledger": "worker_failure!"},
    ),
    "also one whose connection closed after the failure": (
        "1:2 max_restarts=1 disconnect_grace_s=60", "join a b; fail a; disconnect b; renew b; join a b",
        {"ranks": "a b", "ledger": "worker_failure!"},
    ),
    "a waiting node that is missed, too, holds the verdict up": (
        "1:3 max_restarts=1 disconnect_grace_s=60",
        "join a b c; disconnect b; 1s; fail a; join c; disconnect c; join a", {"agents": "a b c"},
        "renew c", {"ranks": "a c", "ledger": "node_lost", "why": CORROBORATED},
    ),
    "a lost node does not spend the last restart": (
        "1:2 max_restarts=0", "join a b; disconnect b; fail a", {"stage": "running", "start": "a b"},
        "1s", {"reason a": NOT_BACK},
        "join a", {"ranks": "a", "ledger": "node_lost"},
    ),
    "without restarts left the run fails once the node that was missed is back": (
        "2 max_restarts=0", "join a b; disconnect b; 0.5s; fail a; 0.4s", {"stage": "running"},
        "renew b", {"stage": "failed", "blamed": "a"},
    ),
    "a fatal failure ends the run even if nodes are silent": (
        "2 max_restarts=5 fatal_exit_codes=(42,)", "join a b; disconnect b; fail a exit_code=42", {"stage": "failed"},
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
    # several at once: the path is suspect
    "of two nodes that vanish together each has its lease": (
        "1:3 lease_s=10", "join a b c; disconnect b; 0.9s; renew c; disconnect c; 5.1s; renew a; 3.9s",
        {"start": "a b c"}, "0.1s", {"reason a": TOGETHER_B, "agents": "a c", "faults": ""},
        "join a; renew c; join c", {"ranks": "a c"},
    ),
    "they are not lost if they are heard before": (
        "3 lease_s=10", "join a b c; disconnect b; disconnect c; 3s; renew a b c; 5s; renew a b c; 5s",
        {"start": "a b c", "ledger": ""},
    ),
    "one that is back at once makes the path of the other suspect all the same": (
        "3 lease_s=10", "join a b c; disconnect b; disconnect c; renew c; 3s; renew b", {"start": "a b c"},
    ),
    "nodes that vanish a second apart are lost one by one": (
        "1:3", "join a b c; disconnect b; 1s", {"faults": "b:lost"}, "disconnect c; 1s", {"faults": "b:lost c:lost"},
    ),
    "another agent of this node makes its path no more suspect": (
        "1:3", "join a b; join b2 node=b; disconnect b; disconnect b2; 1s", {"agents": "a", "faults": "b:lost b:lost"},
    ),
    "an unrelated failure does not say that nodes that vanished together are gone": (
        "1:3 max_restarts=1 lease_s=10", "join a b c; disconnect b; disconnect c; fail a; join a; 5s", {"wait": "a"},
        "renew b c; join b c", {"ranks": "a b c", "ledger": "worker_failure!"},
    ),
    "but their loss explains it once it is certain": (
        "1:3 max_restarts=1 lease_s=10", "join a b c; disconnect b; disconnect c; fail a; join a; 6s; renew a; 4s",
        {"ranks": "a", "ledger": "node_lost", "faults": ""},
    ),
    "a failure whose worker has lost another says that some of them are gone: those that are not back after a grace": (
        "1:3 max_restarts=1 lease_s=10", "join a b c; disconnect b; disconnect c; fail a consequence=True; join a",
        {"wait": "a"}, "0.9s", {"wait": "a"}, "0.1s", {"ranks": "a", "ledger": "node_lost", "faults": ""},
    ),
    "or soon after another one is back": (
        "1:3 max_restarts=1 lease_s=10", "join a b c; disconnect b; disconnect c; fail a consequence=True; join a",
        {"wait": "a"}, "0.5s; renew b; join b; 2.9s", {"wait": "a b"},
        "0.1s", {"ranks": "a b", "ledger": "node_lost", "faults": ""},
    ),
    "without restarts left a failure waits for them as well": (
        "1:3 max_restarts=0 lease_s=10", "join a b c; disconnect b; disconnect c; fail a; 6s; renew a; 3.9s",
        {"stage": "running"}, "0.1s; join a", {"ranks": "a", "ledger": "node_lost"},
    ),
    "nodes that fall silent together are not blamed": (
        "1:3 lease_s=10", "join a b c; 5s; renew a b c; 5s; renew c; 5s; renew c", {"agents": "c", "faults": ""},
    ),
    "the lease of one of them decides also if its connection closes later": (
        "1:3 lease_s=10", "join a b c; 3s; renew b; 5s; renew c; 2s; disconnect b; 2.9s", {"agents": "b c"},
        "0.1s", {"agents": "c", "faults": ""},
    ),
    # all agents of a run are silent: see also test_silent_runs
    "a grace decides nothing while no other agent is heard": (
        "1 lease_s=10", "join a; disconnect a; 9s; renew a; 4s; renew a", {"start": "a", "ledger": ""},
    ),
    "it does as soon as another one is": (
        "1 lease_s=10", "join a; disconnect a; 5s; join b", {"ranks": "b", "ledger": "node_lost"},
    ),
    "a round that forms keeps the charge of a failure whose only agent vanishes for a moment": (
        "1 lease_s=10 max_restarts=3", "join a; fail a; disconnect a; 8s; renew a; join a",
        {"ledger": "worker_failure!"},
    ),
    "and loses it, without blame, when its lease ends": (
        "2 lease_s=10", "join a; disconnect a; 9.9s", {"agents": "a"}, "0.1s", {"agents": "", "faults": ""},
    ),
    "a lease that ends while no other agent is heard waits for one": (
        "1:2 lease_s=10", "join a b; 5s; renew a; 5.1s", {"start": "a b"}, "0.5s; renew a", {"agents": "a"},
    ),
    "one that ends in a time without any sign is no loss": (
        "2 lease_s=10", "join a b; 4.9s; renew b; 7.2s; renew b; 0.1s; renew a; 5s; renew a b; 5s",
        {"start": "a b", "kinds node_lost": ""},
    ),
    # consequences
    "a round that is still forming forgets a lost node": (
        "2", "join a; lose a; join b",
        {"reason b": until(completion.too_few(1, 1, 2, "b"), "gives_up", 600)},
    ),
    "the last stopping node that is lost lets the others start": (
        "1:3", "join a b c; leave a; join b; lose c", {"ranks": "b"},
    ),
})  # fmt: skip
def test_a_node_is_lost(story):
    check(story)


def test_the_record_of_a_loss_says_whether_a_lease_had_ended(monkeypatch):
    monkeypatch.setattr(words, "not_heard", lambda lease_s: "in other words")
    run = running("1:4", "a", "b", "c", "d", lease_s=10)
    run.passes(6)
    run.renews("a")
    run.disconnects("b")
    run.passes(4)
    lost = {each.fact.agent_id: each.fact for each in run.records if isinstance(each.fact, NodeLost)}
    assert {agent_id: (fact.is_expired, fact.is_blameless) for agent_id, fact in lost.items()} == {
        "b": (False, False), "c": (True, True), "d": (True, True),
    }, "c and d have fallen silent together"  # fmt: skip


def test_a_lost_agent_that_returns_is_fenced():
    run = running("1:2", "a", "b")
    run.is_lost("b")
    run.renews("b")
    with pytest.raises(AgentFenced, match=pattern(words.gone, node_id="b", run_id="run", left=False)):
        run.directive("b")


class Counting(OrderedDict):
    """Counts the entries that are searched."""

    looked_at = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def test_a_mass_disconnect_while_others_still_stop_looks_at_each_a_few_times():
    nodes = 400
    names = [f"n{number}" for number in range(nodes)]
    run = running(f"1:{nodes}", *names, max_restarts=1, disconnect_grace_s=60)
    run.fails(names[0])
    run.join(names[0])
    absent = run.run.leases.absent_since = Counting()
    stopping = run.run.by_state[AgentState.STOPPING] = Counting(run.run.stopping)
    for name in names[1:]:
        run.machine.handle(AgentDisconnected(name), run.now)
    assert set(run.run.agents) == set(names), "their leases decide: the path is suspected"
    assert absent.looked_at + stopping.looked_at <= 5 * nodes


def test_failures_of_many_while_many_are_absent_look_at_each_a_few_times():
    nodes = 200
    names = [f"n{number}" for number in range(nodes)]
    run = running(f"1:{nodes}", *names, max_restarts=1, disconnect_grace_s=60)
    absent = run.run.leases.absent_since = Counting()
    for name in names[1:100]:
        run.machine.handle(AgentDisconnected(name), run.now)
    rest = (names[0], *names[100:])
    for name in rest:
        run.machine.handle(WorkersFailed(name, 1, a_failure(name)), run.now)
    run.join(*rest)
    assert set(run.run.agents) == set(names), "their leases decide: the path is suspected"
    assert absent.looked_at <= 5 * nodes


# The leases.


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


def test_a_close_without_a_witness_leaves_only_the_leases_deadline():
    """A timer for its grace would fire without need, also if another agent is heard meanwhile."""
    leases = leases_of(a=0.0, b=0.0)
    leases.restart(["a", "b"], 0.0)
    leases.disconnect("b", 1.0)
    leases.renew("a", 1.5)
    assert leases.next_deadline() == 10.0


def test_the_only_deadline_of_an_agent_that_fell_silent_with_others_is_its_lease():
    leases = leases_of(a=0.0, b=0.0)
    leases.disconnect("b", 1.0)
    assert leases.next_deadline() == 2.0
    leases.suspect("b")
    assert leases.next_deadline() == 10.0


def test_a_path_broken_for_less_than_a_lease_does_not_lose_a_node():
    """A proxy restarts. A poll that was parked until then is a sign of life: its agent had nothing else to send."""
    leases = Leases(lease_s=10, grace_s=1)
    leases.renew("a", 0.0)
    leases.renew("b", 4.0)
    for name in ("a", "b"):
        leases.disconnect(name, 4.9)
    for at in (5.9, 8.0, 11.0, 14.0):
        leases.renew("b", at)
        assert lost(leases, at) is None, "a tries again every few seconds"
    assert leases.next_deadline() == 14.9
    assert lost(leases, 14.9) == ("a", LOST_10)


def test_a_path_that_breaks_again_after_one_agent_returned_does_not_lose_a_node():
    """A proxy restarts twice. Only `a` is back in between, so its connection closes by itself."""
    leases = leases_of(a=0.0, b=0.0, c=0.0)
    for name in ("a", "b", "c"):
        leases.disconnect(name, 1.0)
    leases.renew("a", 3.0)
    leases.disconnect("a", 3.8)
    for name in ("b", "c"):
        leases.renew(name, 6.0)
    assert lost(leases, 6.0) is None, "a tries again every few seconds"
    leases.renew("b", 11.0)
    assert lost(leases, 13.7) is None
    assert lost(leases, 13.8) == ("a", "silent for 10 s")


def test_a_path_that_breaks_between_the_requests_of_all_others_does_not_lose_a_node():
    """A proxy restarts while only `a` waits for an answer. What the others had sent before is read a moment later."""
    leases = leases_of(a=0.0, b=0.0)
    leases.parked = 0
    leases.disconnect("a", 1.0)
    leases.renew("b", 1.1)
    assert lost(leases, 2.0) is None
    leases.renew("b", 3.0)
    assert lost(leases, 10.9) is None
    assert lost(leases, 11.0) == ("a", LOST_10)


@pytest.mark.parametrize(("parked", "heard_at"), [(1, 0.0), (0, 1.6)], ids=["waits for its answer", "is heard"])
def test_an_agent_is_lost_after_the_grace_if_another_one(parked, heard_at):
    leases = leases_of(a=0.0, b=heard_at)
    leases.parked = parked
    leases.disconnect("a", 1.0)
    assert lost(leases, 1.9) is None
    assert lost(leases, 2.0) == ("a", words.not_back(1))


def test_a_connection_that_closes_long_after_its_agent_was_to_poll_does_not_begin_a_lease():
    leases = Leases(lease_s=20, grace_s=1)
    for name in ("a", "b", "c"):
        leases.renew(name, 0.0)
    leases.renew("c", 10.0)
    for name in ("a", "b"):
        leases.disconnect(name, 13.0)  # detected by TCP keep-alive
    leases.renew("c", 20.0)
    assert lost(leases, 20.0) == ("a", words.not_heard(20))


# Trouble of the server.


def lost(leases: Leases, at: float) -> tuple[str, str] | None:
    """Return the agent that is lost at this time, and why."""
    leases.settle(at)
    loss = leases.expired(at)
    return (loss.agent_id, loss.cause) if loss else None


def leases_of(**renewed_at: float) -> Leases:
    leases = Leases(lease_s=10, grace_s=1)
    for name, at in renewed_at.items():
        leases.renew(name, at)
    return leases


def test_time_for_which_the_server_stood_still_does_not_count_for_deadlines():
    leases = leases_of(a=0.0, b=2.0, c=3.0)
    leases.disconnect("b", 4.0)
    leases.probe("c", 8.0)
    leases.resume(100.0, HoldUp(still_s=4.0))
    assert (leases.ends_at("a"), leases.probed_until["c"], leases.next_deadline()) == (14.0, 12.0, 9.0)
    leases.renew("d", 99.0)
    leases.resume(100.0, HoldUp(still_s=4.0))
    assert leases.ends_at("d") == 110.0, "never later than a fresh lease"


def test_agents_that_are_expected_back_are_given_the_time_for_which_the_server_stood_still():
    leases = leases_of(a=0.0, b=0.0, c=0.0)
    for agent_id in "bc":
        leases.disconnect(agent_id, 4.0)
    leases.renew("b", 5.0)
    assert leases.should_return_by("c") == 8.0
    leases.resume(9.0, HoldUp(still_s=2.0))
    assert leases.should_return_by("c") == 10.0


def test_after_a_long_silence_of_the_server_each_agent_has_a_fresh_lease_and_is_not_absent():
    leases = leases_of(a=0.0, b=2.0, c=3.0)
    leases.disconnect("b", 4.0)
    leases.probe("c", 5.0)
    leases.resume(100.0, HoldUp(silent_s=5.0))
    assert list(leases.uncertain) == ["b", "c"] and not leases.corroborates("b")
    assert lost(leases, 100.9) is None, "c has a grace to answer the probe"
    leases.renew("c", 100.9)
    assert (lost(leases, 109.9), leases.next_deadline()) == (None, 110.0)
    assert lost(leases, 110.0) == ("a", LOST_10)


def test_a_short_silence_of_the_server_changes_nothing():
    leases = leases_of(a=0.0)
    leases.resume(9.0, HoldUp(silent_s=4.9))
    assert lost(leases, 10.0) == ("a", LOST_10)


def test_repeated_outages_between_two_polls_give_one_fresh_lease():
    leases = leases_of(a=0.0, b=0.0)
    for at in range(8, 18):
        leases.renew("b", at)
        leases.resume(float(at), HoldUp(silent_s=100.0))
        assert list(leases.renewed_at.values()) == sorted(leases.renewed_at.values())
    assert lost(leases, 17.9) is None
    assert lost(leases, 18.0) == ("a", LOST_10)
    assert leases.ends_at("b") == 27.0


def test_a_close_after_a_long_silence_counts_only_once_its_agent_polls_again():
    leases = leases_of(a=0.0)
    leases.resume(100.0, HoldUp(silent_s=100.0))
    leases.disconnect("a", 100.0)
    assert list(leases.uncertain) == ["a"] and not leases.absent_since
    assert lost(leases, 109.9) is None
    leases.renew("a", 102.0)
    leases.renew("b", 102.0)
    leases.disconnect("a", 103.0)
    assert lost(leases, 104.0) == ("a", words.not_back(1))


def test_the_close_of_a_connection_is_not_a_sign_if_its_poll_was_given_up_during_an_outage():
    leases = leases_of(a=0.0, b=0.0)
    leases.resume(100.0, HoldUp(silent_s=11.0))
    leases.renew("b", 100.0)
    leases.renew("a", 100.0)  # by the poll that was not answered in time
    leases.disconnect("a", 100.0)
    assert not leases.corroborates("a")
    for at in range(101, 110):
        leases.renew("b", at)
        assert lost(leases, at) is None, "the agent tries again every few seconds"
    assert lost(leases, 110.0) == ("a", LOST_10)


def test_a_deadline_waits_until_earlier_requests_are_read():
    leases = leases_of(b=0.0, a=5.0)
    leases.unread_since = 9.9
    assert lost(leases, 10.9) is None
    leases.renew("a", 10.9)
    leases.unread_since = float("inf")
    assert lost(leases, 10.9) == ("b", LOST_10)


def test_nodes_that_vanished_together_are_not_presumed_lost_before_their_polls_are_read():
    run = check(
        (
            "1:3 lease_s=10 disconnect_grace_s=1 max_restarts=1",
            "join a b c; disconnect b; disconnect c; fail a consequence=True; join a",
        )
    )
    run.run.leases.unread_since = run.now
    run.now += 1.0
    run.handle(TimePassed())
    assert len(run.run.agents) == 3
    run.run.leases.unread_since = float("inf")
    play(run, "renew b; join b; 3s")
    assert [agent.node_id for agent in run.run.agents.values()] == ["a", "b"]


def test_an_agent_counts_as_disconnected_exactly_while_it_is_not_connected():
    leases = Leases(10.0, 1.0)

    def connected(*names: str) -> bool:
        is_connected = [name for name in "abc" if leases.is_connected(name)]
        return is_connected == list(names) and leases.disconnected == 3 - len(names)

    for name in "abc":
        leases.renew(name, 0.0)
    assert connected("a", "b", "c")
    leases.disconnect("a", 1.0)
    assert connected("b", "c")
    leases.restart("abc", 2.0)
    assert connected(), "after a restart of the server no agent has been heard"
    leases.renew("b", 3.0)
    assert connected("b")


def test_a_dropped_agent_has_no_deadline():
    leases = Leases(lease_s=10, grace_s=1)
    leases.renew("a", 0.0)
    leases.disconnect("a", 0.0)
    leases.drop("a")
    assert leases.next_deadline() is None
    assert lost(leases, NEVER) is None
