"""torch's file timer: workers set deadlines for parts of their own work, and the agent ends workers that miss them.

`TORCHELASTIC_ENABLE_FILE_TIMER=1` turns it on, as under torchrun. For each timer, torch's `FileTimerClient` in the
worker writes a line of JSON to the named pipe `TORCHELASTIC_TIMER_FILE`. Its fields are version, pid, scope_id,
expiration_time and signal. `expiration_time` is in wall-clock seconds since 1970; a negative one releases the timer.
With signal 0 the agent only reports that the timer has expired.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct, json
from msgspec.structs import replace
from rdzv_protocol.hang_sources import TIMER
from rdzv_protocol.messages import Assignment, Failure
from rdzv_protocol.text import clip, printable

from node_agent.features import words
from node_agent.features.hangs import Hangs
from node_agent.kernel.environment import TIMER_FILE
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.logs import OPENED_WITHIN_S
from node_agent.kernel.threads import in_thread, leave_to_thread
from node_agent.words import failures as failure_words

READ_BYTES = 1 << 16
LATE_S = 0.5
"""Seconds by which an expiry may be noticed late. If it is later, the agent did not run, and perhaps no worker did."""
CInt = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Number that the kernel accepts as a pid or signal. A larger one raises `OverflowError` there."""


class Request(Struct, frozen=True):
    """One line from a worker."""

    pid: CInt
    scope_id: str
    expiration_time: float
    signal: CInt


class WorkerTimers(Feature):
    """The file timer of an agent's workers, from the first round on. An expired timer is also a sign of a hang."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        given = kernel.config.environment.get(TIMER_FILE)
        self.path = given if given is not None else kernel.temp_dir.path("timer")
        self._own = {TIMER_FILE: self.path} if given is None else {}
        self._timer: FileTimer | None = None

    def variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        return self._own

    async def preparing(self, assignment: Assignment) -> None:
        if self._timer:
            return
        try:
            pipe = await in_thread(partial(open_pipe, self.path), OPENED_WITHIN_S, os.close)
        except OSError as error:
            self.kernel.console.log(words.no_timer(str(error)))
        else:
            report = self.expired if self.kernel.config.options(Hangs).is_on else None
            self._timer = FileTimer(self.path, pipe, self.kernel.console.log, self._is_worker, report)

    def explained(self, failure: Failure) -> Failure:
        late = self._timer.killed.get(failure.pid) if self._timer else None
        if not late:
            return failure
        from node_agent.kernel.failures.diagnose import LINE_BYTES, exit_status

        cause = failure_words.with_meaning(exit_status(failure.exit_code).status, late)
        return replace(failure, cause=clip(printable(cause), LINE_BYTES), hint=words.TIMER_EXPIRED)

    def stopped(self) -> None:
        if self._timer:
            self._timer.clear()

    async def close(self) -> None:
        if self._timer:
            self._timer.close()

    def expired(self, pid: int, reason: str) -> None:
        """Report that the worker of this process may hang because its timer has expired, unless it has ended."""
        from node_agent.features.hangs.feature import suspect
        from node_agent.features.hangs.suspicion import Suspicion

        if (local_rank := self._local_rank(pid)) is not None:
            suspect(self.kernel, Suspicion(TIMER, reason, (local_rank,)))

    def _is_worker(self, pid: int) -> bool:
        return self._local_rank(pid) is not None

    def _local_rank(self, pid: int) -> int | None:
        """Return the local rank of the worker that this process is or whose session it is in, None if the process is
        gone.
        """
        try:
            leader = os.getsid(pid)
        except ProcessLookupError:
            return None
        return next((local_rank for local_rank, worker in self.kernel.workers().items() if worker == leader), None)


class FileTimer:
    """The agent's end of the pipe. `is_worker`: returns whether a process is a worker of this agent or a worker's
    child.
    """

    def __init__(
        self,
        path: str,
        pipe: int,
        log: Callable[[str], None],
        is_worker: Callable[[int], bool],
        report: Callable[[int, str], None] | None = None,
    ) -> None:
        """`pipe`: descriptor from `open_pipe`.

        `report` is called with the process and the sentence of a timer that is only reported.
        """
        self.path = path
        self._log = log
        self._is_worker = is_worker
        self._report = report
        self.killed: dict[int, str] = {}
        """Sentences about timers whose expiry sent a signal, by the process's id."""
        self._timers: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._rest = b""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self._read)

    def clear(self) -> None:
        """Forget all timers, because the workers have ended."""
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
                self._log(words.no_timer_request(self.path, line))

    def _take(self, request: Request) -> None:
        key = request.pid, request.scope_id
        if old := self._timers.pop(key, None):
            old.cancel()
        if request.expiration_time >= 0:
            self._arm(request, self._loop.time() + max(0.0, request.expiration_time - time.time()))

    def _arm(self, request: Request, at: float) -> None:
        self._timers[request.pid, request.scope_id] = self._loop.call_at(at, self._expire, request, at)

    def _expire(self, request: Request, due_at: float) -> None:
        """Act on an expired timer. If the whole machine stood still, the worker gets that time on top."""
        now = self._loop.time()
        if now > due_at + LATE_S:
            self._arm(request, now + (now - due_at))
            return
        del self._timers[request.pid, request.scope_id]
        if not self._is_worker(request.pid):
            return
        late = words.timer_expired(request.scope_id, request.pid)
        if request.signal <= 0:
            self._log(late)
            if self._report:
                self._report(request.pid, late)
            return
        from node_agent.kernel.failures.report import signal_name

        self._log(words.timer_signals(request.scope_id, request.pid, signal_name(-request.signal)))
        try:
            os.kill(request.pid, request.signal)
            self.killed[request.pid] = late
        except OSError as error:
            self._log(words.timer_cannot_signal(request.pid, error.strerror or str(error)))


def open_pipe(path: str) -> int:
    """Make the named pipe, and open it. Any thread may call this.

    Raises `OSError` with one line if another kind of file exists there.
    """
    _make_fifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # also as a writer, so that the pipe never ends


def _make_fifo(path: str) -> None:
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise FileExistsError(words.no_pipe(TIMER_FILE, path))
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path, mode=0o600)
