"""Routes of a round's worker output, by the flags as in torch's `DefaultLogsSpecs`, or by a plug-in."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.kernel.core.log_options import NO_FILES, LogOptions, Std
from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.output.folder import RunFolder


class Route(Struct, frozen=True):
    """Route of one stream of one worker. A stream with neither a path nor the console is dropped."""

    path: str = ""
    """File that the stream is written to, empty for none."""
    shown: bool = True
    """Whether the console shows it."""
    prefixed: bool = False
    """Whether the console names the worker before its lines, even if the user asked for no prefix."""


class WorkerRoutes(Struct, frozen=True):
    """Routes of one worker."""

    stdout: Route = Route()
    stderr: Route = Route()
    environment: Mapping[str, str] = field(default_factory=lambda: {ERROR_FILE: ""})
    """Variables that the worker's environment needs for these routes."""

    @property
    def error_file(self) -> str:
        """File to which torch's `@record` writes an error, empty for none."""
        return self.environment.get(ERROR_FILE, "")

    @property
    def is_shown(self) -> bool:
        return self.stdout.shown or self.stderr.shown


class Routing(Struct, frozen=True):
    """Routes of all local workers, by local rank, and the files to which lines selected by the filters are copied."""

    workers: Sequence[WorkerRoutes]
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class Plugin(Protocol):
    """Chooses the files instead of the flags."""

    async def reify(self, environments: Sequence[Mapping[str, str]]) -> Routing:
        """Return the routes of the output of the workers with these environments. Raises `PluginFailed`."""

    async def close(self) -> None:
        """End the plug-in, which is not asked again."""


class PluginFailed(Exception):
    """Failure of a plug-in to return routes. The message says why."""


def by_flags(options: LogOptions, folder: RunFolder, round_: int, ranks: range) -> Routing:
    """Return routes for workers of these ranks. Make their folders, laid out as by torchrun. Raises `OSError`."""
    if options.log_dir == NO_FILES:
        return without_files(options, ranks)
    attempt = folder.open_attempt(round_, len(ranks))
    files = (f"{attempt}/filtered_stdout.log", f"{attempt}/filtered_stderr.log")
    return Routing(_workers(options, ranks, attempt), *files)


def without_files(options: LogOptions, ranks: range) -> Routing:
    """Return routes of everything to the console. A stream meant for a file has a prefix that names its worker."""
    return Routing(_workers(options, ranks))


def streams_to_files(options: LogOptions, workers: int) -> int:
    """Return the most streams of this number of workers that go to files."""
    if options.plugin:
        return workers * Std.ALL.bit_count()
    settings = [_setting(options.redirects, rank) | _setting(options.tee, rank) for rank in range(workers)]
    return 0 if options.log_dir == NO_FILES else sum(setting.bit_count() for setting in settings)


def by_plugin(logs: Any, environments: Sequence[Mapping[str, str]]) -> Routing:
    """Return the routes of torch's `LogsDest`, whose files are by local rank, for workers with these variables."""
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
    """Return a plug-in's routing without the ranks that the console must not show. Torch's class knows only local
    ranks.
    """
    workers = [
        worker
        if _passes(options.ranks, rank)
        else replace(worker, stdout=replace(worker.stdout, shown=False), stderr=replace(worker.stderr, shown=False))
        for rank, worker in zip(ranks, routing.workers, strict=True)
    ]
    return replace(routing, workers=workers)


def route(options: LogOptions, stream: Std, *, local_rank: int, rank: int, path: str = "") -> Route:
    """Return the route of one stream: redirected to the file, teed to file and console, or only to the console.

    The rank filters limit what the console shows, not what the files hold. Without files (no `path`) everything goes to
    the console, as under torchrun, with a prefix where a file was asked for. The filters then hold too, unlike under
    torchrun.
    """
    redirected = stream in _setting(options.redirects, local_rank)
    teed = stream in _setting(options.tee, local_rank)
    to_file = (redirected or teed) and options.log_dir != NO_FILES
    shown = _passes(options.local_ranks, local_rank) and _passes(options.ranks, rank)
    if not (to_file and path):
        return Route(shown=shown, prefixed=to_file)
    return Route(path, shown=shown and teed, prefixed=shown and teed)


def _workers(options: LogOptions, ranks: range, attempt: str = "") -> list[WorkerRoutes]:
    """Return the routes of each worker. `attempt`: parent of the workers' folders, empty if there is none."""
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
    """Return the route of a stream for which a plug-in has this path. An empty path means the console."""
    return Route(path, shown=teed or not path, prefixed=teed and bool(path))


def _setting(setting: Std | Mapping[int, Std], local_rank: int) -> Std:
    return setting if isinstance(setting, Std) else setting.get(local_rank, Std.NONE)


def _passes(ranks: frozenset[int] | None, rank: int) -> bool:
    """Return whether a filter accepts this rank. None or an empty filter accepts every rank."""
    return not ranks or rank in ranks
