"""The local worker group: starts, watches and stops workers.

Each worker leads its own session and process group, so that a signal to the group also reaches its children. The agent
watches a worker's exit through a descriptor, without polling. The kernel kills the worker when the agent dies
(PR_SET_PDEATHSIG).
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.messages import Failure

from node_agent import words
from node_agent.kernel.config import SIDE_BY_SIDE
from node_agent.kernel.core.machine import CAUSE_TIMEOUT_S, NOT_STARTED
from node_agent.kernel.output.pieces import End, UnreadTail
from node_agent.kernel.output.streams import Stream
from node_agent.kernel.processes.leftovers import Leftovers, ListLeftovers, in_session, is_program
from node_agent.kernel.processes.process import (
    KILL_TIMEOUT_S,
    CommandProcess,
    Process,
    has_used_up_cpu_time,
    signal_group,
)
from node_agent.kernel.processes.signalling import SignalledProcesses, may_exit_on, remaining_signalled_after_s, wrapped
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from node_agent.kernel.failures.diagnose import LeftOnDisk
    from node_agent.kernel.failures.oom import OomWatch
    from node_agent.kernel.failures.recorded_causes import Observed

UNCAUGHT_MARK = "[rank"
"""Beginning of the lines with which torch writes an uncaught exception."""
IN_THREAD = "Exception in thread "
"""Beginning of the line with which Python begins the traceback of an exception that has ended a thread."""
LEFT_S = 3.0
"""Seconds from SIGTERM to SIGKILL for the remaining processes of a worker that has ended by itself."""
SIGNAL_IN_EXIT_CODE = 128
"""Number that a shell adds to the number of the signal that has killed its program, to make its own exit code."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals with which a program ends because of an error of its own."""
READ_WITHIN_S = 5.0
"""Most seconds that the end of a worker waits for its files on a disk."""
FULL_WITHIN_S = 2.0
"""Most seconds that the end of a worker waits to learn whether the node's own disks are full."""
CHECK_INTERVAL_S = 1.0
"""Seconds between two checks whether a writing worker handles signals, and before the first check of a copy of another
process."""
HELD_SHARE = 0.02
"""Part of a worker's age for which the group holds its success if no look has seen a handler, `CAUSE_TIMEOUT_S` at
most."""
LOOKS_S = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Ages of workers, in seconds, at which they are checked although the agent is idle. Each is twice the one before, so a
handler that a silent worker has installed is seen before the worker is twice as old."""


class Worker:
    """A worker that was started, until its end: call `wait_until_started` before all other methods.

    `spares` is called with the worker's pid after its exit, before another process can get that pid. It returns whether
    the rest of the worker's group may continue. `on_end` is called when the worker has been reaped. `matters` returns
    whether the reason for its exit is of interest. If so, the evidence is read from the disk. `signals`: see
    `may_get_signal`.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        streams: tuple[Stream, Stream],
        process: Process,
        on_end: Callable[["Worker"], None],
        spares: Callable[[int], bool],
        matters: Callable[[], bool],
        signals: Collection[int],
    ) -> None:
        self.spec, self.pid = spec, process.pid
        self._streams, self._process = streams, process
        self._spares, self._on_end, self._matters, self._signals = spares, on_end, matters, signals
        self._began_at = asyncio.get_running_loop().time()
        self.exit_code: int | None = None
        """Exit code, negative for a signal; None while the worker runs."""
        self.ended_at: float | None = None
        """Time, by the event loop's clock, at which the worker was seen to have ended."""
        self.may_get_signal = False
        """Whether the worker, or a program that it wraps, was seen to handle one of the signals. It may then exit 0
        because of that signal."""
        self._is_unsure = False
        """Whether it blocked all signals at the last look. If it does so twice, it does not just start a program."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._left: tuple[LeftOnDisk, ...] = ()
        """Evidence from the disk, once it has been read."""
        self._has_used_up_cpu_time = False
        self._ending: set[asyncio.Task[None]] = set()

    async def wait_until_examined(self) -> None:
        """Wait until the disk has been read, if the process has exited."""
        if self._ending:
            await asyncio.wait(self._ending)

    @property
    def held_s(self) -> float:
        """Seconds for which an exit code of 0 does not count yet, because a signal may have caused it.

        A look may have missed a handler: the worker is new, or handles only SIGINT, or its wrapper is in Python. So an
        unseen handler counts, too, but only for a short part of the worker's age.
        """
        if self.may_get_signal or self.ended_at is None:
            return CAUSE_TIMEOUT_S
        return min(HELD_SHARE * (self.ended_at - self._began_at), CAUSE_TIMEOUT_S)

    @property
    def last_output_at(self) -> float:
        """Time of the worker's last output by the event loop's clock, 0 if there was none."""
        return max(stream.last_read_at or 0.0 for stream in self._streams)

    @property
    def last_stderr_at(self) -> float | None:
        """Time of the last line of `stderr_tail`, None if it is unknown how long the worker has been silent."""
        if not all(stream.is_pipe for stream in self._streams):
            return None
        return self.last_output_at if self.has_both_streams else self._streams[1].last_read_at

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """Last lines that the worker wrote to stderr, empty while it writes to a file."""
        return self._streams[1].tail()

    @property
    def marked_at(self) -> float | None:
        """Time, by the event loop's clock, at which the last exception in `stderr_tail` was read that torch has marked;
        None if there was none.
        """
        return self._streams[1].marked_at

    @property
    def unread_stderr(self) -> UnreadTail | None:
        """Last lines on stderr if the worker, which runs, writes it to a file."""
        return self._streams[1].unread_tail()

    @property
    def executes_program(self) -> bool:
        """Whether the worker executes a program, and is no copy of a process that may have handlers of its own."""
        return isinstance(self._process, CommandProcess)

    def look(self) -> None:
        """Check whether the worker handles signals. Python restores the defaults before it exits."""
        if self._signals and not self.may_get_signal:
            found = may_exit_on(self._signals, self.pid)
            self.may_get_signal = self._is_unsure if found is None else found
            self._is_unsure = found is None

    def wait_until_started(self) -> None:
        """Return when the worker executes its program, and watch it. Raises `OSError` if that fails: there is no worker
        then.
        """
        try:
            self._process.wait_until_started()
        except BaseException:
            self._finish()
            raise
        try:
            for stream in self._streams:
                stream.on_output = self._look_soon
                stream.started()
            asyncio.get_running_loop().add_reader(self._process.fileno(), self._reap)
        except BaseException:  # a worker that cannot be watched
            signal_group(self.pid, signal.SIGKILL)
            self._process.reap()
            self._finish()
            raise

    def raised(self, *, is_recent: bool = False) -> Failure | None:
        """Return the failure of the running worker if its stderr shows that an exception of its own has ended its
        script, else None. `is_recent`: see `find_error`.
        """
        tail = self.stderr_tail
        if not any(line.startswith(UNCAUGHT_MARK) for line in tail):
            return None
        from node_agent.kernel.failures.diagnose import raised

        failure = raised(self.spec, self.pid, tail, is_recent=is_recent)
        return failure and replace(failure, both_streams=self.has_both_streams)

    def reported_error(self) -> str:
        """Return the exception by which the worker's stderr shows that its script, or a thread that the script started,
        has ended; empty if there is none. Valid once it has exited 0.
        """
        if raised := self.raised():
            return raised.error
        tail = self.stderr_tail
        if not any(IN_THREAD in line for line in tail):
            return ""
        from node_agent.kernel.failures.diagnose import lost_thread

        return lost_thread(tail)

    @property
    def has_both_streams(self) -> bool:
        """Whether `stderr_tail` has the lines of both streams."""
        return self._streams[1].has_both

    def failure(self, oom: "OomWatch | None" = None) -> Failure:
        """Return the worker's failure with its evidence. Valid once it has exited."""
        from node_agent.kernel.failures.diagnose import examine

        assert self.exit_code is not None
        failure = examine(
            self.spec, self.pid, self.exit_code, self.stderr_tail, oom, *self._left,
            has_used_up_cpu_time=self._has_used_up_cpu_time,
        )  # fmt: skip
        return replace(failure, both_streams=self.has_both_streams)

    def _look_soon(self) -> None:
        """Check now unless the last check was a moment ago, and once more in a moment."""
        if not self._look_timer and not self.may_get_signal and self.exit_code is None:
            self.look()
            self._look_timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        self._look_timer = None
        self.look()

    def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        self.ended_at = loop.time()
        loop.remove_reader(self._process.fileno())
        self.look()
        if self._look_timer:
            self._look_timer.cancel()
        self._has_used_up_cpu_time = has_used_up_cpu_time(self.pid)
        is_spared = self._spares(self.pid)
        if not is_spared:
            signal_group(self.pid, signal.SIGKILL)  # before the wait, while no other group can have its id
        error_file = self.spec.error_file if self._matters() and self.has_failed() else ""
        self._when_read(lambda: self._reaped(is_spared), error_file, is_last=not is_spared)

    def has_failed(self) -> bool:
        """Return whether the worker, which has not been reaped, has ended otherwise than with an exit code of 0."""
        with suppress(ChildProcessError):
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return status is None or status.si_status != 0
        return True

    def _reaped(self, is_spared: bool) -> None:
        self.exit_code = self._process.reap()
        if is_spared:
            for stream in self._streams:
                stream.catch_up()
        else:
            self._finish()
        self._on_end(self)

    def close(self) -> None:
        """Close the streams of an ended worker. Later output of its children is lost."""
        self._when_read(self._finish, is_last=True)

    def _finish(self) -> None:
        for stream in self._streams:
            stream.finish()

    def _when_read(self, then: Callable[[], None], error_file: str = "", *, is_last: bool) -> None:
        """Call `then` when the ends of the worker's files have been read, at once if there are none."""
        ends = [(stream, end) for stream in self._streams if (end := stream.end(self.pid))]
        if not ends and not error_file:
            then()
            return

        def read() -> "LeftOnDisk | None":
            for _, end in ends:
                end.read()
            from node_agent.kernel.failures.diagnose import look_at_disk

            return look_at_disk(error_file, [end for _, end in ends]) if error_file else None

        async def read_and_finish() -> None:
            try:
                left = await in_thread(read, READ_WITHIN_S)
            except OSError as error:
                from node_agent.kernel.failures.diagnose import unread

                left = unread(error) if error_file else None
                for at, (stream, _) in enumerate(ends):
                    ends[at] = stream, End(-1, 0).unread(error)  # the thread still uses the other one
            if left:
                self._left = (left._replace(is_node_full=await _is_node_full()),)
            for stream, end in ends:
                stream.ended(end, is_last=is_last)
            then()

        spawn(read_and_finish(), self._ending)


class KilledLate(Struct, frozen=True):
    """Workers that were killed because they had not ended within their grace."""

    ranks: list[int]
    """Global ranks, sorted."""
    signal_name: str
    """First signal that they got."""
    within_s: float
    """Seconds from this signal to the kill, rounded to tenths."""


class ProcessGroup:
    """Processes that are stopped together. Derived classes define what their ends mean."""

    def __init__(self, leftovers: ListLeftovers | None = None) -> None:
        """`leftovers`: returns the processes that workers have left behind, if this process adopts them.

        If it is None, the processes left in the workers' sessions count. All of them get time to end.
        """
        self._alive: dict[int, Worker] = {}
        """Workers that have not exited, by pid, in the order of the local ranks."""
        self._leftovers = leftovers
        self._stopping = self._killed = False
        self._stop_signal, self._stops_at = 0, 0.0
        self._first_stop = 0, 0.0
        """First signal to the workers, and its time."""
        self._killed_late: list[int] = []
        """Ranks of workers that the kill at the end of the grace has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._last_call: asyncio.TimerHandle | None = None
        self._sent = SignalledProcesses()
        self._remains: list[Leftovers] = []
        self._exited_pids: set[int] = set()
        """Pids of workers that have exited. The ends of some may not be examined yet."""
        self._spared: list[Worker] = []
        """Workers that have ended and whose children may still write."""

    def stop(self, signum: int, grace_s: float) -> None:
        """Signal every worker, and SIGKILL the remaining processes after `grace_s` seconds. May be repeated before."""
        if self._killed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._stopping:
            self._first_stop, self._killed_late = (signum, now), []
        self._stopping = True
        self._stop_signal, self._stops_at = signum, now + grace_s
        adopted = self._adopted()
        for pid in self._alive:
            self._sent.signal(pid, signum, adopted)
        self._cancel_last_call()
        if self._is_empty():
            loop.call_soon(self._finish_stop)
        else:
            self._after(grace_s, self._kill)
            self._last_call = loop.call_later(remaining_signalled_after_s(grace_s), self._signal_remaining)

    @property
    def killed_late(self) -> KilledLate | None:
        """Workers whose grace ran out and that SIGKILL has ended, None if there are none. Valid when all have stopped.

        Without the workers that were killed at once, and those that survived.
        """
        if not self._killed_late:
            return None
        signum, began_at = self._first_stop
        return KilledLate(sorted(self._killed_late), signal.Signals(signum).name, round(self._stops_at - began_at, 1))

    def close(self) -> None:
        """Close the streams of ended workers. Leave their remaining processes to the code that adopts them.

        If no code adopts them, kill them.
        """
        for remains in self._remains:
            if not self._leftovers:
                remains.kill()
            remains.close()
        self._remains.clear()
        for worker in self._spared:
            worker.close()
        self._spared.clear()

    def _ended(self, worker: Worker) -> None:
        """Called when a worker has ended."""
        raise NotImplementedError

    def _found(self, remaining: int) -> None:
        """Called with the pid of each process that an ended worker has left behind, before its signal."""

    def _all_ended(self) -> None:
        """Called when all workers have ended and the last process that they left behind is gone."""
        raise NotImplementedError

    def _all_stopped(self) -> None:
        """Called after `stop` when all workers are gone, except those in `_alive`, which survived SIGKILL."""
        raise NotImplementedError

    def _start_workers(
        self, specs: Sequence[WorkerSpec], signals: Collection[int] = ()
    ) -> tuple[WorkerSpec, OSError] | None:
        """Start the workers. Return the first one that cannot be started with its error, None if all run.

        `signals`: see `Worker`.
        """
        batches = (specs[first : first + SIDE_BY_SIDE] for first in range(0, len(specs), SIDE_BY_SIDE))
        return next((failed for some in batches if (failed := self._start_side_by_side(some, signals))), None)

    def _start_side_by_side(
        self, specs: Sequence[WorkerSpec], signals: Collection[int]
    ) -> tuple[WorkerSpec, OSError] | None:
        """Open the streams of all workers, then fork all, then watch all. After each fork, the first write to each page
        of the agent's memory costs a page fault.
        """
        opened: list[tuple[Stream, Stream]] = []
        forked: list[Worker] = []
        failures: list[tuple[WorkerSpec, OSError]] = []
        try:
            for spec in specs:
                opened.append(spec.open_streams())
            for spec, streams in zip(specs, opened, strict=True):
                process = spec.start(streams[0].writable(), streams[1].writable())
                worker = Worker(spec, streams, process, self._exited, self._spares, self._failure_matters, signals)
                forked.append(worker)
                self._alive[worker.pid] = worker
        except OSError as error:
            failures = [(spec, error)]
        finally:  # also because a signal to the group of a worker that is not set up would be lost
            failures = [*self._wait_until_started(forked), *failures]
            for unused in opened[len(forked) :]:
                for stream in unused:
                    stream.finish()
        return failures[0] if failures else None

    def _wait_until_started(self, forked: Sequence[Worker]) -> list[tuple[WorkerSpec, OSError]]:
        """Return the workers that cannot be started, each with its error."""
        failures = []
        for worker in forked:
            try:
                worker.wait_until_started()
            except OSError as error:
                del self._alive[worker.pid]
                failures.append((worker.spec, error))
        return failures

    def _failure_matters(self) -> bool:
        """Return whether the reason for a failure at this time is of interest."""
        return True

    def _exited(self, worker: Worker) -> None:
        del self._alive[worker.pid]
        had_grace = self._killed and self._stop_signal != signal.SIGKILL
        if had_grace and worker.pid not in self._exited_pids and worker.exit_code == -signal.SIGKILL:
            self._killed_late.append(worker.spec.rank)
        self._spared.append(worker)
        self._ended(worker)
        if self._stopping and self._is_empty():
            self._finish_stop()

    def _spares(self, pid: int) -> bool:
        """Return whether the rest of an exited worker's group may continue. If not, it is killed."""
        if self._killed or self._stop_signal == signal.SIGKILL:
            return False
        self._exited_pids.add(pid)
        if not self._leftovers:
            return self._leave(partial(in_session, pid), pid)
        are_others_over = self._alive.keys() <= self._exited_pids  # before, other sessions may serve the other workers
        may_wait = are_others_over and (self._stopping or not self._may_restart_after(self._alive[pid]))
        return self._leave(self._leftovers, None if may_wait else pid)

    def _may_restart_after(self, worker: Worker) -> bool:
        """Return whether a restart may follow the end of this last worker, and should not wait for other sessions."""
        return False

    def _leave(self, leftovers: ListLeftovers, session: int | None) -> bool:
        """Let the remaining processes end within the rest of the grace, or a few seconds. Return False if there are
        none.
        """
        within_s = self._stops_at - asyncio.get_running_loop().time() if self._stopping else LEFT_S
        signum = self._stop_signal if self._stopping else signal.SIGTERM
        remains = Leftovers(leftovers, session, signum, self._sent, within_s, self._remains_gone, self._found)
        if remains:
            self._remains.append(remains)
        return bool(remains)

    def _remains_gone(self, remains: Leftovers) -> None:
        self._remains.remove(remains)
        if self._is_empty():
            if self._stopping:
                self._finish_stop()
            else:
                self._all_ended()

    def _is_empty(self) -> bool:
        return not self._alive and not self._remains

    def _adopted(self) -> Collection[int]:
        return self._leftovers() if self._leftovers else ()

    def _signal_remaining(self) -> None:
        """Signal the processes that the workers have not signalled themselves, before they are killed."""
        adopted = self._adopted()
        for pid in self._alive:
            self._sent.signal_remaining(pid, self._stop_signal, adopted)

    def _cancel_last_call(self) -> None:
        if self._last_call:
            self._last_call.cancel()

    def _kill(self) -> None:
        self._killed = True
        for pid in self._alive:
            signal_group(pid, signal.SIGKILL)
        self._after(KILL_TIMEOUT_S, self._finish_stop)
        for remains in list(self._remains):
            remains.kill()

    def _finish_stop(self) -> None:
        """Report that the stop is over: no process is left, or those that survive SIGKILL are given up."""
        self._stopping = self._killed = False
        if self._timer:
            self._timer.cancel()
        self._cancel_last_call()
        self.close()
        self._all_stopped()

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, callback)


class WorkerGroup(ProcessGroup):
    """The workers of one round.

    When the round is decided, the group calls `succeeded`, or `failed` with the first failure. If it is stopped before,
    it calls neither. After `stop` it calls `stopped` once, with the pids of workers that survived SIGKILL.

    The group holds four results back for a moment:

    - A failure that follows from another worker's failure. If that worker is in this group and ends soon, the group
      reports its failure instead. It also does if an exception has ended that worker's script, and not yet its process.
      The group then also calls `failed_too` with each failure that follows.
    - A worker's end by a signal that schedulers send to all processes of a node, or by a shell's exit code for such a
      signal. If the agent gets that signal too, before or after, the node leaves and no worker has failed. If it does
      not, this worker has failed first, even if others fail meanwhile: they may have needed it. But a worker that has
      crashed meanwhile, or that an exception of its own has ended, has failed first: it may have sent the signal.
    - Any other failure if no restart is left, while other workers that have exited are examined: the final report
      contains their failures, too. A stop reports it at once.
    - A success, because the workers may have exited 0 because of such a signal: see `Worker.held_s`. If no restart is
      left, the group holds back other exit codes of workers that handle such a signal, too.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        signals: Collection[int],
        succeeded: Callable[[], None],
        failed: Callable[[Failure], None],
        stopped: Callable[[list[int]], None],
        raised: Callable[[Failure], None] = lambda failure: None,
        failed_too: Callable[[Failure], None] = lambda failure: None,
        exited: Callable[[int], None] = lambda pid: None,
        leftovers: ListLeftovers | None = None,
        is_last: bool = False,
        progress_times: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        """`signals`: signals that a scheduler sends to every process of a node. `raised` is called at the beginning of
        a stop if no failure was reported. It gets the failure of a worker whose script an exception had ended before.
        `failed_too` is called, after `failed`, with each other failure that came before the reported one was known.
        `exited` is called with the pid of each worker that has exited, before it is reaped. `is_last`: whether a
        failure ends the run, as no restart is left. `progress_times` returns when each worker last reported progress,
        by local rank and the event loop's clock.
        """
        super().__init__(leftovers)
        self._signals, self._is_last, self._progress_times = signals, is_last, progress_times
        self._exiting = exited
        self._succeeded, self._failed, self._stopped, self._raised = succeeded, failed, stopped, raised
        self._failed_too = failed_too
        self._settled = False
        """Whether the group has called back how it ended, or is being stopped."""
        self._suspect: Failure | None = None
        """The failure to report if no other is found: see `_outranks_suspect`."""
        self._held: Failure | None = None
        """The failure to report when other workers that have exited are examined."""
        self._settling: asyncio.TimerHandle | None = None
        """Timer until which the suspect's cause may become known."""
        self._suspect_is_evicted = False
        """Whether it, or the one before it, may follow from a signal that the agent may be about to get too."""
        self._suspected_at = 0.0
        """Time, by the event loop's clock, of that failure."""
        self.signal_until = 0.0
        """Time until which the agent may still get the signal that ended a worker."""
        self._succeeds_at = 0.0
        """Time before which the group cannot succeed, because a signal may have caused an exit code of 0."""
        self._looking: asyncio.Task[None] | None = None
        """Search for an error that a worker had recorded before the stop."""
        self._set_up_at = asyncio.get_running_loop().time() + CHECK_INTERVAL_S
        """Time until which a worker that is a copy of another process may still have that process's handlers."""
        self.finished_at: dict[int, float] = {}
        """Times, by the event loop's clock, at which workers exited 0, by local rank."""
        self.uncaught: dict[int, str] = {}
        """Exceptions that have ended the scripts of workers that exited 0 nevertheless, or threads of these scripts, by
        local rank."""
        self.left_behind: set[int] = set()
        """Programs that still ran when the worker that had started them ended by itself."""
        self._seen: list[Failure] = []
        """Failures of workers that have exited before the group reported one."""
        self._reported: set[int] = set()
        """Ranks of the reported failures, empty before the group has reported one."""
        self._reported_at = 0.0
        """Time, by the event loop's clock, at which the group reported the first of them."""
        self.failed_at: float | None = None
        """Time, by the event loop's clock, at which a worker first ended without an exit code of 0."""
        self._oom: OomWatch | None = None
        not_ignored = [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]  # as under nohup
        handled = [each for each in not_ignored if each != signal.SIGINT]  # every Python program catches it
        not_started = self._start_workers(specs, handled)
        self._error_files = {worker.pid: worker.spec.error_file for worker in self._alive.values()}
        if not_started:
            self._settle(self._failed, _not_started(*not_started))
            return
        for age_s in LOOKS_S:  # the next poll may be seconds later
            asyncio.get_running_loop().call_later(age_s, self.look)
        from node_agent.kernel.failures import oom

        self._oom = oom.OomWatch()  # created after the workers' start, which does not need it

    @property
    def pids(self) -> list[int]:
        """Pids of the workers that have not exited, in the order of the local ranks."""
        return list(self._alive)

    @property
    def by_local_rank(self) -> dict[int, int]:
        """Pids of the workers that have not exited, by local rank."""
        return {worker.spec.local_rank: pid for pid, worker in self._alive.items()}

    @property
    def workers(self) -> list[Worker]:
        """Workers that have not exited, in the order of the local ranks."""
        return list(self._alive.values())

    @property
    def last_output_at(self) -> float | None:
        """Time of the running workers' last output by the event loop's clock, None if there was none."""
        return max((worker.last_output_at for worker in self._alive.values()), default=0.0) or None

    def error_file(self, pid: int) -> str:
        """Return the file for this worker's error, even after its end; empty if it is not in this group."""
        return self._error_files.get(pid, "")

    @property
    def error_files(self) -> list[str]:
        """File for the error of each worker that was started, in the order of the local ranks; empty for none."""
        return list(self._error_files.values())

    def look(self) -> None:
        """Check which cgroups the workers are in, and which workers handle signals, once they are set up.

        Call it from time to time.
        """
        are_set_up = asyncio.get_running_loop().time() >= self._set_up_at
        for worker in self._alive.values():
            if are_set_up or worker.executes_program:
                worker.look()
            if self._oom:
                self._oom.look(worker.pid, wrapped(worker.pid))

    def stop(self, signum: int, grace_s: float, *, seeks_cause: bool = False) -> None:
        """Stop the workers, as `ProcessGroup` does.

        `seeks_cause`: whether the stop follows from the failure of a worker that has lost another one. Then a worker
        that has recorded its error before may be that one.
        """
        if failure := self._held or self._find_raised():
            self._settle(self._raised, failure)
        elif seeks_cause and not self._settled:
            self._looking = spawn(self._report_recorded(self._observe(), time.monotonic()))
        self._settled = True
        super().stop(signum, grace_s)

    async def report_raised(self) -> bool:
        """Report a worker whose script an exception of its own has ended as failed, although it has not exited yet.

        Returns whether there is one.
        """
        if self._settled:
            return False
        failure = self._held or self._find_raised() or await self._find_recorded()
        if failure:
            self._fail(failure)
        return failure is not None

    async def _report_recorded(self, observed: "list[Observed]", stopped_at: float) -> None:
        """Report a worker that had recorded an error before the stop. `observed`: the workers before the stop."""
        from node_agent.kernel.failures import recorded_causes

        if failure := await recorded_causes.find(observed, stopped_at):
            self._raised(failure)

    def _find_raised(self) -> Failure | None:
        if self._settled:
            return None
        raised = ((worker, worker.raised(is_recent=_has_raised_now(worker))) for worker in self._alive.values())
        return next((failure for worker, failure in raised if failure and not self._has_progressed(worker)), None)

    def _has_progressed(self, worker: Worker) -> bool:
        """Return whether the worker has reported progress since its exception was read: its script continues."""
        from node_agent.kernel.failures.recorded_causes import LAST_SIGN_S

        raised_at = worker.marked_at or worker.last_output_at
        return self._progress_times().get(worker.spec.local_rank, 0.0) > raised_at + LAST_SIGN_S

    async def _find_recorded(self, lost_at: float | None = None) -> Failure | None:
        """Return the failure of a running worker that has recorded its error, and that others may have lost since.

        `lost_at`: time of the failure that follows, by the event loop's clock; None for now.
        """
        from node_agent.kernel.failures import recorded_causes

        return await recorded_causes.find(self._observe(lost_at))

    def _observe(self, lost_at: float | None = None) -> "list[Observed]":
        """Return what shows whether the running workers continue."""
        from node_agent.kernel.failures.recorded_causes import Observed

        now, progress_times = asyncio.get_running_loop().time(), self._progress_times()
        wall_time = time.time() - now
        return [
            Observed(
                spec=worker.spec,
                pid=worker.pid,
                stderr=worker.stderr_tail,
                unread_stderr=worker.unread_stderr,
                has_both_streams=worker.has_both_streams,
                output_at=worker.last_output_at + wall_time,
                marked_at=None if worker.marked_at is None else worker.marked_at + wall_time,
                progress_at=progress_times.get(worker.spec.local_rank, 0.0) + wall_time,
                lost_at=(now if lost_at is None else lost_at) + wall_time,
            )
            for worker in self._alive.values()
        ]

    def _spares(self, pid: int) -> bool:
        self._exiting(pid)
        if self._oom:
            self._oom.exited(pid)
        return super()._spares(pid)

    def _may_restart_after(self, worker: Worker) -> bool:
        return not self._is_last and worker.has_failed()

    def _found(self, remaining: int) -> None:
        if not self._stopping and is_program(remaining):
            self.left_behind.add(remaining)

    def _failure_matters(self) -> bool:
        return not self._settled

    def _all_ended(self) -> None:
        if not self._settled and self._suspect is None:
            self._succeed()

    def _ended(self, worker: Worker) -> None:
        if self._settled:
            self._ended_after_report(worker)
            return
        if worker.exit_code != 0 and self.failed_at is None:
            self.failed_at = worker.ended_at
        if worker.exit_code == 0:
            now = self.finished_at[worker.spec.local_rank] = asyncio.get_running_loop().time()
            self._succeeds_at = max(self._succeeds_at, now + worker.held_s)
            if error := worker.reported_error():
                self.uncaught[worker.spec.local_rank] = error
        failure = worker.failure(self._oom) if worker.exit_code != 0 else None
        may_be_evicted = self._may_be_evicted(worker)
        if failure:
            self._seen.append(failure)
        is_cause = failure is not None and not failure.consequence
        if failure and is_cause and not may_be_evicted and not self._is_cause_suspected:
            if self._is_last:  # the final report follows
                self._suspect = self._held = failure
                spawn(self._fail_when_examined(failure))
            else:
                self._fail(failure)
            return
        if may_be_evicted:
            self.signal_until = asyncio.get_running_loop().time() + CAUSE_TIMEOUT_S
        is_suspect = failure is not None and self._outranks_suspect(failure)
        if is_suspect:
            self._suspect, self._suspect_is_evicted = failure, self._suspect_is_evicted or may_be_evicted
            self._suspected_at = worker.ended_at or 0.0
        if self._suspect is None:
            if self._is_empty():
                self._succeed()
        elif not self._alive and not self._suspect_is_evicted:
            self._fail(self._suspect)
        elif is_suspect and (may_be_evicted or not self._settling):
            if self._settling:
                self._settling.cancel()
            after = asyncio.get_running_loop().call_later
            self._settling = after(CAUSE_TIMEOUT_S, lambda: spawn(self._settle_suspect()))

    def _ended_after_report(self, worker: Worker) -> None:
        """Report the failure of a worker that had exited before the group reported one, and was examined after that."""
        had_failed = worker.exit_code != 0 and (worker.ended_at or 0.0) <= self._reported_at
        if had_failed and worker.spec.rank not in self._reported:
            failure = worker.failure(self._oom)
            if self._stopping:
                self._failed_too(failure)  # the stop may be over in this turn
            else:
                asyncio.get_running_loop().call_soon(self._failed_too, failure)

    async def _fail_when_examined(self, failure: Failure) -> None:
        """Report this failure when the other workers that have exited by now are examined."""
        await self._wait_until_examined()
        self._fail(failure)

    async def _wait_until_examined(self) -> None:
        """Wait until all workers that have exited by now are examined."""
        await asyncio.gather(*(worker.wait_until_examined() for worker in self._alive.values()))

    async def _settle_suspect(self) -> None:
        """Report the suspect, or the worker that others have lost before it exits.

        Workers that have exited by now count, although their evidence may still be on its way from a slow disk.
        """
        timer = self._settling
        await self._wait_until_examined()
        suspect = self._suspect
        assert suspect
        if self._settled or self._settling is not timer:
            return
        cause = self._find_raised() if suspect.consequence or self._was_asked_to_end(suspect) else None
        try:
            if suspect.consequence and not cause:
                cause = await self._find_recorded(self._suspected_at)
        finally:  # also after an unexpected error, which the loop's handler logs
            if self._suspect is suspect:  # else another timer runs
                self._fail(cause or suspect)

    @property
    def _is_cause_suspected(self) -> bool:
        """Whether the suspect's failure follows from no other worker's."""
        return self._suspect is not None and not self._suspect.consequence

    def _outranks_suspect(self, failure: Failure) -> bool:
        """Return whether the failure is more likely to be the first one of the round than the suspect.

        If a worker was asked to end, another worker may have asked it because of an error of its own.
        """
        if self._suspect is None or failure.consequence:
            return self._suspect is None
        is_own = bool(failure.error) and not self._was_asked_to_end(failure)
        has_reason = is_own or _signal_of(failure.exit_code) in CRASHES
        return self._suspect.consequence or (self._was_asked_to_end(self._suspect) and has_reason)

    def _was_asked_to_end(self, failure: Failure) -> bool:
        """Return whether the failed worker has ended by a signal that other processes send."""
        return _signal_of(failure.exit_code) in self._signals

    def _may_be_evicted(self, worker: Worker) -> bool:
        """Return whether the worker may have ended because of a signal that its agent may be about to get too."""
        code = worker.exit_code or 0
        if _signal_of(code) in self._signals:
            return True
        return worker.may_get_signal and (code == 0 or (code > 0 and self._is_last))

    def _succeed(self) -> None:
        loop = asyncio.get_running_loop()
        if (held_s := self._succeeds_at - loop.time()) > 0:
            loop.call_later(held_s, self._settle, self._succeeded)
        else:
            self._settle(self._succeeded)

    def _all_stopped(self) -> None:
        if self._looking and not self._looking.done():
            self._looking.add_done_callback(lambda _: self._stopped(list(self._alive)))
        else:
            self._stopped(list(self._alive))

    def _fail(self, failure: Failure) -> None:
        """Report the failure of this round, and then the others that came before it was known.

        An exception may have ended the script of a worker that has not exited yet. It is reported as one of the others:
        the failed worker may have exited because of it.
        """
        if self._settled:
            return
        raised = self._find_raised()
        others = [each for each in (*self._seen, *((raised,) if raised else ())) if each.rank != failure.rank]
        self._settle(self._failed, failure)
        self._reported = {failure.rank, *(other.rank for other in others)}
        self._reported_at = asyncio.get_running_loop().time()
        for other in others:
            asyncio.get_running_loop().call_soon(self._failed_too, other)

    def _settle(self, callback: Callable[..., None], *args: Failure) -> None:
        if not self._settled:
            self._settled = True
            asyncio.get_running_loop().call_soon(callback, *args)


def _has_raised_now(worker: Worker) -> bool:
    """Return whether torch has marked an exception of the worker so recently that its script may still clean up."""
    if worker.marked_at is None:
        return False
    from node_agent.kernel.failures.recorded_causes import CONTINUES_S

    return asyncio.get_running_loop().time() - worker.marked_at <= CONTINUES_S


def _signal_of(exit_code: int) -> int:
    """Return the signal that has killed a worker, or the program in its shell; not positive if there is none."""
    return -exit_code if exit_code < 0 else exit_code - SIGNAL_IN_EXIT_CODE


async def _is_node_full() -> bool:
    """Return whether a disk of the node itself is full; False if it is not known in time."""
    from node_agent.kernel.failures.diagnose import is_node_full

    with suppress(OSError):
        return await in_thread(is_node_full, FULL_WITHIN_S)
    return False


def _not_started(spec: WorkerSpec, error: OSError) -> Failure:
    from node_agent.kernel.failures import hints

    cause = words.workers.cannot_start(spec.title, error.strerror or str(error))
    advice = hints.find((cause,))
    return Failure(
        node_id=spec.node_id,
        rank=spec.rank,
        local_rank=spec.local_rank,
        pid=0,
        exit_code=NOT_STARTED,
        cause=cause,
        hint=advice.hint if advice else "",
        failed_at=time.time(),
    )
