"""A worker without torch: reports to the test's hub, then carries out its orders, line by line.

Tests start thousands of them, so it imports a module that few orders need only for those orders. It uses the C parts of
`socket` and `json`, which import neither `enum` nor `re`.
"""

import os
import sys
import time
from _json import encode_basestring_ascii as quoted
from _socket import AF_UNIX, socket

import node_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

CLONE, CLONE_VFORK = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, 0), 0x4000
DOUBLE_FORK = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"


class Hub:
    """This worker's connection to the hub of its test."""

    def __init__(self) -> None:
        self._socket = socket(AF_UNIX)
        self._socket.connect(os.environ["TEST_WORKER_HUB"])
        self.orders = open(self._socket.fileno(), closefd=False)  # noqa: SIM115

    def tell(self, line: str) -> None:
        self._socket.sendall(f"{line}\n".encode())


def report() -> Hub:
    """Connect to the hub, and send this worker's identity."""
    hub = Hub()
    argv, env = map(quoted, sys.argv[1:]), (f"{quoted(name)}:{quoted(value)}" for name, value in os.environ.items())
    hub.tell(f'{{"pid":{os.getpid()},"argv":[{",".join(argv)}],"env":{{{",".join(env)}}}}}')
    return hub


def fork(argument: str) -> int:
    import signal

    child = os.fork()
    if child == 0:
        signal.pause()
    return child


def ignore(name: str) -> None:
    import signal

    signal.signal(getattr(signal, name), signal.SIG_IGN)


def heed(argument: str) -> None:
    """Exit at the given signal: with the given code, else with 0."""
    import signal

    name, *code = argument.split()
    signal.signal(getattr(signal, name), lambda *_: sys.exit(int(*code)))


def save(path: str) -> None:
    """Write a checkpoint to `path` at SIGTERM, until PATH.end exists. Then exit 0."""
    import signal

    def saves(*_: object) -> None:
        with open(path, "w") as file:
            file.write("saved")
        while not os.path.exists(f"{path}.end"):
            time.sleep(0.01)
        sys.exit(0)

    signal.signal(signal.SIGTERM, saves)


def sleep_uninterruptibly(_: str) -> None:
    """Wait in the kernel, in state D, for a child that neither ends nor executes anything: as after vfork(2)."""
    import ctypes
    import signal

    if ctypes.CDLL(None).syscall(CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True:
            signal.pause()


def progress(argument: str) -> None:
    """Report a step to the agent, perhaps of a given kind."""
    from node_agent import progress

    step, *kind = argument.split()
    progress(int(step), *kind)


def become(user: str) -> None:
    """Drop root's rights. Modules in root's home cannot be imported afterwards."""
    from importlib import import_module

    import_module("node_agent.in_worker")
    os.setgroups([])
    os.setresuid(*[int(user)] * 3)


def await_notice(_: str) -> str:
    """Wait until the agent gives a notice. Return its source, its node and whether time is left."""
    while (notice := node_agent.notice()) is None:
        time.sleep(0.01)
    return f"{notice.source} {notice.node_id} {notice.remaining_s > 0}"


ORDERS: "Mapping[str, Callable[[str], Any]]" = {
    "exit": lambda code: sys.exit(int(code)),
    "say": lambda text: print(text, flush=True),
    "complain": lambda text: print(text, file=sys.stderr, flush=True),
    "ignore": ignore,
    "heed": heed,
    "save": save,
    "progress": progress,
    "become": become,
    "sleep-uninterruptibly": sleep_uninterruptibly,
    "unset": lambda name: os.environ.pop(name) and None,
    "fork": fork,
    "daemon": lambda _: os.posix_spawnp("sleep", ["sleep", "1000"], os.environ, setsid=True),
    "shell": lambda command: os.popen(command).read(),
    "double-fork": lambda _: os.popen(DOUBLE_FORK).read(),
    "listen": lambda _: str(node_agent.notice()),
    "await-notice": await_notice,
    "acknowledge": lambda _: node_agent.acknowledge(),
    "close": lambda _: os.closerange(1, 3),
}
"""Functions that carry out orders, by an order's first word. They take the rest of it and may return an answer."""


def obey(hub: Hub, orders: "Mapping[str, Callable[[str], Any]]" = ORDERS) -> None:
    for line in hub.orders:
        order, _, argument = line.strip().partition(" ")
        answer = orders[order](argument)
        hub.tell(f"done {argument if answer is None else str(answer).strip()}")


if __name__ == "__main__":
    obey(report())
