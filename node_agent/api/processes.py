"""`start_processes`, for programs that block and for asyncio."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node_agent.api.children import UNGUARDED, StartMethod
from node_agent.api.context import PContext
from node_agent.api.default_logs_specs import AnyLogsSpecs, DefaultLogsSpecs, Streams, as_options, understood
from node_agent.api.entrypoint import Arguments, Command, CommandEntry, Entry, FunctionEntry
from node_agent.api.functions import START_METHODS
from node_agent.api.maps import check_ranks, checked_environments, checked_texts
from node_agent.api.numa_options import cpu_sets
from node_agent.api.outputs import OutputSettings
from node_agent.config import SIGNALS
from node_agent.core.log_options import Std

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""torch's: names of signals, with commas between them."""

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
) -> PContext:
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
) -> PContext:
    """`start_processes` for asyncio: the event loop goes on while the processes start. No signal handlers."""
    context = _prepare(
        name, entrypoint, args, envs, logs_specs, log_line_prefixes, start_method, numa_options,
        duplicate_stdout_filters, duplicate_stderr_filters, log_dir, redirects, tee,
    )  # fmt: skip
    await context.start_async()
    return context


def make_entry(entrypoint: Callable[..., Any] | Command, args: Arguments, start_method: StartMethod) -> Entry:
    """What the workers run. Raises `TypeError`, `ValueError`; `RuntimeError` in a worker that is still importing."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(UNGUARDED)
    if start_method not in START_METHODS:
        raise ValueError(f"start_method: {', '.join(START_METHODS)}; not {start_method!r}")
    for local_rank, given in args.items():
        if not isinstance(given, tuple | list):
            raise TypeError(f"args[{local_rank}]: a tuple of arguments, not {given!r:.80}")
    if not callable(entrypoint) and not isinstance(entrypoint, str | os.PathLike | list | tuple):
        raise TypeError(
            f"entrypoint: a function, a program, or a list of a program and arguments, not {entrypoint!r:.80}"
        )
    if callable(entrypoint):
        return FunctionEntry(start_method, entrypoint, args)
    return CommandEntry(entrypoint, args)


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
    checked_environments(envs)
    specs = _specs(logs_specs, log_dir, redirects, tee)
    ours = specs if isinstance(specs, DefaultLogsSpecs) else DefaultLogsSpecs()
    settings = OutputSettings(
        name=name,
        specs=specs,
        options=as_options(ours, stdout_filters, stderr_filters),
        prefixes=checked_texts(log_line_prefixes, "log_line_prefixes"),
    )
    cpus = cpu_sets(numa_options, os.environ, len(args))
    return PContext(make_entry(entrypoint, args, start_method), envs, settings, cpus)


def _specs(
    logs_specs: AnyLogsSpecs | LogsDir | None, log_dir: LogsDir | None, redirects: Streams, tee: Streams
) -> AnyLogsSpecs:
    """Older versions of torch take a folder where later ones take `logs_specs`."""
    if isinstance(logs_specs, str | os.PathLike):
        logs_specs, log_dir = None, logs_specs
    if logs_specs is None:
        return DefaultLogsSpecs(log_dir, redirects, tee)
    if log_dir is not None or redirects != Std.NONE or tee != Std.NONE:
        raise TypeError("give logs_specs, or log_dir, redirects and tee, not both")
    return understood(logs_specs)


def _signals() -> tuple[str, ...]:
    from node_agent.cli.values import signals

    given = os.environ.get(SIGNALS_VARIABLE)
    return signals(given) if given else SIGNALS


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
