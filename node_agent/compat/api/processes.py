"""`start_processes`: runs copies of a function or a command on this machine, as torch does, without rendezvous or
ranks.

A separate thread starts and supervises the processes. So they are supervised during any other work of the caller, also
in a notebook and under asyncio. The kernel kills them when this process ends.
"""

import asyncio
import atexit
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from math import inf
from typing import Any, ParamSpec, TextIO, TypeVar

from msgspec.structs import replace
from rdzv_protocol.messages import Failure

from node_agent import words
from node_agent.compat.api.children import StartMethod
from node_agent.compat.api.default_logs_specs import (
    AnyLogsSpecs,
    DefaultLogsSpecs,
    Streams,
    as_options,
    by_default_specs,
    by_logs_specs,
    check_empty,
    is_rank,
    understood,
)
from node_agent.compat.api.entrypoint import Arguments, Command, cpu_sets, make_entry
from node_agent.compat.api.errors import LaunchError, ProcessFailure, SignalException, in_torchs_terms, process_failure
from node_agent.compat.api.loop_thread import ApiConsole, Awaited, LoopThread, done
from node_agent.compat.api.signals import SignalWatch
from node_agent.kernel.config import SIGNALS
from node_agent.kernel.core.log_options import Std
from node_agent.kernel.failures.diagnose import exit_status
from node_agent.kernel.leave_signals import Requests
from node_agent.kernel.output.console import ERR, OUT
from node_agent.kernel.output.log_files import LogFiles
from node_agent.kernel.output.logs import RoundLogs, default_prefix
from node_agent.kernel.processes.process import KILL_TIMEOUT_S, given_up
from node_agent.kernel.processes.temp_dir import REMOVED_WITHIN_S, TempDir
from node_agent.kernel.threads import in_thread
from node_agent.kernel.worker_spec import WorkerSpec
from node_agent.kernel.workers.group import ProcessGroup, Worker

STOP_TIMEOUT_S = 30.0
"""Seconds from SIGTERM to SIGKILL when another process has failed or the context is closed; torch's value."""

Environments = Mapping[int, Mapping[str, str]]
LogsDir = str | os.PathLike[str]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class RunProcsResult:
    """Result of processes that have ended. Every map is by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    """Return values of functions, None for each command. Empty if any process failed."""
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    """Failures, the first one first. With commands also those of processes that were stopped after another's failure.
    """
    stdouts: dict[int, str] = field(default_factory=dict)
    """Log files of stdout, empty for processes without one."""
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether any process failed."""
        return bool(self.failures)


class PContext(AbstractContextManager["PContext"], AbstractAsyncContextManager["PContext"]):
    """Processes that `start_processes` has started. When one fails, the others are stopped at once.

    It is a context manager, also an async one, that closes them at its end. Its methods may be called from any thread.
    """

    def __new__(cls, name: str, entrypoint: Any, *args: Any, **kwargs: Any) -> "PContext":
        """Return a context of the class that torch has for functions, or for commands."""
        kind = MultiprocessContext if callable(entrypoint) else SubprocessContext
        return object.__new__(kind if cls is PContext else cls)

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | Command,
        args: Arguments,
        envs: Environments,
        logs_specs: AnyLogsSpecs | LogsDir | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        start_method: StartMethod = "spawn",
        numa_options: Any = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        log_dir: LogsDir | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(words.api.not_a_text("name", name))
        check_ranks(args, "args")
        check_ranks(envs, "envs", len(args))
        check_environments(envs)
        if isinstance(logs_specs, str | os.PathLike):
            logs_specs, log_dir = None, logs_specs
        specs, self._custom_specs = understood(chosen_specs(logs_specs, log_dir, redirects, tee))
        self._is_plain = log_dir is not None
        if log_dir is not None:
            check_empty(log_dir)
        self._log_options = as_options(specs, duplicate_stdout_filters, duplicate_stderr_filters)
        self._prefixes = checked_texts(log_line_prefixes, "log_line_prefixes")
        self._cpus = cpu_sets(numa_options, os.environ, len(args))
        self._entry = make_entry(entrypoint, args, start_method)
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(envs)
        self.stdouts: dict[int, str] = {}
        """Log files by local rank, empty for processes without one."""
        self.stderrs: dict[int, str] = {}
        self.error_files: dict[int, str] = {}
        """Files to which processes write their exceptions."""
        self.filtered_stdout: TextIO | None = None
        """`filtered_stdout.log`, to which lines of the processes are copied; None without filters. Closed when they
        have ended."""
        self.filtered_stderr: TextIO | None = None
        self._home = os.getpid()
        self._pids: Awaited[dict[int, int]] = Awaited()
        self._group: AllOrNothing | None = None
        self._opening: asyncio.Task[RoundLogs] | None = None
        self._is_stopped = False
        """Whether the processes have been told to stop, or not to start."""
        self._scratch = TempDir(is_locked=False)
        self._is_program_ending = False

    def pids(self) -> dict[int, int]:
        """Return the process ids by local rank, including those of ended processes."""
        self._pids.wait()
        return self._pids.result()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all processes have ended: all have succeeded, or one has failed and the others were stopped.

        Return None if they have not ended after `timeout` seconds. A negative timeout waits forever, 0 only checks.
        `period` is torch's and has no effect, because nothing is polled here. Raises `SignalException` for a signal
        that ends this process (only in the main thread), and `LaunchError` if a return value cannot be unpickled here.
        """
        return self._concluded() if self._thread.result.wait(inf if timeout < 0 else timeout) else None

    async def wait_async(self) -> RunProcsResult:
        """Do the same as `wait`, for asyncio, without a limit; use `asyncio.timeout` for one. Cancelling it does not
        stop the processes.
        """
        await done(self._thread.result)
        return self._concluded()

    def close(self, death_sig: signal.Signals | None = None, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop the running processes and their children: `death_sig` (SIGTERM), then SIGKILL after `timeout` seconds.

        Return when they have ended. A second Ctrl-C kills them at once.
        """
        if os.getpid() != self._home:
            return  # a fork of the program: the processes are not its children
        self._ask_to_stop(death_sig, timeout)
        with closing(self._signals):
            self._thread.run(self._kill)

    async def close_async(
        self,
        death_sig: signal.Signals | None = None,
        timeout: float = STOP_TIMEOUT_S,  # noqa: ASYNC109
    ) -> None:
        """Do the same as `close`, for asyncio. Cancelling it kills the processes at once."""
        self._ask_to_stop(death_sig, timeout)
        with closing(self._signals):
            await self._thread.run_async(self._kill)

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close_async()

    # Start, only for `start_processes`.

    def start(self, signals: tuple[str, ...]) -> None:
        """Return when all processes run, or raise why they do not. From now on `signals` raise `SignalException`."""
        self._begin(signals)
        try:
            self.pids()
        except BaseException:
            self.close(signal.SIGKILL)
            raise

    async def start_async(self) -> None:
        """Do the same as `start`, for asyncio, without signals."""
        self._begin(())
        try:
            await done(self._pids)
            self._pids.result()
        except BaseException:
            await self.close_async(signal.SIGKILL)
            raise

    def _begin(self, signals: tuple[str, ...]) -> None:
        self._thread = LoopThread(self.name, self._main)
        self._requests = Requests()
        self._signals = SignalWatch(signals, self._signalled)
        self._thread.start()
        atexit.register(self._at_exit)
        self._thread.result.add_done_callback(lambda _: atexit.unregister(self._at_exit))

    def _ask_to_stop(self, death_sig: signal.Signals | None, timeout: float) -> None:
        self._thread.call(self._stop, death_sig or signal.SIGTERM, timeout)

    def _kill(self, interruption: BaseException) -> None:
        self._ask_to_stop(signal.SIGKILL, 0.0)

    def _concluded(self) -> RunProcsResult:
        self._thread.join()
        self._signals.close()
        return self._thread.result.result()

    def _signalled(self, signum: signal.Signals) -> None:
        if self._requests.take():  # another exception would end the grace of processes that are closed because of it
            raise in_torchs_terms(SignalException)(words.api.signalled(os.getpid(), signum.name), signum)

    def _at_exit(self) -> None:
        """Close the processes of a program that exits without having closed them."""
        self._is_program_ending = True
        self.close()

    # Methods that run in the thread.

    async def _main(self) -> RunProcsResult:
        console = ApiConsole(self.name, asyncio.get_running_loop())
        files = LogFiles(console, outlook=words.api.PROCESSES_CONTINUE)
        group = self._group = AllOrNothing()
        try:
            if self._is_stopped:
                raise asyncio.CancelledError
            self._opening = asyncio.create_task(
                in_thread(partial(self._open_logs, console, files), undo=RoundLogs.close_files)
            )
            logs = await self._opening
            try:
                self._pids.set_result(group.start([self._spec(local_rank, logs) for local_rank in range(self.nprocs)]))
            finally:
                logs.close_files()
            await group.ended()
            if late := group.killed_late:
                console.log(words.workers.killed_late(late.ranks, late.signal_name, late.within_s, limit=""))
            return self._result(group)
        except asyncio.CancelledError:
            stopped = in_torchs_terms(LaunchError)(words.api.stopped_before_start(self.name))
            self._pids.set_exception(stopped)
            raise stopped from None
        except BaseException as error:
            if not self._pids.done():
                self._pids.set_exception(error)
            raise
        finally:
            await group.ended()
            await files.drain()
            files.close()
            for copy in (self.filtered_stdout, self.filtered_stderr):
                if copy:
                    copy.close()
            if group.failures and not self._is_program_ending:
                atexit.register(self._scratch.remove)  # until then the failures' error files can be read
            else:
                with suppress(OSError):
                    await in_thread(self._scratch.remove, REMOVED_WITHIN_S)
            self._entry.close()
            console.close()

    def _open_logs(self, console: ApiConsole, files: LogFiles) -> RoundLogs:
        if self._custom_specs:
            routing = by_logs_specs(self._custom_specs, [self.envs[rank] for rank in range(self.nprocs)])
        else:
            options, scratch = self._log_options, self._scratch
            routing = by_default_specs(options, self.name, self.envs, scratch, is_plain=self._is_plain)
        logs = RoundLogs(routing, self._log_options, self._line_prefix, console, files)
        for rank, worker in enumerate(routing.workers):
            self.stdouts[rank], self.stderrs[rank] = worker.stdout.path, worker.stderr.path
            self.error_files[rank] = worker.error_file
        self.filtered_stdout, self.filtered_stderr = (
            open(logs.filtered[fd][0], "a", errors="replace", buffering=1) if fd in logs.filtered else None  # noqa: SIM115
            for fd in (OUT, ERR)
        )
        logs.open_files()
        return logs

    def _line_prefix(self, local_rank: int, teed: bool) -> str:
        return self._prefixes.get(local_rank, default_prefix(self.name, local_rank)) if teed else ""

    def _stop(self, death_sig: signal.Signals, timeout: float) -> None:
        self._is_stopped = True
        if self._opening and not self._opening.done():
            self._opening.cancel()  # there are no processes yet, and the disk of their files may hang
        elif self._group:
            self._entry.let_go()
            self._group.stop(death_sig, timeout)

    def _spec(self, local_rank: int, logs: RoundLogs) -> WorkerSpec:
        environment = {**os.environ, **self.envs[local_rank], **logs.environment(local_rank)}
        cpus = self._cpus[local_rank] if self._cpus else ()
        return WorkerSpec(
            node_id=os.uname().nodename,
            rank=local_rank,
            local_rank=local_rank,
            title=self._entry.title,
            start=partial(self._entry.start, local_rank, environment, cpus),
            open_streams=partial(logs.open_streams, local_rank),
            error_file=self.error_files[local_rank],
        )

    def _result(self, group: "AllOrNothing") -> RunProcsResult:
        failures = group.failures
        if own := {rank: failure for rank, failure in failures.items() if rank not in group.stopped}:
            failures = failures if self._entry.counts_stopped else own
        failed = {rank: process_failure(failure) for rank, failure in failures.items()}
        return RunProcsResult({} if failed else self._entry.values(), failed, self.stdouts, self.stderrs)


class MultiprocessContext(PContext):
    """Processes that call a function."""


class SubprocessContext(PContext):
    """Processes that execute a command."""


def _given(maker: Callable[P, PContext]) -> Callable[[Callable[[PContext], R]], Callable[P, R]]:
    """Decorator: makes the function take the arguments of a context in place of the context."""

    def decorate(start: Callable[[PContext], R]) -> Callable[P, R]:
        @wraps(start)
        def make_and_start(*args: P.args, **kwargs: P.kwargs) -> R:
            return start(maker(*args, **kwargs))

        make_and_start.__signature__ = signature(maker).replace(return_annotation=PContext)  # type: ignore[attr-defined]
        return make_and_start

    return decorate


@_given(PContext)
def start_processes(context: PContext) -> PContext:
    """Start one process for each entry of `args` and return when all of them run; torch's function of that name.

    - `name`: name of the processes in prefixes and reports.
    - `entrypoint`: a function or a command. A command is a program, or a list of a program and its first arguments.
    - `args`: each process's arguments as a tuple, by local rank. A command gets them as texts.
    - `envs`: variables of each process in addition to this process's environment. Both maps have the keys 0 to n-1.
    - `logs_specs`: ours or torch's `DefaultLogsSpecs`. Or use `redirects`, `tee` and `log_dir`, an empty folder, whose
      files are then `<log_dir>/<local_rank>/stdout.log`, `stderr.log` and `error.json`, as in torch before 2.3.
    - `log_line_prefixes`: prefixes of teed lines, by local rank. Default: `[<name><local_rank>]:`.
    - `start_method`: spawn, fork or forkserver, only for functions.
    - `numa_options`: torch's, or one of node, socket, exclusive, core-complex.
    - `duplicate_*_filters`: texts; lines with one of them are copied to `filtered_*.log`.

    In the main thread, outside an event loop, signals that would end this process raise `SignalException` there until
    the processes have ended. TORCHELASTIC_SIGNALS_TO_HANDLE names these signals; default: SIGTERM, SIGHUP, SIGQUIT.
    Signals with a handler of the program are left alone. SIGINT raises `KeyboardInterrupt`, as usual.

    Raises, without leaving a process running:

    - `RuntimeError` for maps with other keys, and in a worker that imports a script which starts workers at its import.
    - `TypeError` and `ValueError` for other bad values, and for functions that cannot be sent to a process.
    - `OSError` if a process or a log file cannot be made.
    """
    context.start(_signals())
    return context


@_given(PContext)
async def start_processes_async(context: PContext) -> PContext:
    """Do the same as `start_processes`, for asyncio: the event loop continues while the processes start. No signal
    handlers.
    """
    await context.start_async()
    return context


class AllOrNothing(ProcessGroup):
    """Processes that are all stopped when one fails. Used in the thread that started them."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[int, Failure] = {}
        """Processes with another exit code than 0, by local rank, in the order in which they ended."""
        self.stopped: set[int] = set()
        """Local ranks that ended after all were told to stop."""
        self._is_over = asyncio.get_running_loop().create_future()

    def start(self, specs: Sequence[WorkerSpec]) -> dict[int, int]:
        """Start the processes and return their pids by local rank. If one cannot be started, kill all and raise
        `OSError`.
        """
        try:
            if failed := self._start_workers(specs):
                raise failed[1]
        except BaseException:
            self.stop(signal.SIGKILL, KILL_TIMEOUT_S)
            raise
        return {worker.spec.local_rank: worker.pid for worker in self._alive.values()}

    async def ended(self) -> None:
        """Return when all processes, and those left in their sessions, have ended or been abandoned."""
        if not self._is_empty():
            await self._is_over

    def _ended(self, worker: Worker) -> None:
        local_rank = worker.spec.local_rank
        if self._stopping:
            self.stopped.add(local_rank)
        if worker.exit_code != 0:
            failure = worker.failure()
            if self._stopping:
                failure = replace(failure, cause=words.api.ended_by_agent(exit_status(failure.exit_code).status))
            self.failures[local_rank] = failure
        if self._is_empty():
            self._all_ended()
        elif self._alive and self.failures and not self._stopping:
            self.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    def _all_ended(self) -> None:
        self.close()
        self._all_stopped()

    def _all_stopped(self) -> None:
        for worker in self._alive.values():
            worker.exit_code = -signal.SIGKILL
            self.failures[worker.spec.local_rank] = replace(worker.failure(), cause=given_up(worker.pid))
        if not self._is_over.done():
            self._is_over.set_result(None)


def chosen_specs(
    logs_specs: AnyLogsSpecs | None, log_dir: LogsDir | None, redirects: Streams, tee: Streams
) -> AnyLogsSpecs:
    """Return the given specs, or specs for a folder, which older torch versions take. Raises `TypeError` for both."""
    if logs_specs is None:
        return DefaultLogsSpecs(log_dir, redirects, tee)
    if log_dir is not None or redirects != Std.NONE or tee != Std.NONE:
        raise TypeError(words.api.TWO_LOGS_SPECS)
    return logs_specs


def check_ranks(given: Mapping[int, Any], what: str, count: int | None = None) -> None:
    """Check that a map has exactly the local ranks from 0. `count`: their number, by default the map's length.

    Raises `RuntimeError`, as torch does, or `TypeError` if it is not a map.
    """
    if not isinstance(given, Mapping):
        raise TypeError(words.api.not_a_map(what, type(given).__name__))
    count = len(given) if count is None else count
    missing = [rank for rank in range(count) if rank not in given]
    strange = [key for key in given if key not in range(count)]
    if missing or strange:
        raise RuntimeError(words.api.wrong_ranks(what, count, missing, strange))


def check_environments(given: Environments) -> None:
    """Check that the system accepts these names and values. Raises `TypeError` or `ValueError`."""
    for rank, environment in given.items():
        if not isinstance(environment, Mapping):
            raise TypeError(words.api.not_an_environment(f"envs[{rank}]", environment))
        for name, value in environment.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(words.api.variable_not_text(f"envs[{rank}]", name, value))
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(words.api.no_variable(f"envs[{rank}]", name, value))


def checked_texts(given: Mapping[int, str] | None, what: str) -> Mapping[int, str]:
    """Return a map from local ranks to texts, empty for None. Raises `TypeError`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(is_rank(rank) for rank in given):
        raise TypeError(words.api.not_a_map_to_texts(what, given))
    for rank, text in given.items():
        if not isinstance(text, str):
            raise TypeError(words.api.not_a_text(f"{what}[{rank}]", text))
    return given


def _signals() -> tuple[str, ...]:
    """Return the signals to raise in the program, none if an event loop handles them."""
    from node_agent.cli.plan import SIGNALS_VARIABLE
    from node_agent.flags import known_signals, signals

    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return ()
    given = os.environ.get(SIGNALS_VARIABLE)
    return known_signals(signals(given)) if given else SIGNALS
