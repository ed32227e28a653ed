"""torch's file timer: workers set deadlines for parts of their own work, and the agent ends those that miss them.

`TORCHELASTIC_ENABLE_FILE_TIMER=1` asks for it, as under torchrun. torch's `FileTimerClient` in the worker writes a line
of JSON to the named pipe `TORCHELASTIC_TIMER_FILE` for each timer: version, pid, scope_id, expiration_time (the wall
clock's seconds since 1970; negative: the timer is released) and signal (0: only report that it has expired).
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct, json

from node_agent.output.threads import leave_to_thread
from node_agent.workers.environment import TIMER_FILE

READ_BYTES = 1 << 16
CInt = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Number that the kernel may be asked about; a larger one is an `OverflowError` there."""


class Request(Struct, frozen=True):
    """One line from a worker."""

    pid: CInt
    scope_id: str
    expiration_time: float
    signal: CInt


class FileTimer:
    """The agent's end of the pipe. `is_worker` says whether a process is one of this agent's, or a child of one."""

    def __init__(
        self,
        path: str,
        pipe: int,
        log: Callable[[str], None],
        is_worker: Callable[[int], bool],
        report: Callable[[int, str], None] | None = None,
    ) -> None:
        """`pipe`: descriptor from `open_pipe`.

        `report` takes the process and the sentence of a timer that is only reported.
        """
        self.path = path
        self._log = log
        self._is_worker = is_worker
        self._report = report
        self.killed: dict[int, str] = {}
        """Sentences about timers for which a signal was sent, by the process's id."""
        self._timers: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._rest = b""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self._read)

    def clear(self) -> None:
        """Forget all timers: the workers are gone."""
        self.killed.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        self.clear()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        leave_to_thread(partial(os.unlink, self.path))

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._pipe, READ_BYTES)).split(b"\n")
        for line in lines:
            try:
                self._take(json.decode(line, type=Request))
            except ValueError:
                self._log(f"{self.path}: not a timer request: {line[:80]!r}")

    def _take(self, request: Request) -> None:
        key = request.pid, request.scope_id
        if old := self._timers.pop(key, None):
            old.cancel()
        if request.expiration_time >= 0:
            left_s = request.expiration_time - time.time()
            self._timers[key] = self._loop.call_later(left_s, self._expire, request)

    def _expire(self, request: Request) -> None:
        del self._timers[request.pid, request.scope_id]
        if not self._is_worker(request.pid):
            return
        late = f"timer {request.scope_id[:200]!r} of process {request.pid} has expired"
        if request.signal <= 0:
            self._log(late)
            if self._report:
                self._report(request.pid, late)
            return
        from node_agent.failures.report import signal_name

        self._log(f"{late}: sending it {signal_name(-request.signal)}")
        try:
            os.kill(request.pid, request.signal)
            self.killed[request.pid] = late
        except OSError as error:
            self._log(f"cannot signal process {request.pid}: {error.strerror}")


def open_pipe(path: str) -> int:
    """Make the named pipe, and open it. Any thread may do so.

    Raises `OSError` with one line if something else stands there.
    """
    _make_fifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also a writer: it never ends


def _make_fifo(path: str) -> None:
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise FileExistsError(f"{TIMER_FILE}={path}: this is no named pipe, and is left alone; name another path")
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path, mode=0o600)
