"""Messages to a service manager: its variables, and a real socket of its kind."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rdzv_protocol.service_manager import ServiceManager, passed_sockets

OWN, OTHER = "own", "1"
"""Process ids. The first one means this process."""
Socket = tuple[socket.socket, str]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Socket]:
    """A manager's socket, and its name in NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@rdzv-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bound:
        bound.bind(name.replace("@", "\0"))
        yield bound, name


def heard(bound: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(bound.recv(4096).decode())
        except BlockingIOError:
            return messages


class Loop:
    """An event loop that calls back when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: object) -> None:
        self.calls.append((delay_s, function, arguments))

    def turn(self) -> float:
        """Make the one call that is due, and return how long it has waited."""
        ((delay_s, function, arguments),), self.calls = self.calls, []
        function(*arguments)
        return delay_s


def test_a_status_of_several_lines_does_not_become_another_field(manager: Socket) -> None:
    """Reasons contain text from scripts and operators. None of it may make the service ready."""
    bound, name = manager
    service = ServiceManager.of({"NOTIFY_SOCKET": name})
    assert service
    service.status("run r failed: boom\nREADY=1\r\nMAINPID=1")
    ((message),) = heard(bound)
    assert message.startswith("STATUS=run r failed: boom") and not set(message) & {"\n", "\r"}


def test_the_service_manager_gets_each_state_once(manager: Socket) -> None:
    bound, name = manager
    service = ServiceManager.of(environment := {"NOTIFY_SOCKET": name, "PATH": "/bin"})
    assert service and environment == {"PATH": "/bin"}
    for _ in range(2):
        service.ready()
        service.status("1 run")
        service.stopping(2.5)
    assert heard(bound) == ["READY=1", "STATUS=1 run", "STOPPING=1\nEXTEND_TIMEOUT_USEC=2500000"]


def test_the_watchdog_is_fed_only_by_callbacks_of_the_event_loop(manager: Socket) -> None:
    bound, name = manager
    service = ServiceManager.of({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
    assert service
    loop, statuses = Loop(), iter(["no runs", "1 run", "1 run"])
    service.watch(loop.call_later, lambda: next(statuses))
    assert heard(bound) == ["WATCHDOG=1", "STATUS=no runs"]
    assert heard(bound) == []
    assert loop.turn() < 30 / 2
    assert heard(bound) == ["WATCHDOG=1", "STATUS=1 run"]
    loop.turn()
    assert heard(bound) == ["WATCHDOG=1"]


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": OTHER}])
def test_a_program_without_a_watchdog_does_not_send_signs_of_life(manager: Socket, watchdog: dict[str, str]) -> None:
    bound, name = manager
    service = ServiceManager.of({"NOTIFY_SOCKET": name, **watchdog})
    assert service
    service.watch(Loop().call_later)
    assert heard(bound) == []


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_without_a_valid_address_there_is_no_service_manager(address: str) -> None:
    assert ServiceManager.of({"NOTIFY_SOCKET": address}) is None


def test_a_missing_service_manager_is_ignored(tmp_path: Path) -> None:
    service = ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "absent")})
    assert service
    service.ready()


@pytest.mark.parametrize(
    ("pid", "count", "sockets"),
    [(OWN, "1", 1), (OWN, "2", 2), (OTHER, "1", 0), (OWN, "", 0), (OWN, "-1", 0), (OWN, "all", 0), ("", "1", 0)],
)
def test_sockets_are_counted_that_were_passed_to_this_process(pid: str, count: str, sockets: int) -> None:
    pid = pid.replace(OWN, str(os.getpid()))
    environment = {"LISTEN_PID": pid, "LISTEN_FDS": count, "LISTEN_FDNAMES": "port", "PATH": "/bin"}
    assert passed_sockets(environment) == sockets
    assert environment == {"PATH": "/bin"}
