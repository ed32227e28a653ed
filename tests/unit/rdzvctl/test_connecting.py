"""Connections to a name with several addresses, some of which do not answer."""

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from rdzvctl import connecting
from tests.support.programs import PATIENCE_S

Answer = Callable[..., list[tuple[object, ...]]]


def answering(*ports: int) -> Answer:
    """Return a resolver that knows these ports of this machine as the addresses of every name."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]
    return lambda *_, **__: found


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that does not answer attempts to connect: its queue is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        opened.enter_context(socket.create_connection(listener.getsockname()))
        yield listener.getsockname()[1]


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that refuses each attempt."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def good() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("first", ["silent", "refusing"])
def test_the_next_address_does_not_wait_for_the_one_before(
    first: str, good: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering(request.getfixturevalue(first), good))
    began = time.monotonic()
    with connecting.connected("name", 1, PATIENCE_S) as connection:
        assert connection.getpeername()[1] == good and connection.gettimeout() == PATIENCE_S
    assert time.monotonic() - began < PATIENCE_S


def test_an_address_of_a_family_that_this_machine_lacks_does_not_hide_the_others(
    good: int, refusing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacked, (known,) = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 1, 0, 0)), answering(good)()
    make = socket.socket

    def without_ipv6(family: int = -1, *rest: int, **more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacked, known])
    with connecting.connected("name", 1, PATIENCE_S) as connection:
        assert connection.getpeername()[1] == good
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*answering(refusing)(), lacked])
    with pytest.raises(ConnectionRefusedError):
        connecting.connected("name", 1, PATIENCE_S)


def test_if_no_address_answers_the_error_says_why(silent: int, refusing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering(refusing, refusing))
    with pytest.raises(ConnectionRefusedError):
        connecting.connected("name", 1, PATIENCE_S)
    monkeypatch.setattr(socket, "getaddrinfo", answering(silent, refusing))
    with pytest.raises(TimeoutError):
        connecting.connected("name", 1, 2 * connecting.HEAD_START_S)
    monkeypatch.setattr(socket, "getaddrinfo", answering())
    with pytest.raises(OSError):
        connecting.connected("name", 1, PATIENCE_S)


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(socket.gaierror):
        connecting.connected("name", 1, PATIENCE_S)


def test_ctrl_c_ends_the_wait_for_a_silent_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver cannot be interrupted, so it does not run in the main thread."""
    looking_up, released = list[threading.Thread](), threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        looking_up.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)
        released.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(KeyboardInterrupt):
        connecting.connected("name", 1, PATIENCE_S)
    released.set()
    (thread,) = looking_up
    assert thread is not threading.main_thread()
    thread.join()
