"""Connections that close, and what this says about the agents that used them."""

import pytest
from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.service.agent_connections import Connections
from tests.support.scenario import Connection

A, B = ("run", "a"), ("run", "b")
ONE, TWO, BROWSER = Connection("one"), Connection("two"), Connection("operator's browser")


class Watch(Connections):
    """Watch. `missed`: agents that are missed. `unconnected`: others that have no connection."""

    def __init__(self) -> None:
        self.missed: list[tuple[str, str]] = []
        self.unconnected: list[tuple[str, str]] = []
        super().__init__(lambda agent, was_parked: (self.missed if was_parked else self.unconnected).append(agent))


def parks(connections: Watch, connection: Connection, agent: tuple[str, str]) -> None:
    """Park a poll of the agent on the connection, for the rest of the test."""
    connections.bind(connection, agent)
    connections.parked(connection, agent).__enter__()


@pytest.fixture
def connections() -> Watch:
    return Watch()


@pytest.mark.parametrize("answers", [1, 3])
def test_a_connection_that_closes_after_an_answer_says_nothing(connections, answers):
    """A proxy may close its connection to the server after each answer, or when it has been unused for a while."""
    for _ in range(answers):
        connections.bind(ONE, A)
        with connections.parked(ONE, A):
            pass
    connections.lost(ONE)
    assert (connections.missed, connections.unconnected) == ([], [A] * (answers > 1))


def test_an_agent_vanishes_when_its_connection_closes_while_a_poll_is_parked(connections):
    connections.bind(ONE, A)
    with connections.parked(ONE, A):
        connections.lost(ONE)
    assert connections.missed == [A]


def test_a_poll_that_has_been_replaced_by_a_newer_one_says_nothing(connections):
    connections.bind(ONE, A)
    with connections.parked(ONE, A):
        connections.bind(TWO, A)
        connections.lost(ONE)
    assert connections.missed == []


@pytest.mark.parametrize(
    ("bound", "closed", "missed"),
    [
        ([(ONE, A), (TWO, B)], [ONE], [A]),
        ([(ONE, A), (ONE, B)], [ONE], [A, B]),
        ([(ONE, A), (TWO, A)], [ONE], []),
        ([(ONE, A), (TWO, A)], [ONE, TWO], [A]),
        ([(ONE, A), (TWO, A)], [TWO], [A]),
        ([(ONE, A), (TWO, A), (ONE, A)], [TWO], []),
        ([(ONE, A), (TWO, A), (ONE, A)], [TWO, ONE], [A]),
        ([(ONE, A)], [ONE, ONE], [A]),
        ([(ONE, A)], [BROWSER], []),
    ],
    ids=[
        "its only one", "that of several agents", "it has moved on", "it has moved on, and that one closes too",
        "it has moved on, and the first one stays", "it has moved back", "it has moved back, and that one closes too",
        "closed twice", "nobody's",
    ],
)  # fmt: skip
def test_an_agent_counts_as_disconnected_when_its_latest_connection_closes(connections, bound, closed, missed):
    for connection, agent in bound:
        parks(connections, connection, agent)
    for connection in closed:
        connections.lost(connection)
    assert sorted(connections.missed) == missed


def test_the_agent_of_a_refused_poll_is_forgotten(connections):
    for number in range(100):
        connections.bind(ONE, ("run", f"unknown {number}"))
        connections.unbind(ONE, ("run", f"unknown {number}"))
    parks(connections, ONE, A)
    assert len(connections._paths) == 1
    connections.lost(ONE)
    assert connections.missed == [A]


def test_a_closed_connection_has_no_agent(connections):
    """A request may have its turn after its connection has closed, and no second close would follow."""
    parks(connections, TWO, A)
    with pytest.raises(ServerUnavailable):
        connections.bind(Connection("cut", is_closed=True), A)
    connections.lost(TWO)
    assert connections.missed == [A]


def test_an_agent_vanishes_when_its_poll_is_read_after_its_connection_closed(connections):
    connections.bind(ONE, A)
    connections.lost(ONE)
    assert connections.missed == []
    connections.left_unread(A)
    assert connections.missed == [A]


def test_an_agent_that_has_another_connection_by_then_has_not_vanished(connections):
    connections.bind(ONE, A)
    connections.lost(ONE)
    connections.bind(TWO, A)
    connections.left_unread(A)
    assert connections.missed == []


def test_a_connection_carries_no_agent_after_all_were_refused(connections):
    counts = []
    connections.changed = counts.append
    connections.bind(ONE, A)
    connections.unbind(ONE, A)
    assert counts == [1, 0]
