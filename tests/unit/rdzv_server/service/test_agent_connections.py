"""Connections that close, and the agents that are missed then."""

import pytest
from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.service.agent_connections import Connections
from tests.support.scenario import Connection

A, B = ("run", "a"), ("run", "b")
ONE, TWO, BROWSER = Connection("one"), Connection("two"), Connection("operator's browser")


class Watch(Connections):
    def __init__(self) -> None:
        self.missed: list[tuple[str, str]] = []
        super().__init__(self.missed.append)


@pytest.fixture
def connections() -> Watch:
    return Watch()


def test_an_agent_is_missed_when_its_connection_closes(connections):
    connections.bind(ONE, A)
    connections.bind(TWO, B)
    connections.lost(ONE)
    assert connections.missed == [A]


def test_every_agent_of_a_connection_is_missed(connections):
    connections.bind(ONE, A)
    connections.bind(ONE, B)
    connections.lost(ONE)
    assert sorted(connections.missed) == [A, B]


def test_an_agent_that_has_moved_to_a_newer_connection_does_not_miss_the_older(connections):
    connections.bind(ONE, A)
    connections.bind(TWO, A)
    connections.lost(ONE)
    assert connections.missed == []
    connections.lost(TWO)
    assert connections.missed == [A]


def test_what_turns_out_to_be_no_agents_is_forgotten(connections):
    for number in range(100):
        connections.bind(ONE, ("run", f"stranger {number}"))
        connections.unbind(ONE, ("run", f"stranger {number}"))
    connections.bind(ONE, A)
    assert len(connections._connections) == 1
    connections.lost(ONE)
    assert connections.missed == [A]


def test_an_agent_may_move_back(connections):
    for connection in (ONE, TWO, ONE):
        connections.bind(connection, A)
    connections.lost(TWO)
    assert connections.missed == []
    connections.lost(ONE)
    assert connections.missed == [A]


def test_a_connection_that_carried_no_agent_is_nobodys(connections):
    connections.lost(BROWSER)
    assert connections.missed == []


def test_a_connection_closes_once(connections):
    connections.bind(ONE, A)
    connections.lost(ONE)
    connections.lost(ONE)
    assert connections.missed == [A]


def test_polls_over_one_connection_are_one_agent(connections):
    for _ in range(3):
        connections.bind(ONE, A)
    connections.lost(ONE)
    assert connections.missed == [A]


def test_a_connection_that_is_closed_carries_nobody(connections):
    """A request has its turn later than its connection's end, and nobody would say a second time that it is gone."""
    connections.bind(TWO, A)
    with pytest.raises(ServerUnavailable):
        connections.bind(Connection("cut", is_closed=True), A)
    connections.lost(TWO)
    assert connections.missed == [A]


def test_a_connection_whose_agents_were_all_refused_carries_none(connections):
    counts = []
    connections.changed = counts.append
    connections.bind(ONE, A)
    connections.unbind(ONE, A)
    assert counts == [1, 0]
