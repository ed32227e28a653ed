"""The network test of a round's nodes: when it runs, what it costs, and that no run waits for it forever."""

from rdzv_protocol.messages import Drain, Start, Wait
from rdzv_protocol.node_conditions import condition
from rdzv_protocol.queries import PairTest, PairTested, Refused

from rdzv_server.core.events import QueryAnswered
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies.network_check import words
from rdzv_server.core.policies.network_check.network_policy import ANSWERED_WITHIN_S, LONGEST_S, broken_links
from rdzv_server.core.views import status_view, watch_view
from tests.support.message_search import has_message
from tests.support.scenario import Scenario
from tests.support.stories import check, stories

KNOWS = {"queries": ("pair_test",), "secret": "s"}
K = "queries=('pair_test',) secret=s"
SLOW = "0.3 MB/s, fewer than 10"
BAD_B = words.unfit("b", [words.failed_with(peer, SLOW) for peer in "ac"])


@stories({
    "a round starts when its nodes have passed": (
        "4", f"join a b c d {K}", {"tested": "a b c d", "wait": "a b c d", "reason a":
            f"4 (a, b, c, d) joined; {words.UNDER_TEST}"},
        "0.2s; test",
        {"start": "a b c d", "told network_tested": words.tested(4, 0.2, "a and c", 900.0, 0.1)},
    ),
    "the bad node leaves, and a spare takes its place after a test of its own": (
        "3:3", f"join a b c {K}; test bad=b times=3",
        {"drain": "b", "reason b": BAD_B, "told node_unfit": BAD_B,
         "faults": "b:unfit", "wait": "a c"},
        f"leave b; join d {K}", {"tested": "a d"}, "test", {"start": "a c d"},
    ),
    "with two nodes the test cannot name one, and the run continues with a warning": (
        "2", f"join a b {K}; test bad=b",
        {"start": "a b", "told node_unfit": "", "told warning": words.undecided("a, b", SLOW)},
    ),
    "nodes are tested again after a failure, and not after a node that left": (
        "2:3 max_restarts=3", f"join a b c {K}; test times=2", {"start": "a b c"},
        f"leave c; join a b {K}", {"start": "a b"}, f"fail a; join a b {K}", {"tested": "a b"},
        "test", {"start": "a b"},
    ),
    "a round whose last call ends is tested as well": (
        "2:4", f"join a b c {K}", {"tested": ""}, "form", {"tested": "a b", "stage": "forming"},
        "test times=2", {"start": "a b c"},
    ),
    "agents that do not ask for it are not tested": (
        "3", f"join a {K}; join b c", {"start": "a b c", "told network_tested": ""},
    ),
    "a server that is started again amid the test makes it again": (
        "2", f"join a b {K}; restart; renew a b", {"tested": "a b"}, "test", {"start": "a b"},
    ),
    "also from a snapshot": (
        "2", f"join a b {K}; restart_from_snapshot; renew a b", {"tested": "a b"}, "test", {"start": "a b"},
    ),
})  # fmt: skip
def test_the_network(story):
    check(story)


def joined(nodes: str, names: str, **settings) -> Scenario:
    run = Scenario(nodes, **settings)
    run.join(*names, **KNOWS)
    return run


def test_both_nodes_of_a_pair_get_the_address_of_the_test():
    asked = joined("4", "abcd").asked(PairTest)
    first, other = asked["a"], asked["c"]
    assert first.listens and not other.listens and (first.peer, other.peer) == ("c", "a")
    assert (first.addr, first.port, first.nonce) == (other.addr, other.port, other.nonce)
    assert first.nonce != asked["b"].nonce


def test_an_unfit_node_gets_the_directive_to_leave_as_unfit():
    run = joined("3:3", "abc")
    run.tests_network(bad="b", times=3)
    drain = run.directive("b")
    assert isinstance(drain, Drain) and drain.unfit


def test_agents_that_never_answer_hold_the_run_up_for_a_bounded_time():
    run = joined("3", "abc")
    run.passes(LONGEST_S + ANSWERED_WITHIN_S)
    assert run.told(Start) == set("abc")
    assert has_message(run.reasons("warning")[0], words.no_answer, limit_s=ANSWERED_WITHIN_S)


def test_newcomers_without_end_hold_the_run_up_for_a_bounded_time():
    run = joined("2:9", "ab", last_call_timeout_s=1.0)
    for number in range(8):
        run.passes(LONGEST_S / 5)
        if run.stage is Stage.RUNNING:
            break
        run.join(f"n{number}", **KNOWS)
    run.passes(ANSWERED_WITHIN_S)
    assert run.stage is Stage.RUNNING and run.now <= 60.0


def test_a_peer_that_dies_during_the_test_is_not_evidence_against_a_node():
    run = joined("3", "abc", disconnect_grace_s=1.0)
    query = run.asked(PairTest)["a"]
    peer = query.peer
    run.is_lost(peer)
    run.handle(QueryAnswered("a", query.number, PairTested(problem="the connection broke")))
    left = set("abc") - {peer}
    run.tests_network(times=2)
    assert run.stage is Stage.FORMING and run.told(Wait) == left and not run.reasons("node_unfit")
    run.join("d", **KNOWS)
    run.tests_network(times=2)
    assert run.told(Start) == left | {"d"}


def test_a_test_that_an_agent_cannot_make_is_not_a_failure():
    run = joined("2", "ab")
    for name in "ab":
        run.handle(QueryAnswered(name, run.asked(PairTest)[name].number, Refused(reason="no --check network")))
    assert run.told(Start) == {"a", "b"} and not run.reasons("warning")


def test_the_status_names_links_that_have_failed_until_a_test_passes_or_a_node_goes():
    run = joined("2:3", "ab", last_call_timeout_s=0.0, max_restarts=3)
    run.tests_network(bad="b")
    assert run.told(Start) == {"a", "b"}
    (link,) = status_view.view(run.run, run.now).broken_links
    assert link.nodes == ("a", "b") and link.problem == SLOW
    watched = watch_view.view(run.run, run.now, lambda at: at)["broken_links"]
    assert watched == [{"nodes": ("a", "b"), "problem": link.problem}]
    run.restarts_from_a_snapshot()
    assert [each.nodes for each in status_view.view(run.run, run.now).broken_links] == [("a", "b")]
    run.fails("a")
    assert not list(broken_links(run.run)), "the next round tests again"
    run.join("a", "b", **KNOWS)
    run.tests_network(bad="b")
    assert list(broken_links(run.run))
    run.is_lost("b")
    assert not list(broken_links(run.run))
    assert "broken_links" not in watch_view.view(run.run, run.now, lambda at: at)


def test_a_broken_path_between_two_fit_nodes_is_a_warning():
    run = joined("4", "abcd")
    for _ in range(2):
        for name, query in run.asked(PairTest).items():
            problem = "no connection to node c at host-c:29500 within 4 s" if {name, query.peer} == {"a", "c"} else ""
            run.handle(QueryAnswered(name, query.number, PairTested(mb_per_s=900.0, problem=problem)))
    assert run.told(Start) == set("abcd") and not run.reasons("node_unfit")
    why = "no connection to node c at host-c:29500 within 4 s"
    assert run.reasons("warning") == [words.broken_path("a", "c", why)]
    (link,) = status_view.view(run.run, run.now).broken_links
    assert (link.nodes, link.problem) == (("a", "c"), why)


def test_the_reason_is_that_of_the_node_that_connects():
    run = joined("2", "ab")
    asked = run.asked(PairTest)
    for name in sorted(asked, key=lambda name: not asked[name].listens):
        problem = "nobody came" if asked[name].listens else "no way to b"
        run.handle(QueryAnswered(name, asked[name].number, PairTested(problem=problem)))
    assert has_message(run.reasons("warning")[0], words.undecided, why="no way to b")


def test_the_reason_names_the_condition_for_schedulers():
    assert condition(BAD_B) == ("NetworkBroken", "permanent")
