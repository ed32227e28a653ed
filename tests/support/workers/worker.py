"""A worker without torch: reports to the test's hub, then carries out its orders, line by line.

Tests start more than a thousand of them, so a module that few orders need is imported only for those.
"""

import json
import os
import signal
import socket
import sys
import time

import node_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TextIO

CLONE, CLONE_VFORK = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, 0), 0x4000
DOUBLE_FORK = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"


def report() -> "TextIO":
    """Connect to the hub, and send this worker's identity."""
    hub = socket.socket(socket.AF_UNIX)
    hub.connect(os.environ["TEST_WORKER_HUB"])
    hub.sendall((json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}) + "\n").encode())
    return hub.makefile("rw")


def fork(argument: str) -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
    return child


def heed(argument: str) -> None:
    """Exit at the given signal: with the given code, else with 0."""
    name, *code = argument.split()
    signal.signal(getattr(signal, name), lambda *_: sys.exit(int(*code)))


def save(path: str) -> None:
    """Write a checkpoint to `path` at SIGTERM, until PATH.end exists. Then exit 0."""

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

    if ctypes.CDLL(None).syscall(CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True:
            signal.pause()


def progress(argument: str) -> None:
    """Report a step to the agent, perhaps of a given kind."""
    from node_agent import progress

    step, *kind = argument.split()
    progress(int(step), *kind)


def await_notice(_: str) -> str:
    """Wait until the agent gives a notice. Return its source, its node and whether time is left."""
    while (notice := node_agent.notice()) is None:
        time.sleep(0.01)
    return f"{notice.source} {notice.node_id} {notice.remaining_s > 0}"


ORDERS: "Mapping[str, Callable[[str], Any]]" = {
    "exit": lambda code: sys.exit(int(code)),
    "say": lambda text: print(text, flush=True),
    "complain": lambda text: print(text, file=sys.stderr, flush=True),
    "ignore": lambda name: signal.signal(getattr(signal, name), signal.SIG_IGN) and None,
    "heed": heed,
    "save": save,
    "progress": progress,
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


def obey(hub: "TextIO", orders: "Mapping[str, Callable[[str], Any]]" = ORDERS) -> None:
    for line in hub:
        order, _, argument = line.strip().partition(" ")
        answer = orders[order](argument)
        hub.write(f"done {argument if answer is None else str(answer).strip()}\n")
        hub.flush()


if __name__ == "__main__":
    obey(report())
