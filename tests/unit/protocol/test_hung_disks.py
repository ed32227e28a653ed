"""A disk that hangs while a program starts."""

import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any, TypeVar

import pytest
from rdzv_protocol import hung_disks
from rdzv_protocol.words import disks

HUNG = ("/hung/script.py", "/hung/tmp")
PATIENCE_S = 30.0
T = TypeVar("T")


@pytest.fixture(autouse=True)
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let two paths hang for ever, and look at the disks at once. The others have answered before the wait begins."""
    look_at, start_thread = hung_disks._look, hung_disks.start_new_thread

    def look(path: str, look: LockType) -> None:
        if path not in HUNG:
            look_at(path, look)

    def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
        start_thread(function, args)
        if function is look and args[0] not in HUNG:
            with_patience(lambda: not args[1].locked())

    monkeypatch.setattr(hung_disks, "_look", look)
    monkeypatch.setattr(hung_disks, "start_new_thread", start)
    monkeypatch.setattr(hung_disks, "LOOK_S", 0.01)
    monkeypatch.setattr(hung_disks, "TOLD_AFTER_S", 0.01)
    yield
    hung_disks.end()


def with_patience(holds: Callable[[], T]) -> T:
    """Poll until the result is true, and return it. Fail if it never is."""
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.001)
    return found


def test_the_paths_of_a_disk_that_hangs_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"TMPDIR": HUNG[1], "HOME": "/hung/home"}
    hung_disks.begin("node-agent", lambda: ["--log-dir=/var", HUNG[0], "a/b"], environment)
    assert next_line(capfd) == f"node-agent: {disks.hang(HUNG)}\n"


def next_line(capfd: pytest.CaptureFixture[str]) -> str:
    """Wait for a line on stderr, and return it."""
    return with_patience(lambda: str(capfd.readouterr().err))


def test_a_long_command_line_does_not_start_a_thread_for_each_word(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[str, LockType]] = []
    monkeypatch.setattr(hung_disks, "start_new_thread", lambda look, args: looks.append(args))
    hung_disks._hung(f"/data/{number}" for number in range(1_000))
    assert len(looks) == hung_disks.MOST_LOOKS


def test_paths_on_disks_that_answer_are_not_named() -> None:
    assert hung_disks._hung(["/", "/nowhere", "a\0b"]) == []


def test_a_start_in_time_writes_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hung_disks, "TOLD_AFTER_S", PATIENCE_S)
    is_looked, may_look = Event(), allocate_lock()
    monkeypatch.setattr(hung_disks, "allocate_lock", lambda: may_look)
    monkeypatch.setattr(hung_disks, "_hung", lambda paths: is_looked.set())
    hung_disks.begin("node-agent", lambda: [HUNG[0]], {})
    hung_disks.end()
    with_patience(may_look.locked)  # the thread ends with the lock
    assert not is_looked.is_set() and capfd.readouterr().err == ""


def test_the_line_has_the_format_that_the_program_asks_for(capfd: pytest.CaptureFixture[str]) -> None:
    hung_disks.begin("rdzv-server", lambda: ["--log-format=json", "--token-file", HUNG[0]], {})
    assert '"level":"WARNING","program":"rdzv-server"' in next_line(capfd)
