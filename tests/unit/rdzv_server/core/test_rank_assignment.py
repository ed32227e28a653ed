"""Which rank each participant gets, over the rounds of a run."""

from tests.support.scenario import SERVER_ADDR, Scenario, running


def ranks_of(run, name):
    assignment = run.assignment(name)
    return list(range(assignment.first_rank, assignment.first_rank + assignment.local_world_size))


def restart(run, lost, *rejoin):
    run.is_lost(lost)
    run.join(*rejoin)


def test_group_ranks_follow_the_order_of_joining():
    run = running("3", "c", "a", "b")
    assert run.participants() == ["c", "a", "b"]


def test_worker_ranks_are_cumulative_over_unequal_nodes():
    run = Scenario("3")
    run.join("a", local_world_size=4)
    run.join("b", local_world_size=1)
    run.join("c", local_world_size=2)
    assert [ranks_of(run, name) for name in "abc"] == [[0, 1, 2, 3], [4], [5, 6]]
    assert {run.assignment(name).world_size for name in "abc"} == {7}


def test_each_role_has_ranks_of_its_own():
    run = Scenario("3")
    run.join("a", role="trainer", local_world_size=2)
    run.join("b", role="reader", local_world_size=3)
    run.join("c", role="trainer", local_world_size=1)
    places = {name: run.assignment(name) for name in "abc"}
    assert {name: (place.first_role_rank, place.role_world_size) for name, place in places.items()} == {
        "a": (0, 3),
        "b": (0, 3),
        "c": (2, 3),
    }


def test_an_assignment_says_everything_that_the_workers_environment_needs():
    run = Scenario("2", max_restarts=3)
    run.join("a", port=29_501)
    run.join("b", port=29_502)
    place = run.assignment("b")
    assert (place.round, place.group_rank, place.group_world_size) == (1, 1, 2)
    assert (place.master_addr, place.master_port) == ("host-a", 29_501)
    assert (place.restart_count, place.max_restarts) == (0, 3)


def test_survivors_keep_their_ranks_whatever_the_order_of_rejoining():
    run = running("3", "a", "b", "c", max_restarts=1)
    run.fails("b")
    run.join("c", "b", "a")
    assert run.participants() == ["a", "b", "c"]


def test_a_replacement_takes_the_vacant_rank():
    run = running("3", "a", "b", "c")
    restart(run, "b", "d", "c", "a")
    assert run.participants() == ["a", "d", "c"]


def test_a_shrink_keeps_the_order():
    run = running("2:4", "a", "b", "c", "d")
    restart(run, "b", "d", "c", "a")
    assert run.participants() == ["a", "c", "d"]


def test_a_grown_group_appends_the_newcomers():
    run = running("2:4", "a", "b")
    run.join("d", "c")
    run.join("b", "a")
    assert run.participants() == ["a", "b", "d", "c"]


def test_a_rank_that_is_preferred_is_given_once_and_nobody_is_refused():
    run = Scenario("3", max_restarts=1)
    run.join("c", preferred_rank=2)
    run.join("a", preferred_rank=0)
    run.join("b", preferred_rank=0)
    assert run.participants() == ["a", "b", "c"]
    restart(run, "a", "c", "b")
    run.join("d", preferred_rank=2)
    assert run.participants() == ["d", "b", "c"]


def test_a_rank_that_is_claimed_goes_before_one_that_is_preferred():
    run = Scenario("2")
    run.join("a", preferred_rank=0)
    run.join("b", node_rank=0)
    assert run.participants() == ["b", "a"]


def test_the_node_rank_is_honoured():
    run = Scenario("3")
    run.join("a", node_rank=2)
    run.join("b", node_rank=0)
    run.join("c", node_rank=1)
    assert run.participants() == ["b", "c", "a"]


def test_a_node_without_node_rank_fills_the_gap():
    run = Scenario("3")
    run.join("a")
    run.join("b", node_rank=0)
    run.join("c", node_rank=2)
    assert run.participants() == ["b", "a", "c"]


def test_a_node_rank_goes_before_a_sticky_one():
    run = running("2", "a", "b")
    run.is_lost("b")
    run.join("c", node_rank=0)
    run.join("a")
    assert run.participants() == ["c", "a"]


def test_the_master_is_reserved_anew_in_every_round():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.join("a", port=31_000)
    run.join("b", port=32_000)
    assert {(run.assignment(name).master_addr, run.assignment(name).master_port) for name in "ab"} == {
        ("host-a", 31_000)
    }


def test_the_next_node_becomes_master_when_rank_0_is_lost():
    run = running("1:2", "a", "b")
    restart(run, "a", "b")
    assert run.assignment("b").master_addr == "host-b"


def test_a_master_on_the_servers_loopback_is_named_as_the_others_reach_it():
    run = Scenario("2")
    run.join("a", addr="127.0.0.1")
    run.join("b", addr="10.0.0.2")
    assert {run.assignment(name).master_addr for name in "ab"} == {SERVER_ADDR}


def test_on_one_host_the_loopback_is_the_masters_address():
    run = Scenario("2")
    run.join("a", addr="::1")
    run.join("b", addr="localhost")
    assert {run.assignment(name).master_addr for name in "ab"} == {"::1"}


def test_a_node_on_loopback_that_is_not_the_master_changes_nothing():
    run = Scenario("2")
    run.join("a", addr="10.0.0.2")
    run.join("b", addr="localhost")
    assert {run.assignment(name).master_addr for name in "ab"} == {"10.0.0.2"}
