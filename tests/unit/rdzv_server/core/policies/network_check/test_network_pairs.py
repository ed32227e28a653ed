"""Nodes that the network tests of pairs find bad, for any fault."""

from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.policies.network_check.network_pairs import MOST_STEPS, NetworkPairs, Pair


def results(
    nodes: str, fails: Callable[[Pair], bool], fit: Collection[str] = ()
) -> tuple[NetworkPairs, list[list[Pair]]]:
    """Run the whole test of these nodes. Return it, and the pairs of each step."""
    pairs, steps = NetworkPairs(nodes, fit), []
    while step := pairs.begin_step():
        taken = [agent for pair in step for agent in pair.both]
        assert len(taken) == len(set(taken)), "a node is in one test at a time"
        steps.append(step)
        for pair in step:
            pairs.note(pair, f"{pair.listens}-{pair.connects} is slow" if fails(pair) else "")
    assert len(steps) <= MOST_STEPS
    known = [frozenset(pair.both) for step in steps for pair in step]
    assert len(known) == len(set(known)), "no node meets the same peer again"
    return pairs, steps


def broken(nodes: str) -> Callable[[Pair], bool]:
    """Return a function that makes every test of these nodes fail."""
    return lambda pair: bool(set(pair.both) & set(nodes))


@pytest.mark.parametrize(
    ("nodes", "bad", "unfit", "undecided", "steps"),
    [
        ("abcdef", "", "", "", 1),
        ("abcdef", "b", "b", "", 2),
        ("abcdef", "e", "e", "", 2),
        ("abcdefg", "g", "g", "", 3),
        ("abc", "a", "a", "", 3),
        ("abc", "b", "b", "", 3),
        ("abc", "c", "c", "", 3),
        ("abcdefgh", "ae", "ae", "", 2),
        ("abcd", "ab", "ab", "", 2),
        ("ab", "a", "", "ab", 1),
        ("abcdef", "abcdef", "", "abcdef", 4),
        ("a", "", "", "", 0),
    ],
)
def test_unfit_nodes(nodes: str, bad: str, unfit: str, undecided: str, steps: int):
    pairs, taken = results(nodes, broken(bad))
    assert (pairs.unfit, pairs.undecided, len(taken)) == (list(unfit), list(undecided), steps)


def test_the_first_step_pairs_each_node_with_the_one_half_of_them_further_on():
    _, steps = results("abcdef", broken(""))
    assert steps == [[Pair("a", "d"), Pair("b", "e"), Pair("c", "f")]]


def test_a_newcomer_is_tested_with_one_that_is_known_to_be_fit():
    pairs, steps = results("abcd", broken("d"), fit="abc")
    assert [set(step[0].both) for step in steps] == [{"d", "a"}, {"d", "b"}] and pairs.unfit == ["d"]


def test_a_node_that_cannot_be_reached_listens_until_its_peer_reports():
    pairs, steps = results("abcdef", lambda pair: pair.listens == "b")
    assert [pair.listens for step in steps for pair in step if "b" in pair.both] == ["b", "b"]
    assert pairs.unfit == ["b"] and not pairs.undecided


def test_a_broken_path_between_two_nodes_does_not_blame_a_node():
    pairs, _ = results("abcdef", lambda pair: set(pair.both) == {"a", "d"})
    assert not pairs.unfit and not pairs.undecided and pairs.fit == set("abcdef")


def test_a_peer_that_is_gone_is_not_evidence_against_a_node():
    pairs = NetworkPairs("abcd")
    first, second = pairs.begin_step()
    pairs.note(second, "")
    pairs.note(first, "broke")
    pairs.forget(first.connects)
    (again,) = pairs.begin_step()
    assert first.listens in again.both
    pairs.note(again, "")
    assert not pairs.unfit and not pairs.undecided


@given(st.integers(2, 40), st.sets(st.integers(0, 39), max_size=40))
def test_only_bad_nodes_are_unfit_and_a_few_of_them_are_all_found(number: int, bad: set[int]):
    nodes = "".join(chr(ord("A") + each) for each in range(number))
    guilty = {nodes[each] for each in bad if each < number}
    pairs, _ = results(nodes, broken("".join(guilty)))
    assert set(pairs.unfit) <= guilty
    if number > 4 and len(guilty) <= 1:
        assert set(pairs.unfit) == guilty and not pairs.undecided
