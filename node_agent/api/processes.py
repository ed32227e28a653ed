"""`start_processes`: copies of a function or a command on this machine, as torch starts them; no rendezvous, no ranks.

A thread of its own starts and supervises the processes. So they are supervised whatever the caller does, in a notebook
and under asyncio, too; and they live no longer than this process, which the kernel sees to.
"""

import asyncio
import atexit
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, TextIO

from msgspec.structs import replace
from rdzv_protocol.messages import Failure

from node_agent.api import default_logs_specs as logs
from node_agent.api.children import StartMethod
from node_agent.api.default_logs_specs import AnyLogsSpecs, DefaultLogsSpecs, LogsSpecs, Streams, is_rank
from node_agent.api.entrypoint import Arguments, Command, Entry, cpu_sets, make_entry
from node_agent.api.errors import ProcessFailure, SignalException, in_torchs_terms, process_failure
from node_agent.api.loop_thread import ApiConsole, Awaited, LoopThread, done
from node_agent.api.signals import SignalWatch
from node_agent.config import SIGNALS
from node_agent.core.log_options import LogOptions, Std
from node_agent.output.console import ERR, OUT, Console
from node_agent.output.line_prefix import default_prefix
from node_agent.output.log_files import LogFiles
from node_agent.output.logs import RoundLogs
from node_agent.workers.group import KILL_TIMEOUT_S, ProcessGroup, Worker, WorkerSpec
from node_agent.workers.process import given_up
from node_agent.workers.temp_dir import TempDir

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""torch's: names of signals, with commas between them."""
STOP_TIMEOUT_S = 30.0
"""torch's: from SIGTERM to SIGKILL, when another one has failed and when they are closed."""

Environments = Mapping[int, Mapping[str, str]]
LogsDir = str | os.PathLike[str]


def start_processes(
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
) -> "PContext":
    """Start one process for each entry of `args` and return when all of them run; torch's function of that name.

    `name`: says in prefixes and reports what they are. `entrypoint`: a function, or a command: a program, or a list of
    it and its first arguments. `args`: each process's arguments, a tuple by local rank; a command gets them as texts.
    `envs`: what each process's environment has besides this one's own. Both maps have the keys 0 to n-1.
    `logs_specs`: ours or torch's `DefaultLogsSpecs`, or `log_dir`, `redirects` and `tee` by themselves.
    `log_line_prefixes`: what stands before teed lines, by local rank; `[<name><local_rank>]:` where it says nothing.
    `start_method`: spawn, fork or forkserver; for functions alone. `numa_options`: torch's, or one of node, socket,
    exclusive, core-complex. `duplicate_*_filters`: lines with one of these texts go to `filtered_*.log`, too.

    In the main thread, outside an event loop, signals that would end this process (TORCHELASTIC_SIGNALS_TO_HANDLE;
    SIGTERM, SIGHUP, SIGQUIT) raise `SignalException` there until the processes are gone, unless the program has
    handlers of its own. SIGINT raises `KeyboardInterrupt`, as ever.

    Raises `RuntimeError` for maps with other keys, and in a worker that imports a script which starts workers when it
    is imported; `TypeError` and `ValueError` for other bad values, and for functions that cannot be sent to a process;
    `OSError` if a process or a log file cannot be made. Then nothing runs.
    """
    context = _prepare(
        name, entrypoint, args, envs, logs_specs, log_line_prefixes, start_method, numa_options,
        duplicate_stdout_filters, duplicate_stderr_filters, log_dir, redirects, tee,
    )  # fmt: skip
    context.start(() if _in_event_loop() else _signals())
    return context


async def start_processes_async(
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
) -> "PContext":
    """`start_processes` for asyncio: the event loop goes on while the processes start. No signal handlers."""
    context = _prepare(
        name, entrypoint, args, envs, logs_specs, log_line_prefixes, start_method, numa_options,
        duplicate_stdout_filters, duplicate_stderr_filters, log_dir, redirects, tee,
    )  # fmt: skip
    await context.start_async()
    return context


@dataclass
class RunProcsResult:
    """Result of processes that have ended; every map is by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    """Return values of functions; None for each command. Empty if any process failed."""
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    """First failed first. With commands, those that were stopped because another one failed, too."""
    stdouts: dict[int, str] = field(default_factory=dict)
    """The log file; empty where there is none."""
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any process failed."""
        return bool(self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """Output of one `start_processes`, checked."""

    name: str
    custom: LogsSpecs | None
    """A class of the program's own, which names the files."""
    options: LogOptions
    """The filters; all of it where there is no such class."""
    prefixes: Mapping[int, str]
    """Texts before teed lines, by local rank; torch's default for those that it leaves out."""


class PContext:
    """Processes that `start_processes` has started. All or nothing: when one fails, the others are stopped at once.

    A context manager, also an async one, that closes it in the end. Its methods may be called from any thread.
    """

    def __init__(
        self, entry: Entry, envs: Environments, settings: OutputSettings, cpus: Sequence[Collection[int]]
    ) -> None:
        self.name = settings.name
        self.nprocs = len(envs)
        self.stdouts: dict[int, str] = {}
        """Log files by local rank; empty where there is none."""
        self.stderrs: dict[int, str] = {}
        self.error_files: dict[int, str] = {}
        """Files in which processes leave their exceptions, if they raise any."""
        self.filtered_stdout: TextIO | None = None
        """`filtered_stdout.log`, which lines of the processes are copied to; None without filters. Closed when they
        are gone."""
        self.filtered_stderr: TextIO | None = None
        self._entry = entry
        self._envs = envs
        self._settings = settings
        self._cpus = cpus
        self._home = os.getpid()
        self._pids: Awaited[dict[int, int]] = Awaited()
        self._group: AllOrNothing | None = None
        self._is_program_ending = False

    def pids(self) -> dict[int, int]:
        """The process ids by local rank, also of processes that have ended."""
        self._pids.wait()
        return self._pids.result()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all processes are gone: all have succeeded, or one has failed and the others were stopped.

        None if that has not come about after `timeout` seconds; negative: wait for ever; 0: look. `period` is torch's,
        and has no effect: nothing is polled here. Raises `SignalException` for a signal that ends this process (only
        in the main thread), `LaunchError` if a return value cannot be unpickled here.
        """
        result = self._thread.result
        result.wait(inf if timeout < 0 else timeout)
        return self._concluded() if result.done() else None

    async def wait_async(self) -> RunProcsResult:
        """`wait` for asyncio, without a limit: within `asyncio.timeout` it has one. To cancel it stops no process."""
        await done(self._thread.result)
        return self._concluded()

    def close(self, death_sig: signal.Signals | None = None, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop the processes that still run, with their children: `death_sig` (SIGTERM), and SIGKILL after `timeout`.

        Returns when they are gone. A second Ctrl-C kills at once.
        """
        if os.getpid() != self._home:
            return  # a fork of the program: the processes are not its children
        self._ask_to_stop(death_sig, timeout)
        try:
            self._thread.result.wait()
        except BaseException:
            self._ask_to_stop(signal.SIGKILL, 0.0)
            self._thread.result.wait()
            raise
        finally:
            self._finish()

    async def close_async(
        self,
        death_sig: signal.Signals | None = None,
        timeout: float = STOP_TIMEOUT_S,  # noqa: ASYNC109
    ) -> None:
        """`close` for asyncio. To cancel it kills the processes at once."""
        self._ask_to_stop(death_sig, timeout)
        try:
            await done(self._thread.result)
        except asyncio.CancelledError:
            self._ask_to_stop(signal.SIGKILL, 0.0)
            self._thread.result.wait()
            raise
        self._finish()

    def __enter__(self) -> "PContext":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "PContext":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    # How it starts: for `start_processes` alone.

    def start(self, signals: tuple[str, ...]) -> None:
        """Return when all processes run, or raise why they do not. From now on `signals` raise `SignalException`."""
        self._begin(signals)
        try:
            self._pids.wait()
            self._pids.result()
        except BaseException:
            self.close(signal.SIGKILL)
            raise

    async def start_async(self) -> None:
        """`start` for asyncio, without signals."""
        self._begin(())
        try:
            await done(self._pids)
            self._pids.result()
        except BaseException:
            await self.close_async(signal.SIGKILL)
            raise

    def _begin(self, signals: tuple[str, ...]) -> None:
        self._signals = SignalWatch(signals, self._signalled)
        self._thread = LoopThread(self.name, self._main)
        atexit.register(self._at_exit)
        self._thread.result.add_done_callback(lambda _: atexit.unregister(self._at_exit))
        self._thread.start()

    def _ask_to_stop(self, death_sig: signal.Signals | None, timeout: float) -> None:
        self._thread.call(self._stop, death_sig or signal.SIGTERM, timeout)

    def _concluded(self) -> RunProcsResult:
        self._finish()
        return self._thread.result.result()

    def _finish(self) -> None:
        self._thread.join()
        self._signals.stop()

    def _signalled(self, signum: signal.Signals) -> None:
        raise in_torchs_terms(SignalException)(f"process {os.getpid()} got {signum.name}", signum)

    def _at_exit(self) -> None:
        """The program ends without having closed it."""
        self._is_program_ending = True
        self.close()

    # What follows runs in the thread.

    async def _main(self) -> RunProcsResult:
        console = ApiConsole(self.name, asyncio.get_running_loop())
        try:
            return await self._supervise(console)
        except BaseException as error:
            if not self._pids.done():
                self._pids.set_exception(error)
            raise
        finally:
            self._entry.close()
            console.close()

    async def _supervise(self, console: Console) -> RunProcsResult:
        outputs = _Outputs(self._settings, self._envs, console)
        group = self._group = AllOrNothing()
        succeeded = False
        try:
            self._tell_files(outputs)
            self._pids.set_result(group.start([self._spec(local_rank, outputs) for local_rank in range(self.nprocs)]))
            await group.ended()
            succeeded = not group.failures
            return self._result(group)
        finally:
            await group.ended()
            await outputs.close()
            for file in (self.filtered_stdout, self.filtered_stderr):
                if file:
                    file.close()
            if succeeded or self._is_program_ending:
                outputs.remove()
            else:
                atexit.register(outputs.remove)  # until then the failures' error files can be read

    def _tell_files(self, outputs: "_Outputs") -> None:
        for rank, worker in enumerate(outputs.destinations.workers):
            self.stdouts[rank], self.stderrs[rank] = worker.stdout.path, worker.stderr.path
            self.error_files[rank] = worker.error_file
        self.filtered_stdout, self.filtered_stderr = (
            open(outputs.filtered[fd][0], "a", errors="replace", buffering=1) if fd in outputs.filtered else None  # noqa: SIM115
            for fd in (OUT, ERR)
        )

    def _stop(self, death_sig: signal.Signals, timeout: float) -> None:
        if self._group:
            self._group.stop(death_sig, timeout)

    def _spec(self, local_rank: int, outputs: "_Outputs") -> WorkerSpec:
        environment = {**os.environ, **self._envs[local_rank], **outputs.environment(local_rank)}
        cpus = self._cpus[local_rank] if self._cpus else ()
        return WorkerSpec(
            node_id=os.uname().nodename,
            rank=local_rank,
            local_rank=local_rank,
            title=self._entry.title,
            start=self._entry.starter(local_rank, environment, cpus),
            open_streams=lambda: outputs.open_streams(local_rank),
            error_file=self.error_files[local_rank],
        )

    def _result(self, group: "AllOrNothing") -> RunProcsResult:
        failures = group.failures
        if own := {rank: failure for rank, failure in failures.items() if rank not in group.stopped}:
            failures = failures if self._entry.counts_stopped else own
        told = {rank: process_failure(failure) for rank, failure in failures.items()}
        return RunProcsResult({} if told else self._entry.values(), told, self.stdouts, self.stderrs)


class AllOrNothing(ProcessGroup):
    """Processes of which the others are told to go when one fails. For the thread that started them."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[int, Failure] = {}
        """Processes with another exit code than 0, by local rank, in the order in which they ended."""
        self.stopped: set[int] = set()
        """Local ranks that ended after all were told to go."""
        self._is_over = asyncio.get_running_loop().create_future()

    def start(self, specs: Sequence[WorkerSpec]) -> dict[int, int]:
        """Their pids, by local rank. Raises `OSError` if one cannot be started; then the others are killed."""
        try:
            return {spec.local_rank: self._start_worker(spec).pid for spec in specs}
        except BaseException:
            self.stop(signal.SIGKILL, KILL_TIMEOUT_S)
            raise

    async def ended(self) -> None:
        """Return when all are gone, or given up."""
        if self._alive:
            await self._is_over

    def _ended(self, worker: Worker) -> None:
        local_rank = worker.spec.local_rank
        if self._stopping:
            self.stopped.add(local_rank)
        if worker.exit_code != 0:
            failure = worker.failure()
            if self._stopping:
                failure = replace(failure, cause=f"{failure.cause.partition(':')[0]}: it was told to go")
            self.failures[local_rank] = failure
        if not self._alive:
            self._all_stopped()
        elif self.failures and not self._stopping:
            self.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    def _all_stopped(self) -> None:
        for worker in self._alive.values():
            worker.exit_code = -signal.SIGKILL
            self.failures[worker.spec.local_rank] = replace(worker.failure(), cause=given_up(worker.pid))
        if not self._is_over.done():
            self._is_over.set_result(None)


class _Outputs:
    """Streams of the processes, in the event loop of the thread that starts them. Raises `OSError`."""

    def __init__(self, settings: OutputSettings, environments: Environments, console: Console) -> None:
        self._scratch = TempDir()
        self._files = LogFiles(console, outlook="the processes go on")
        if settings.custom:
            given = [environments[local_rank] for local_rank in range(len(environments))]
            self.destinations = logs.by_logs_specs(settings.custom, given)
        else:
            self.destinations = logs.by_default_specs(settings.options, settings.name, environments, self._scratch)

        def prefix(local_rank: int, teed: bool) -> str:
            return settings.prefixes.get(local_rank, default_prefix(settings.name, local_rank)) if teed else ""

        round_logs = RoundLogs(self.destinations, settings.options, prefix, console, self._files)
        self.open_streams, self.environment = round_logs.open_streams, round_logs.environment
        self.filtered = round_logs.filtered

    async def close(self) -> None:
        """Show what is still to be shown: the processes are gone."""
        await self._files.drain()
        self._files.close()

    def remove(self) -> None:
        """Remove what nobody asked to keep, error files included."""
        self._scratch.remove()


# What is asked for, checked.


def _prepare(
    name: str,
    entrypoint: Callable[..., Any] | Command,
    args: Arguments,
    envs: Environments,
    logs_specs: AnyLogsSpecs | LogsDir | None,
    log_line_prefixes: Mapping[int, str] | None,
    start_method: StartMethod,
    numa_options: Any,
    stdout_filters: Sequence[str] | None,
    stderr_filters: Sequence[str] | None,
    log_dir: LogsDir | None,
    redirects: Streams,
    tee: Streams,
) -> PContext:
    check_ranks(args, len(args), "args")
    check_ranks(envs, len(args), "envs")
    check_environments(envs)
    specs, custom = _specs(logs_specs, log_dir, redirects, tee)
    settings = OutputSettings(
        name=name,
        custom=custom,
        options=logs.as_options(specs, stdout_filters, stderr_filters),
        prefixes=checked_texts(log_line_prefixes, "log_line_prefixes"),
    )
    cpus = cpu_sets(numa_options, os.environ, len(args))
    return PContext(make_entry(entrypoint, args, start_method), envs, settings, cpus)


def _specs(
    logs_specs: AnyLogsSpecs | LogsDir | None, log_dir: LogsDir | None, redirects: Streams, tee: Streams
) -> tuple[DefaultLogsSpecs, LogsSpecs | None]:
    """Older versions of torch take a folder where later ones take `logs_specs`."""
    if isinstance(logs_specs, str | os.PathLike):
        logs_specs, log_dir = None, logs_specs
    if logs_specs is None:
        return DefaultLogsSpecs(log_dir, redirects, tee), None
    if log_dir is not None or redirects != Std.NONE or tee != Std.NONE:
        raise TypeError("give logs_specs, or log_dir, redirects and tee, not both")
    return logs.understood(logs_specs)


def check_ranks(given: Mapping[int, Any], count: int, what: str) -> None:
    """Each local rank once, and nothing else. Raises `RuntimeError`, as torch does."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what}: a map from each local rank, not {type(given).__name__}")
    missing = [rank for rank in range(count) if rank not in given]
    strange = [key for key in given if key not in range(count)]
    if missing or strange:
        wrong = [*(f"{rank} is missing" for rank in missing), *(f"{key!r} is none" for key in strange)]
        ranks = f"the local ranks 0 to {count - 1}" if count else "no local ranks: there are no args"
        raise RuntimeError(f"{what}: its keys must be {ranks}; {', '.join(wrong)}")


def check_environments(given: Environments) -> None:
    """Names and values that the system takes. Raises `TypeError` or `ValueError`."""
    for rank, environment in given.items():
        for name, value in environment.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"envs[{rank}]: names and values are texts, not {name!r}: {value!r:.80}")
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"envs[{rank}]: no variable can be {name!r}: {value!r:.80}")


def checked_texts(given: Mapping[int, str] | None, what: str) -> Mapping[int, str]:
    """A map from local ranks to texts; empty for None. Raises `TypeError`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(is_rank(rank) for rank in given):
        raise TypeError(f"{what}: a map from local ranks to texts, not {given!r:.80}")
    for rank, text in given.items():
        if not isinstance(text, str):
            raise TypeError(f"{what}[{rank}]: a text, not {text!r:.80}")
    return given


def _signals() -> tuple[str, ...]:
    from node_agent.cli.values import known_signals, signals

    given = os.environ.get(SIGNALS_VARIABLE)
    return known_signals(signals(given)) if given else SIGNALS


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
