"""Whose connection it was that closed."""

import pytest

from rdzv_server.service.agent_connections import Connections

A, B = ("run", "a"), ("run", "b")


class Watch(Connections):
    def __init__(self) -> None:
        self.missed: list[tuple[str, str]] = []
        super().__init__(self.missed.append)


@pytest.fixture
def connections() -> Watch:
    return Watch()


def test_an_agent_is_missed_when_its_connection_closes(connections):
    connections.carry("one", A)
    connections.carry("two", B)
    connections.lost("one")
    assert connections.missed == [A]


def test_every_agent_of_a_connection_is_missed(connections):
    connections.carry("one", A)
    connections.carry("one", B)
    connections.lost("one")
    assert sorted(connections.missed) == [A, B]


def test_an_agent_that_has_moved_to_a_newer_connection_does_not_miss_the_older(connections):
    connections.carry("old", A)
    connections.carry("new", A)
    connections.lost("old")
    assert connections.missed == []
    connections.lost("new")
    assert connections.missed == [A]


def test_what_turns_out_to_be_no_agents_is_forgotten(connections):
    for number in range(100):
        connections.carry("one", ("run", f"stranger {number}"))
        connections.put_down("one", ("run", f"stranger {number}"))
    connections.carry("one", A)
    assert len(connections._standing) == 1
    connections.lost("one")
    assert connections.missed == [A]


def test_an_agent_may_move_back(connections):
    for connection in ("one", "two", "one"):
        connections.carry(connection, A)
    connections.lost("two")
    assert connections.missed == []
    connections.lost("one")
    assert connections.missed == [A]


def test_a_connection_that_carried_no_agent_is_nobodys(connections):
    connections.lost("operator's browser")
    assert connections.missed == []


def test_a_connection_closes_once(connections):
    connections.carry("one", A)
    connections.lost("one")
    connections.lost("one")
    assert connections.missed == [A]


def test_polls_over_one_connection_are_one_agent(connections):
    for _ in range(3):
        connections.carry("one", A)
    connections.lost("one")
    assert connections.missed == [A]
