"""Ranks of the participants, over the rounds of a run."""

from tests.support.scenario import SERVER_ADDR, Scenario
from tests.support.stories import check, stories


def ranks_of(run, name):
    assignment = run.assignment(name)
    return list(assignment.ranks)


@stories({
    "in the order of joining": ("3", "join c a b", {"ranks": "c a b"}),
    # sticky
    "survivors keep their ranks in any order of rejoining": (
        "3 max_restarts=1", "join a b c; fail b; join c b a", {"ranks": "a b c"},
    ),
    "a replacement takes the vacant rank": ("3", "join a b c; lose b; join d c a", {"ranks": "a d c"}),
    "a shrink keeps the order": ("2:4", "join a b c d; lose b; join d c a", {"ranks": "a c d"}),
    "a grown group appends the newcomers": ("2:4", "join a b; form; join d c; join b a", {"ranks": "a b d c"}),
    # preferred and claimed
    "a rank that is preferred is given once and no node is refused": (
        "3 max_restarts=1", "join c preferred_rank=2; join a preferred_rank=0; join b preferred_rank=0",
        {"ranks": "a b c"}, "lose a; join c b; join d preferred_rank=2", {"ranks": "d b c"},
    ),
    "a rank that is claimed goes before one that is preferred": (
        "2", "join a preferred_rank=0; join b node_rank=0", {"ranks": "b a"},
    ),
    "the node rank is honoured": (
        "3", "join a node_rank=2; join b node_rank=0; join c node_rank=1", {"ranks": "b c a"},
    ),
    "a node without node rank fills the gap": (
        "3", "join a; join b node_rank=0; join c node_rank=2", {"ranks": "b a c"},
    ),
    "a node rank goes before a sticky one": ("2", "join a b; lose b; join c node_rank=0; join a", {"ranks": "c a"}),
    # in the order of the network
    "nodes without a rank yet are sorted, in any order of joins": (
        "3", "join a sort_key=s1.3; join b sort_key=s0.2; join c sort_key=s0.1", {"ranks": "c b a"},
    ),
    "a sticky rank goes before the order, and a replacement takes the vacant one": (
        "3", "join a sort_key=1; join b sort_key=2; join c sort_key=3; lose b; join d sort_key=0; join c a",
        {"ranks": "a d c"},
    ),
    "newcomers to a grown group are sorted among themselves": (
        "2:4", "join a sort_key=5; join b sort_key=6; form; join d sort_key=4; join c sort_key=3; join b a",
        {"ranks": "a b c d"},
    ),
    # by topology
    "blocks stay contiguous after a replacement": (
        "4 rank_policy=topology",
        "join a sort_key=s0.1; join c sort_key=s1.1; join b sort_key=s0.2; join d sort_key=s1.2", {"ranks": "a b c d"},
        "lose a; join e sort_key=s1.3; join d c b", {"ranks": "b c d e"},
        "lose d; join f sort_key=s0.0; join b c e", {"ranks": "f b c e"},
    ),
    "without places in the network the order stays, and who comes is last": (
        "3 rank_policy=topology", "join a b c; lose b; join d c a", {"ranks": "a c d"},
    ),
    "a rank that was asked for goes before the place in the network": (
        "3 rank_policy=topology",
        "join a sort_key=1 node_rank=2; join b sort_key=3; join c sort_key=2",
        "lose b; join b2 sort_key=3; join c; join a node_rank=2", {"ranks": "c b2 a"},
    ),
    # without gaps
    "the last nodes move into the gaps, and the others stay": (
        "2:5 rank_policy=fill-gaps", "join a b c d e; lose b; join e d c a", {"ranks": "a e c d"},
        "lose a; join e c d", {"ranks": "d e c"},
    ),
    "a replacement goes into the gap itself": (
        "3 rank_policy=fill-gaps", "join a b c; lose a; join d c b", {"ranks": "d b c"},
    ),
    "who claims a rank is not moved": (
        "2:3 rank_policy=fill-gaps",
        "join a b; join c node_rank=2; lose a; join b; join c node_rank=2", {"ranks": "b c"},
    ),
    # the master
    "it is reserved again in every round": (
        "2 max_restarts=1", "join a b; fail a; join a port=31000; join b port=32000",
        {"master a": "host-a:31000", "master b": "host-a:31000"},
    ),
    "the next node becomes master when rank 0 is lost": (
        "1:2", "join a b; lose a; join b", {"master b": "host-b:29501"},
    ),
    "a master on the server's loopback is named as the others reach it": (
        "2", "join a addr=127.0.0.1; join b addr=10.0.0.2",
        {"master a": f"{SERVER_ADDR}:29500", "master b": f"{SERVER_ADDR}:29500"},
    ),
    "on one host the loopback is the master's address": (
        "2", "join a addr=::1; join b addr=localhost", {"master a": "::1:29500", "master b": "::1:29500"},
    ),
    "a node on loopback that is not the master changes nothing": (
        "2", "join a addr=10.0.0.2; join b addr=localhost",
        {"master a": "10.0.0.2:29500", "master b": "10.0.0.2:29500"},
    ),
})  # fmt: skip
def test_group_ranks(story):
    check(story)


def test_worker_ranks_are_cumulative_over_unequal_nodes():
    run = Scenario("3")
    for name, size in (("a", 4), ("b", 1), ("c", 2)):
        run.join(name, local_world_size=size)
    assert [ranks_of(run, name) for name in "abc"] == [[0, 1, 2, 3], [4], [5, 6]]
    assert {run.assignment(name).world_size for name in "abc"} == {7}


def test_each_role_has_ranks_of_its_own():
    run = Scenario("3")
    run.join("a", role="trainer", local_world_size=2)
    run.join("b", role="reader", local_world_size=3)
    run.join("c", role="trainer", local_world_size=1)
    places = [run.assignment(name) for name in "abc"]
    assert [(place.first_role_rank, place.role_world_size) for place in places] == [(0, 3), (0, 3), (2, 3)]


def test_an_assignment_says_everything_that_the_workers_environment_needs():
    run = Scenario("2", max_restarts=3)
    run.join("a", port=29_501)
    run.join("b", port=29_502)
    place = run.assignment("b")
    assert (place.round, place.group_rank, place.group_world_size) == (1, 1, 2)
    assert (place.master_addr, place.master_port) == ("host-a", 29_501)
    assert (place.restart_count, place.max_restarts) == (0, 3)
