"""When a round completes, and what is said until then."""

import pytest
from rdzv_protocol.messages import Finish, Start, Wait

from rdzv_server.core.run import Stage
from tests.support.scenario import Scenario, running


def test_a_round_completes_at_once_when_max_nodes_have_joined():
    run = Scenario("2:3")
    run.join("a", "b")
    assert run.told(Wait) == {"a", "b"}
    run.join("c")
    assert run.participants() == ["a", "b", "c"]
    assert run.reason("a") == "all 3 nodes joined"
    assert run.woken() == ["a", "b", "c"]


def test_a_round_completes_at_once_when_every_survivor_has_rejoined():
    run = running("2:4", "a", "b", "c")
    run.is_lost("c")
    run.join("a")
    assert run.stage is Stage.FORMING
    run.join("b")
    assert run.participants() == ["a", "b"]
    assert run.reason("a") == "every remaining node of round 1 rejoined: 2 (a, b) joined"


def test_survivors_below_min_wait_for_a_replacement():
    run = running("2", "a", "b")
    run.is_lost("b")
    run.join("a")
    assert run.told(Wait) == {"a"}
    run.join("c")
    assert run.participants() == ["a", "c"]


def test_the_last_call_lets_a_round_go_that_has_its_minimum():
    run = Scenario("2:4", last_call_timeout_s=30)
    run.join("a")
    run.passes(100)
    run.join("b")
    run.passes(29.9)
    assert run.stage is Stage.FORMING
    run.passes(0.1)
    assert run.participants() == ["a", "b"]
    assert run.reason("a") == "last call ended with 2 nodes"


def test_a_newcomer_does_not_prolong_the_last_call():
    run = Scenario("2:4")
    run.join("a", "b")
    run.passes(20)
    run.join("c")
    run.passes(10)
    assert run.participants() == ["a", "b", "c"]


def test_the_last_call_begins_again_when_the_minimum_was_lost_meanwhile():
    run = Scenario("2:4")
    run.join("a", "b")
    run.passes(20)
    run.leaves("b")
    run.passes(20)
    run.join("c")
    run.passes(29)
    assert run.stage is Stage.FORMING
    run.passes(1)
    assert run.participants() == ["a", "c"]


def test_a_round_that_nobody_survived_forms_like_a_first_one():
    run = running("1:3", "a", "b")
    run.is_lost("a")
    run.is_lost("b")
    run.join("c")
    assert run.stage is Stage.FORMING
    run.passes(30)
    assert run.participants() == ["c"]


def test_the_join_timeout_fails_the_run_and_names_who_was_there_and_who_was_missing():
    run = running("3", "a", "b", "c", join_timeout_s=600)
    run.is_lost("c")
    run.join("a")
    run.passes(600)
    assert run.stage is Stage.FAILED
    finish = run.directive("a")
    assert isinstance(finish, Finish) and not finish.succeeded
    assert finish.reason == (
        "join timeout: waiting for 2 more nodes: 1 of 3 joined (a); b to stop the workers of round 1; gone: c"
    )


def test_the_join_timeout_counts_from_the_moment_the_round_fell_below_its_minimum():
    run = Scenario("2:3", join_timeout_s=600, last_call_timeout_s=1_000)
    run.join("a", "b")
    run.passes(500)
    run.leaves("b")
    run.passes(599)
    assert run.stage is Stage.FORMING
    run.passes(1)
    assert run.stage is Stage.FAILED


def test_a_slow_survivor_keeps_its_seat():
    run = running("2", "a", "b")
    run.join("spare")
    run.leaves("a")
    run.join("c")
    assert run.told(Wait) == {"spare", "c"}, "b is still stopping its workers"
    assert run.reason("c") == "2 (spare, c) joined of 2 to 2; waiting for b to stop the workers of round 1"
    run.join("b")
    assert set(run.participants()) == {"b", "spare"}


def test_the_last_call_shuts_nobody_out_who_is_alive_and_stopping():
    run = running("1:2", "a", "b", max_restarts=1, lease_s=1_000)
    run.fails("a")
    run.join("a")
    run.passes(500)
    assert run.stage is Stage.FORMING
    run.join("b")
    assert run.participants() == ["a", "b"]
    assert run.ledger() == [("worker_failure", True)]


def test_a_slow_survivor_that_goes_silent_is_not_waited_for():
    run = running("1:2", "a", "b", max_restarts=1)
    run.fails("a")
    run.join("a")
    run.is_lost("b")
    assert run.participants() == ["a"]


@pytest.mark.parametrize(
    ("joined", "sentence"),
    [
        ("a", "waiting for 3 more nodes: 1 of 4 joined (a); gives up in 600 s"),
        ("abc", "waiting for 1 more node: 3 of 4 joined (a, b, c); gives up in 600 s"),
        ("abcd", "4 (a, b, c, d) joined of 4 to 8; at once with 8; starts in 30 s"),
        ("abcdef", "6 (a, b, c, d and 2 more) joined of 4 to 8; at once with 8; starts in 30 s"),
    ],
)
def test_a_waiting_agent_reads_what_the_round_waits_for(joined, sentence):
    run = Scenario("4:8")
    run.join(*joined)
    assert run.reason("a") == sentence


def test_the_sentence_counts_down():
    run = Scenario("2")
    run.join("a")
    run.passes(17)
    assert run.reason("a") == "waiting for 1 more node: 1 of 2 joined (a); gives up in 583 s"


def test_no_sentence_grows_with_the_number_of_nodes():
    def sentences(count):
        run = Scenario(f"{count}:{count + 2}", last_call_timeout_s=30)
        names = [f"node-{index:04}" for index in range(count)]
        run.join(*names[:-1])
        said = [run.reason(names[0])]
        run.join(names[-1])
        said.append(run.reason(names[0]))
        run.passes(30)
        said.append(run.reason(names[0]))
        run.leaves(names[0])
        run.leaves(names[1])
        said.append(run.reason(names[2]))
        run.join(names[2])
        said.append(run.reason(names[2]))
        run.join(*names[3:])
        said.append(run.reason(names[2]))
        return said

    few, many = sentences(10), sentences(200)
    assert all(len(short) + 10 >= len(long) for short, long in zip(few, many, strict=True))


@pytest.mark.parametrize(
    ("nodes", "settings", "sentence"),
    [
        ("2", {}, "standing by: round 1 has its 2 nodes"),
        ("2:3", {"scale_up": "manual"}, "standing by: round 1 runs, and scale-up is manual"),
        ("2:4", {}, "round 1 ends to admit this node; in 0.1 s"),
        ("2:4", {"scale_up": "cooldown"}, "round 1 ends to admit this node; in 300.0 s"),
    ],
)
def test_a_standby_reads_why_it_stands_by(nodes, settings, sentence):
    run = running(nodes, "a", "b", **settings)
    run.join("s")
    assert run.reason("s") == sentence


def test_a_standby_reads_how_many_have_finished():
    run = running("1:3", "a", "b")
    run.succeeds("a")
    run.join("s")
    assert run.reason("s") == "standing by: 1 of 2 nodes finished their work"
    assert run.told(Start) == {"a", "b"}
