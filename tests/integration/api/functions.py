"""Functions that workers run. Each is for one aspect of a test."""

import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent import progress


@dataclass
class Point:
    x: int
    y: int


def add(one: Any, other: Any) -> Any:
    return one + other


def point(x: int, y: int) -> Point:
    return Point(x, y)


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def say(out: str, err: str) -> None:
    print(out)
    print(err, file=sys.stderr)


def say_by_every_way(word: str) -> None:
    """Print through Python, to the descriptor, and in a child. The last line has no end."""
    print(f"{word} python")
    os.write(1, f"{word} descriptor\n".encode())
    os.system(f"echo {word} child")
    print(f"{word} unfinished", end="")
    os._exit(0)


def place() -> dict[str, Any]:
    import asyncio  # imported here, because otherwise each worker's import would take as long as its start

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    return {
        "leads": os.getpid() == os.getsid(0) == os.getpgrp(),
        "main thread": threading.current_thread() is threading.main_thread(),
        "SIGTERM": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "loop": asyncio.run(answer()),
    }


def boom(text: str) -> None:
    raise ValueError(text)


def leave(code: Any) -> None:
    sys.exit(code)


def leave_at_once(code: int) -> None:
    os._exit(code)


def die(signum: int) -> None:
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def big(size: int) -> bytes:
    return b"x" * size


def unpicklable() -> Any:
    return threading.Lock()


def strange() -> Any:
    """Return an object of a class that exists only here."""

    class Inner:
        value = 7

    return Inner()


class Told:
    """A value that writes its worker's pid to a file when it is passed back."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        with open(self.path, "w") as file:
            file.write(f"{os.getpid()}\n")
        return str, ()


def return_first(path: str, failing: bool = False, seconds: float = 0.5) -> Any:
    """Rank 0 returns. The others fail, or return whether it ends within `seconds` while they work."""
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, lambda *_: None)
        progress(1)
        return Told(path)
    while not (pid := read(path).strip()):
        time.sleep(0.01)
    if failing:
        sys.exit(3)
    first = select.poll()
    first.register(os.pidfd_open(int(pid)), select.POLLIN)
    progress(kind="end")
    return bool(first.poll(seconds * 1000))


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def put(queue: Any, value: Any) -> None:
    queue.put(value)


def exit_upon(signum: int, path: str) -> None:
    """Exit 0 on this signal."""
    signal.signal(signum, lambda *_: sys.exit(0))
    report_and_wait(path)


def report_and_wait(path: str, ignored: tuple[int, ...] = ()) -> None:
    """Connect to a listener, send the pid, and exit when the connection closes or a signal comes."""
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)
    with report(path) as connection:
        while connection.recv(100):
            pass


def report(path: str) -> socket.socket:
    """Return a connection to a listener, on which this process has sent its pid."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{os.getpid()} {os.environ.get('RANK', '')}\n".encode())
    return connection


def crash_in_round(restarts: int, code: int = 4) -> int:
    """Rank 0 crashes `restarts` times. Then all ranks return the number of restarts."""
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if count < restarts and os.environ["RANK"] == "0":
        os._exit(code)
    return count


def rank() -> int:
    return int(os.environ["RANK"])


def ranks_and_sizes() -> tuple[int, int, int]:
    return int(os.environ["RANK"]), int(os.environ["GROUP_RANK"]), int(os.environ["WORLD_SIZE"])


def leave_a_child(path: str) -> None:
    """Return, and leave a process that saves when it is told to end."""
    ready, is_ready = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, lambda *_: (Path(path).write_text("saved"), os._exit(0)))
        os.write(is_ready, b".")
        while True:
            signal.pause()
    os.read(ready, 1)
