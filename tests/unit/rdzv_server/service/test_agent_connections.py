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


@pytest.mark.parametrize(
    ("bound", "closed", "missed"),
    [
        ([(ONE, A), (TWO, B)], [ONE], [A]),
        ([(ONE, A), (ONE, B)], [ONE], [A, B]),
        ([(ONE, A), (TWO, A)], [ONE], []),
        ([(ONE, A), (TWO, A)], [ONE, TWO], [A]),
        ([(ONE, A), (TWO, A), (ONE, A)], [TWO], []),
        ([(ONE, A), (TWO, A), (ONE, A)], [TWO, ONE], [A]),
        ([(ONE, A), (ONE, A), (ONE, A)], [ONE], [A]),
        ([(ONE, A)], [ONE, ONE], [A]),
        ([(ONE, A)], [BROWSER], []),
    ],
    ids=[
        "its only one", "that of several agents", "it has moved on", "it has moved on, and that one closes too",
        "it has moved back", "it has moved back, and that one closes too", "several polls", "closed twice",
        "nobody's",
    ],
)  # fmt: skip
def test_an_agent_is_missed_when_its_last_connection_closes(connections, bound, closed, missed):
    for connection, agent in bound:
        connections.bind(connection, agent)
    for connection in closed:
        connections.lost(connection)
    assert sorted(connections.missed) == missed


def test_the_agent_of_a_refused_poll_is_forgotten(connections):
    for number in range(100):
        connections.bind(ONE, ("run", f"unknown {number}"))
        connections.unbind(ONE, ("run", f"unknown {number}"))
    connections.bind(ONE, A)
    assert len(connections._connections) == 1
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
