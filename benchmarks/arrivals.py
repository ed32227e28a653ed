"""Where workers say that they have come to their first line."""

import os
import socket
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstLine:
    """A worker's first statement. `at_s` is CLOCK_MONOTONIC."""

    rank: int
    pid: int
    at_s: float


class Arrivals:
    """A datagram socket in `folder`; its `path` is the argument of every worker."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "arrivals")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)

    def close(self) -> None:
        self._socket.close()

    def gather(self, ranks: int, since_s: float, timeout_s: float, settle_s: float = 0.0) -> dict[int, FirstLine]:
        """The newest first line after `since_s` of each rank, once none has followed for `settle_s`.

        A launcher that restarts its workers twice is thereby timed to those that stay. Raises `TimeoutError`.
        """
        found: dict[int, FirstLine] = {}
        deadline_s = since_s + timeout_s
        while True:
            complete = len(found) == ranks
            line = self._next(time.monotonic() + settle_s if complete else deadline_s)
            if line and line.at_s > since_s:
                found[line.rank] = line
            elif not line and complete:
                return found
            elif not line:
                raise TimeoutError(f"{len(found)} of {ranks} workers came to their first line in {timeout_s:g} s")

    def _next(self, until_s: float) -> FirstLine | None:
        self._socket.settimeout(max(until_s - time.monotonic(), 1e-6))
        try:
            rank, pid, at_ns = map(int, self._socket.recv(64).split())
        except TimeoutError:
            return None
        return FirstLine(rank, pid, at_ns / 1e9)


def last(lines: dict[int, FirstLine]) -> float:
    """When the slowest of them came."""
    return max(line.at_s for line in lines.values())
