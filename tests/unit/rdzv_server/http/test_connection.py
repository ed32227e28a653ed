"""Reading from a peer: no more than is passed on in its turn, and not while aiohttp wants none."""

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from rdzv_server.http import connection
from rdzv_server.http.connection import MOST_WAITING, HttpConnection

REQUEST = b"POST /v1/agent/poll HTTP/1.1\r\n"


class Http(asyncio.Protocol):
    """aiohttp's protocol, which has been passed data, and may have stopped reading."""

    def __init__(self, is_full: bool) -> None:
        self.received = b""
        self._reading_paused = is_full

    def data_received(self, data: bytes) -> None:
        self.received += data


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Calls that wait for their turn."""
    waiting: list[Callable[[], None]] = []
    scheduler = Mock(ask=lambda of, do: waiting.append(do))
    for name in ("scheduler", "operator_scheduler"):
        monkeypatch.setattr(connection, name, lambda: scheduler)
    return waiting


@pytest.mark.parametrize("is_full", [False, True])
def test_reading_goes_on_when_there_is_room_unless_aiohttp_has_stopped_it(
    is_full: bool, turns: list[Callable[[], None]]
) -> None:
    http, transport = Http(is_full), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    line = HttpConnection(http, "peer", Mock(), Mock(), Mock(), Mock(), Mock())
    line.connection_made(transport)
    for _ in range(MOST_WAITING):
        assert not transport.pause_reading.called
        line.data_received(REQUEST)
    assert transport.pause_reading.called and not transport.resume_reading.called
    while turns:
        turns.pop(0)()
    assert http.received == MOST_WAITING * REQUEST
    assert transport.resume_reading.called is not is_full
