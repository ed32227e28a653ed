"""Lower bounds for every launcher: start of interpreters, a packet there and back, an import of torch.

They are measured in the same turns as the launchers, and stand beside them in the table.
"""

import socket
import sys
import time
from functools import partial
from multiprocessing import get_context

from benchmarks import machine
from benchmarks.launchers import ADDRESS, Plan, torch_is_installed
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import Floor, Subject, once, take_turns
from benchmarks.stage import TORCH_WORKER, WORKER, Stage, last

REPEAT = 5
ROUND_TRIPS = 1_000
MESSAGE = b"x" * 200
"""Message of about the size of a poll."""


def bare(count: int) -> Floor:
    """Return the floor of a start: one bare interpreter for each worker, all at once, until the last first line."""
    return Floor(f"{count} bare worker{'s' * (count > 1)}", partial(_spawn, count, WORKER))


def bare_with_torch(count: int) -> Floor:
    return Floor(f"{count} × import torch", partial(_spawn, count, TORCH_WORKER))


def round_trip() -> Floor:
    """Return the floor of an exchange: a small message to another process and back, over loopback."""
    return Floor("TCP round trip", _round_trip)


def measure(plan: Plan) -> list[Row]:
    """Measure the floors on their own. Those of any other number of workers can be computed from them."""
    floors = [bare(1), round_trip(), *([bare_with_torch(1)] if torch_is_installed() else [])]
    subjects = [Subject(FLOOR + floor.name, once(floor.sample), min(plan.repeat, REPEAT)) for floor in floors]
    taken = take_turns(subjects, warm_up=True)
    return [
        Row(measurement=name.removeprefix(FLOOR), subject=name, unit="s", samples=each.samples, trouble=each.trouble)
        for name, each in taken.items()
    ]


def bare_memory_mb() -> float:
    """Return the peak memory of an interpreter that does nothing, in MB."""
    with Stage() as stage:
        began_s = time.monotonic()
        program = stage.start([sys.executable, "-u", *stage.worker], {"RANK": "0"})
        stage.first_lines(1, began_s)
        return machine.peak_rss_mb(program.pid)


def _spawn(count: int, script: str) -> float:
    with Stage(script) as stage:
        began_s = time.monotonic()
        for rank in range(count):
            stage.start([sys.executable, "-u", *stage.worker], {"RANK": str(rank)})
        return last(stage.first_lines(count, began_s)) - began_s


def _round_trip() -> float:
    with Stage(), socket.create_server((ADDRESS, 0)) as listener:
        get_context("fork").Process(target=_echo, args=(listener.getsockname(),)).start()
        line, _ = listener.accept()
        with line:
            _there_and_back(line)
            began_s = time.perf_counter()
            for _ in range(ROUND_TRIPS):
                _there_and_back(line)
            return (time.perf_counter() - began_s) / ROUND_TRIPS


def _echo(address: tuple[str, int]) -> None:
    """Send back at once what is received."""
    with socket.create_connection(address) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while message := line.recv(4096):
            line.sendall(message)


def _there_and_back(line: socket.socket) -> None:
    line.sendall(MESSAGE)
    line.recv(len(MESSAGE), socket.MSG_WAITALL)
