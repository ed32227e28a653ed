"""Routes of the output of one round's workers: by the flags, as torch's `DefaultLogsSpecs` decides, or by a plug-in."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.kernel.core.log_options import NO_FILES, LogOptions, Std
from node_agent.kernel.output.folder import RunFolder
from node_agent.kernel.workers.environment import ERROR_FILE


class Route(Struct, frozen=True):
    """Way of one stream of one worker. With neither a path nor the console it is dropped."""

    path: str = ""
    """File that the stream is written to; empty: none."""
    shown: bool = True
    """Whether the console shows it."""
    prefixed: bool = False
    """Whether the console says whose lines they are, also if the user asked for no prefix."""


class WorkerRoutes(Struct, frozen=True):
    """Routes of one worker."""

    stdout: Route = Route()
    stderr: Route = Route()
    environment: Mapping[str, str] = field(default_factory=lambda: {ERROR_FILE: ""})
    """Variables that the worker's environment needs for them."""

    @property
    def error_file(self) -> str:
        """File to which torch's `@record` writes an error; empty: none."""
        return self.environment.get(ERROR_FILE, "")

    @property
    def is_shown(self) -> bool:
        return self.stdout.shown or self.stderr.shown


class Routing(Struct, frozen=True):
    """Routes of all local workers, by local rank; and where what the filters let through is copied to."""

    workers: Sequence[WorkerRoutes]
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class Plugin(Protocol):
    """Decides about the files instead of the flags."""

    async def reify(self, environments: Sequence[Mapping[str, str]]) -> Routing:
        """Routes of the output of the workers with these environments. Raises `PluginFailed`."""

    async def close(self) -> None:
        """End the plug-in: it is not asked again."""


class PluginFailed(Exception):
    """A plug-in cannot say where output goes; the message says why."""


def by_flags(options: LogOptions, folder: RunFolder, round_: int, ranks: range) -> Routing:
    """Routes, for workers of these ranks, in folders as torchrun lays them out, which are made. Raises `OSError`."""
    if options.log_dir == NO_FILES:
        return without_files(options, ranks)
    attempt = folder.open_attempt(round_, len(ranks))
    files = (f"{attempt}/filtered_stdout.log", f"{attempt}/filtered_stderr.log")
    return Routing(_workers(options, ranks, attempt), *files)


def without_files(options: LogOptions, ranks: range) -> Routing:
    """Routes of everything to the console; what was to go to a file says whose it is."""
    return Routing(_workers(options, ranks))


def streams_to_files(options: LogOptions, workers: int) -> int:
    """Most streams of so many workers that go to files."""
    if options.plugin:
        return workers * Std.ALL.bit_count()
    settings = [_setting(options.redirects, rank) | _setting(options.tee, rank) for rank in range(workers)]
    return 0 if options.log_dir == NO_FILES else sum(setting.bit_count() for setting in settings)


def by_plugin(logs: Any, environments: Sequence[Mapping[str, str]]) -> Routing:
    """Routes of torch's `LogsDest`, whose files are by local rank, for workers that are to have these variables."""
    return Routing(
        [
            WorkerRoutes(
                stdout=_chosen(logs.stdouts[rank], teed=rank in logs.tee_stdouts),
                stderr=_chosen(logs.stderrs[rank], teed=rank in logs.tee_stderrs),
                environment=environment,
            )
            for rank, environment in enumerate(environments)
        ],
        logs.filtered_stdout,
        logs.filtered_stderr,
    )


def narrowed(routing: Routing, options: LogOptions, ranks: range) -> Routing:
    """A plug-in's routing without the ranks that the console shall not show: torch's class knows local ranks alone."""
    workers = [
        worker
        if _passes(options.ranks, rank)
        else replace(worker, stdout=replace(worker.stdout, shown=False), stderr=replace(worker.stderr, shown=False))
        for rank, worker in zip(ranks, routing.workers, strict=True)
    ]
    return replace(routing, workers=workers)


def route(options: LogOptions, stream: Std, *, local_rank: int, rank: int, path: str = "") -> Route:
    """Route of one stream. Redirected: the file alone. Teed: the file and the console. Neither: the console alone.

    The filters by rank narrow what the console shows, never what files hold. Without files (no `path`) everything goes
    to the console, as under torchrun, with a prefix where a file was asked for; unlike there, the filters hold, too.
    """
    redirected = stream in _setting(options.redirects, local_rank)
    teed = stream in _setting(options.tee, local_rank)
    to_file = (redirected or teed) and options.log_dir != NO_FILES
    shown = _passes(options.local_ranks, local_rank) and _passes(options.ranks, rank)
    if not (to_file and path):
        return Route(shown=shown, prefixed=to_file)
    return Route(path, shown=shown and teed, prefixed=shown and teed)


def _workers(options: LogOptions, ranks: range, attempt: str = "") -> list[WorkerRoutes]:
    """Routes of each worker. `attempt`: the folder of the workers' folders; empty: none."""
    workers = []
    for local_rank, rank in enumerate(ranks):
        out, err, error = (
            f"{attempt}/{local_rank}/{name}" if attempt else "" for name in ("stdout.log", "stderr.log", "error.json")
        )
        stdout = route(options, Std.OUT, local_rank=local_rank, rank=rank, path=out)
        stderr = route(options, Std.ERR, local_rank=local_rank, rank=rank, path=err)
        workers.append(WorkerRoutes(stdout, stderr, {ERROR_FILE: error}))
    return workers


def _chosen(path: str, *, teed: bool) -> Route:
    """Route of a stream for which a plug-in has this path; empty: the console."""
    return Route(path, shown=teed or not path, prefixed=teed and bool(path))


def _setting(setting: Std | Mapping[int, Std], local_rank: int) -> Std:
    return setting if isinstance(setting, Std) else setting.get(local_rank, Std.NONE)


def _passes(ranks: frozenset[int] | None, rank: int) -> bool:
    """Whether a filter lets this rank through. None, or no rank at all: it is not set."""
    return not ranks or rank in ranks
