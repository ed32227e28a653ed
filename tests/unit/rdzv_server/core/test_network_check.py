"""The network test of a round's nodes: when it is made, what it costs, and that no run waits for it for ever."""

import pytest
from rdzv_protocol.messages import Drain, Start, Wait
from rdzv_protocol.queries import PairTest, PairTested, Refused

from rdzv_server.core.events import QueryAnswered
from rdzv_server.core.network_check import ANSWERED_WITHIN_S, LONGEST_S
from rdzv_server.core.run import Stage
from tests.support.scenario import Scenario, durable, replayed

KNOWS = {"queries": ("pair_test",), "secret": "s"}
FINE = PairTested(mb_per_s=900.0, latency_s=0.0001)
SLOW = PairTested(problem="0.3 MB/s, fewer than 10")


def joined(nodes: str, names: str, **settings) -> Scenario:
    run = Scenario(nodes, **settings)
    run.join(*names, **KNOWS)
    return run


def asked(run: Scenario, name: str) -> PairTest | None:
    return next((query for query in run.run.queries.of(name, run.now) if isinstance(query, PairTest)), None)


def answers(run: Scenario, bad: str = "", names: str = "abcdef") -> None:
    """All that are asked answer: tests with the bad ones fail."""
    for name in names:
        if query := asked(run, name):
            fails = name in bad or query.peer in bad
            run.handle(QueryAnswered(name, query.number, SLOW if fails else FINE))


def told(run: Scenario, kind: str) -> list[str]:
    return [event.reason for event in run.events if event.kind == kind]


def test_a_round_starts_when_its_nodes_have_passed():
    run = joined("4", "abcd")
    assert run.stage is Stage.FORMING and "the network between the nodes is tested" in run.reason("a")
    first, other = asked(run, "a"), asked(run, "c")
    assert first.listens and not other.listens and (first.peer, other.peer) == ("c", "a")
    assert (first.addr, first.port, first.nonce) == (other.addr, other.port, other.nonce)
    assert first.nonce != asked(run, "b").nonce
    run.passes(0.2)
    answers(run)
    assert run.told(Start) == set("abcd")
    text = (
        "network tested between 4 nodes, in pairs, in 0.2 s; slowest of those that passed: a and c (900 MB/s, 0.10 ms)"
    )
    assert told(run, "network_tested") == [text]
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def test_the_bad_node_leaves_and_a_spare_takes_its_place_after_a_test_of_its_own():
    run = joined("3:3", "abc")
    answers(run, "b")
    answers(run, "b")
    answers(run, "b")
    drain = run.directive("b")
    why = "node b is unfit: its network test failed with node a: 0.3 MB/s, fewer than 10; and with node c: 0.3"
    assert isinstance(drain, Drain) and drain.unfit and drain.reason.startswith(why)
    assert told(run, "node_unfit") == [drain.reason] and [each.fault for each in run.machine.blamed] == ["unfit"]
    assert run.stage is Stage.FORMING and run.told(Wait) == {"a", "c"}
    run.leaves("b")
    run.join("d", **KNOWS)
    assert asked(run, "d") and not (asked(run, "a") and asked(run, "c"))
    answers(run)
    assert run.told(Start) == set("acd")
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def test_of_two_nodes_it_cannot_be_told_and_the_run_goes_on_with_a_warning():
    run = joined("2", "ab")
    answers(run, "b")
    assert run.told(Start) == {"a", "b"} and not told(run, "node_unfit")
    (warning,) = told(run, "warning")
    assert warning.startswith("the network test failed between a, b (0.3 MB/s, fewer than 10), and it cannot be told")


def test_agents_that_never_answer_hold_the_run_up_for_a_bounded_time():
    run = joined("3", "abc")
    run.passes(LONGEST_S + ANSWERED_WITHIN_S)
    assert run.told(Start) == set("abc") and "did not answer within 10 s" in told(run, "warning")[0]


def test_newcomers_without_end_hold_the_run_up_for_a_bounded_time():
    run = joined("2:9", "ab", last_call_timeout_s=1.0)
    for number in range(8):
        run.passes(LONGEST_S / 5)
        if run.stage is Stage.RUNNING:
            break
        run.join(f"n{number}", **KNOWS)
    run.passes(ANSWERED_WITHIN_S)
    assert run.stage is Stage.RUNNING and run.now <= 60.0


def test_a_peer_that_dies_amid_the_test_speaks_against_nobody():
    run = joined("3", "abc", disconnect_grace_s=1.0)
    peer = asked(run, "a").peer
    query = asked(run, "a")
    run.is_lost(peer)
    run.handle(QueryAnswered("a", query.number, PairTested(problem="the connection broke")))
    left = set("abc") - {peer}
    answers(run)
    answers(run)
    assert run.stage is Stage.FORMING and run.told(Wait) == left and not told(run, "node_unfit")
    run.join("d", **KNOWS)
    answers(run)
    answers(run)
    assert run.told(Start) == left | {"d"}


def test_what_an_agent_cannot_test_is_no_failure():
    run = joined("2", "ab")
    for name in "ab":
        run.handle(QueryAnswered(name, asked(run, name).number, Refused(reason="no --check network")))
    assert run.told(Start) == {"a", "b"} and not told(run, "warning")


def test_nodes_are_tested_again_after_a_lost_node_and_not_after_one_that_left():
    run = joined("2:3", "abc", max_restarts=3)
    answers(run)
    answers(run)
    assert run.told(Start) == set("abc")
    run.leaves("c")
    run.join("a", "b", **KNOWS)
    assert run.told(Start) == {"a", "b"}, "both are known to be fit"
    run.fails("a")
    run.join("a", "b", **KNOWS)
    assert run.stage is Stage.FORMING and asked(run, "a")
    answers(run)
    assert run.told(Start) == {"a", "b"}


def test_a_round_whose_last_call_ends_is_tested_as_well():
    run = joined("2:4", "abc")
    assert not asked(run, "a")
    run.ends_last_call()
    assert run.stage is Stage.FORMING and asked(run, "a")
    answers(run)
    answers(run)
    assert run.told(Start) == set("abc")


def test_agents_that_do_not_ask_for_it_are_not_tested():
    run = Scenario("3")
    run.join("a", **KNOWS)
    run.join("b", "c")
    assert run.told(Start) == set("abc") and not told(run, "network_tested")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_server_that_is_started_again_amid_the_test_makes_it_anew(is_compacted: bool):
    run = joined("2", "ab")
    run.restarts_from_a_snapshot() if is_compacted else run.restarts()
    run.renews("a", "b")
    assert asked(run, "a")
    answers(run)
    assert run.told(Start) == {"a", "b"}
