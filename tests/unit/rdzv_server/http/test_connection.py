"""Reading from a peer: no more than its turn allows, and nothing while aiohttp pauses reading."""

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from rdzv_server.http.connection import MOST_WAITING, HttpConnection

REQUEST = b"POST /v1/agent/poll HTTP/1.1\r\n"


class Http(asyncio.Protocol):
    """aiohttp's protocol, which gets data, and may pause reading."""

    def __init__(self, is_full: bool) -> None:
        self.received = b""
        self.is_full = is_full
        self.is_whole, self.drops_rest = True, False
        self.is_lost = False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        self.received += data


class Turns(list[Callable[[], None]]):
    """Calls that wait for their turn: a scheduler of requests and of looks."""

    def ask(self, of: str, do: Callable[[], None], **ignored: bool) -> None:
        self.append(do)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def bounds(turns: Turns, held: Mock | None = None) -> Mock:
    return Mock(turns=turns, looks=turns, held=held or Mock())


@pytest.mark.parametrize("is_full", [False, True])
def test_reading_continues_when_there_is_room_unless_aiohttp_has_stopped_it(is_full: bool, turns: Turns) -> None:
    http, transport = Http(is_full), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    line = HttpConnection(lambda: http, "peer", bounds(turns), Mock(), Mock())
    line.connection_made(transport)
    for _ in range(MOST_WAITING):
        assert not transport.pause_reading.called
        line.data_received(REQUEST)
    assert transport.pause_reading.called and not transport.resume_reading.called
    while turns:
        turns.pop(0)()
    assert http.received == MOST_WAITING * REQUEST
    assert transport.resume_reading.called is not is_full


def stranger_at(http: Http, turns: Turns, held: Mock) -> tuple[HttpConnection, Mock]:
    """Return a connection without an accepted request, with its transport."""
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    line = HttpConnection(lambda: http, "peer", bounds(turns, held), Mock(), Mock())
    line.connection_made(transport)
    return line, transport


def test_each_request_of_a_stranger_takes_a_turn_and_its_memory_counts_until_then(
    turns: Turns,
) -> None:
    http, held = Http(is_full=False), Mock()
    line, _ = stranger_at(http, turns, held)
    request = REQUEST + b"\r\n"
    line.data_received(3 * request)
    held.add.assert_called_once_with("peer", line, 3 * len(request))
    for count in (1, 2, 3):
        assert len(turns) == 1
        turns.pop()()
        assert http.received == count * request
    assert not turns


@pytest.mark.parametrize(
    ("head", "body", "turns_taken"),
    [
        (b"Content-Length: 5\r\n", b"12345", 1),
        (b"content-length: 5\r\n", b"123", 1),
        (b"Content-Length: 5\r\n", b"12345" + REQUEST, 2),
        (b"Content-Length: 99999\r\n", b"12345", 2),
        (b"Content-Length: 5, 5\r\n", b"12345", 2),
        (b"X: 1\r\n", b"12345", 2),
        (b"", b"12345\r\nContent-Length: 5\r\n", 2),
    ],
)
def test_a_strangers_request_that_is_one_piece_with_its_body_takes_one_turn(
    head: bytes, body: bytes, turns_taken: int, turns: Turns
) -> None:
    http = Http(is_full=False)
    line, _ = stranger_at(http, turns, Mock())
    line.data_received(REQUEST + head + b"\r\n" + body)
    taken = 0
    while turns:
        taken += 1
        turns.pop()()
    assert taken == turns_taken
    assert http.received == REQUEST + head + b"\r\n" + body


def test_data_after_a_refused_head_is_read_in_turns_and_not_kept(turns: Turns) -> None:
    http, held = Http(is_full=False), Mock()
    line, transport = stranger_at(http, turns, held)
    line.data_received(REQUEST + b"\r\n" + b"x" * 1_000)
    http.drops_rest = True
    turns.pop()()
    held.remove.assert_called_once_with(line)
    assert not turns
    line.data_received(b"x" * 8_192)
    assert transport.pause_reading.called and not transport.resume_reading.called
    turns.pop()()
    assert transport.resume_reading.called


def test_a_strangers_request_is_dropped_when_it_has_closed_the_connection(turns: Turns) -> None:
    """Without this, each closed connection of a crowd kept its data and its parser in memory until two more turns."""
    http, gone = Http(is_full=False), Mock()
    line = HttpConnection(lambda: http, "peer", bounds(turns), Mock(), gone)
    line.connection_made(Mock(spec=asyncio.Transport))
    line.data_received(b"GET /v1/status HTTP/1.1\r\n\r\n")
    line.connection_lost(None)
    turns.pop(0)()
    assert http.is_lost and not http.received
    gone.assert_called_once_with(line)
    while turns:
        turns.pop()()
    assert not http.received


def test_a_known_agents_request_is_handled_although_it_has_closed_the_connection(turns: Turns) -> None:
    http = Http(is_full=False)
    line, _ = stranger_at(http, turns, Mock())
    line.is_unauthenticated = False
    line.data_received(REQUEST)
    line.connection_lost(None)
    while turns:
        turns.pop(0)()
    assert http.received == REQUEST and http.is_lost


def agent_at(http: Http, turns: Turns, gone: Mock, tls: object = None) -> tuple[HttpConnection, Mock]:
    """Return a connection with an accepted request, with its transport."""
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_extra_info.side_effect = {"sslcontext": tls}.get
    line = HttpConnection(lambda: http, "peer", bounds(turns), Mock(), gone)
    line.connection_made(transport)
    line.is_unauthenticated = False
    return line, transport


def test_a_connection_that_its_peer_closes_is_closed_in_its_turn_after_what_came_before(turns: Turns) -> None:
    """Otherwise, if all nodes of a large run vanish at once, requests of other runs wait until all are closed."""
    http, gone = Http(is_full=False), Mock()
    line, transport = agent_at(http, turns, gone)
    line.data_received(REQUEST)
    assert line.eof_received(), "asyncio must not close it"
    assert line.is_closed and line.is_lost and not transport.close.called
    turns.pop(0)()
    assert http.received == REQUEST and not transport.close.called
    turns.pop(0)()
    assert transport.close.called and not turns
    line.connection_lost(None)
    assert http.is_lost and not turns, "its end needs no other turn"
    gone.assert_called_once_with(line)


def test_a_connection_that_is_cut_before_its_turn_to_close_ends_once(turns: Turns) -> None:
    http, gone = Http(is_full=False), Mock()
    line, transport = agent_at(http, turns, gone)
    assert line.eof_received()
    line.connection_lost(ConnectionResetError())
    while turns:
        turns.pop(0)()
    assert http.is_lost and not transport.close.called
    gone.assert_called_once_with(line)


def test_asyncio_closes_connections_with_tls_and_those_of_strangers_when_the_peer_does(turns: Turns) -> None:
    line, _ = agent_at(Http(is_full=False), turns, Mock(), tls=object())
    assert not line.eof_received()
    stranger, _ = stranger_at(Http(is_full=False), turns, Mock())
    assert not stranger.eof_received()
    assert not turns and not line.is_closed


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_data_read_with_the_opening_needs_no_other_turn_unless_it_is_a_look(method: str, turns: Turns) -> None:
    http, held = Http(is_full=False), Mock()
    line = HttpConnection(lambda: http, "peer", bounds(turns, held), Mock(), Mock())
    head = f"{method} /v1/status HTTP/1.1\r\n\r\n".encode()
    line.received = 2 * head
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    line.connection_made(transport)
    if method == "GET":
        held.add.assert_called_once_with("peer", line, 2 * len(head))
        assert not http.received
        turns.pop()()
    else:
        held.add.assert_called_once_with("peer", line, len(head))  # the second call has its own turn
    assert http.received == head
    turns.pop()()
    assert http.received == 2 * head and not turns


@pytest.mark.parametrize(("is_whole", "counted"), [(True, 0), (False, 1)])
def test_memory_of_an_incomplete_request_counts_though_it_came_with_the_opening(
    is_whole: bool, counted: int, turns: Turns
) -> None:
    http, held = Http(is_full=False), Mock()
    http.is_whole = is_whole
    line = HttpConnection(lambda: http, "peer", bounds(turns, held), Mock(), Mock())
    line.received = REQUEST
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    line.connection_made(transport)
    assert http.received == REQUEST
    assert held.add.call_args_list == counted * [(("peer", line, len(REQUEST)),)]
