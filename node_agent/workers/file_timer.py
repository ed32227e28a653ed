"""torch's file timer: workers set deadlines for parts of their own work, and the agent ends those that miss them.

`TORCHELASTIC_ENABLE_FILE_TIMER=1` asks for it, as under torchrun. torch's `FileTimerClient` in the worker writes a line
of JSON to the named pipe `TORCHELASTIC_TIMER_FILE` for each timer: version, pid, scope_id, expiration_time (the wall
clock's seconds since 1970; negative: the timer is released) and signal (0: only report that it has expired).
"""

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from node_agent.workers.environment import TIMER_FILE

READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """One line from a worker."""

    pid: int
    scope: str
    expires_at: float
    """Wall clock; negative for a release."""
    signum: int


class FileTimer:
    """The agent's end of the pipe. `is_worker` says whether a process is one of this agent's, or a child of one."""

    def __init__(self, path: str, log: Callable[[str], None], is_worker: Callable[[int], bool]) -> None:
        """Make the pipe. Raises `OSError` with one line if something else stands there."""
        self.path = path
        self._log = log
        self._is_worker = is_worker
        self._timers: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._rest = b""
        _make_fifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also a writer: it never ends
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self._read)

    def clear(self) -> None:
        """The workers are gone, and their timers with them."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        self.clear()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._pipe, READ_BYTES)).split(b"\n")
        for line in lines:
            try:
                self._take(_parse(line))
            except (ValueError, KeyError, TypeError):
                self._log(f"{self.path}: not a timer request: {line[:80]!r}")

    def _take(self, request: Request) -> None:
        key = (request.pid, request.scope)
        if old := self._timers.pop(key, None):
            old.cancel()
        if request.expires_at >= 0:
            left_s = max(0.0, request.expires_at - time.time())
            self._timers[key] = self._loop.call_later(left_s, self._expire, request)

    def _expire(self, request: Request) -> None:
        del self._timers[request.pid, request.scope]
        if not self._is_worker(request.pid):
            return
        late = f"timer {request.scope[:200]!r} of process {request.pid} has expired"
        if request.signum <= 0:
            self._log(late)
            return
        self._log(f"{late}: sending it {_name(request.signum)}")
        try:
            os.kill(request.pid, request.signum)
        except OSError as error:
            self._log(f"cannot signal process {request.pid}: {error.strerror}")


def _make_fifo(path: str) -> None:
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise FileExistsError(f"{TIMER_FILE}={path}: this is no named pipe, and is left alone; name another path")
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path, mode=0o600)


def _parse(line: bytes) -> Request:
    import json

    fields = json.loads(line)
    return Request(int(fields["pid"]), str(fields["scope_id"]), float(fields["expiration_time"]), int(fields["signal"]))


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
