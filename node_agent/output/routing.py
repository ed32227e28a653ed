"""Routes of the output of one round's workers, by the flags as torch's `DefaultLogsSpecs.reify` decides."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rdzv_protocol.messages import Assignment

from node_agent.core.log_options import NO_FILES, LogOptions, Std
from node_agent.output.folder import RunFolder

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class PluginFailed(Exception):
    """A plug-in cannot say where output goes; the message says why."""


class Route(NamedTuple):
    """Way of one stream of one worker. With neither a path nor the console it is dropped."""

    path: str = ""
    """The file it is written to; empty: none."""
    shown: bool = True
    """Whether the console shows it."""
    prefixed: bool = False
    """Whether the console says whose lines they are, also if the user asked for no prefix."""


class WorkerRoutes(NamedTuple):
    """Routes of one worker."""

    stdout: Route = Route()
    stderr: Route = Route()
    environment: Mapping[str, str] = {ERROR_FILE: ""}
    """Variables that the worker's environment needs for them."""

    @property
    def error_file(self) -> str:
        """File to which torch's `@record` writes an error; empty: none."""
        return self.environment.get(ERROR_FILE, "")

    @property
    def is_shown(self) -> bool:
        return self.stdout.shown or self.stderr.shown


class Routing(NamedTuple):
    """Routes of all local workers, by local rank; and where what the filters let through is copied to."""

    workers: Sequence[WorkerRoutes]
    filtered_stdout: str = ""
    filtered_stderr: str = ""

    @property
    def has_files(self) -> bool:
        """Whether the output of a worker goes to a file."""
        return any(worker.stdout.path or worker.stderr.path for worker in self.workers)


def route(options: LogOptions, stream: Std, *, local_rank: int, rank: int, path: str = "") -> Route:
    """Redirected: the file alone. Teed: the file and the console. Neither: the console alone.

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


def by_flags(options: LogOptions, folder: RunFolder, assignment: Assignment) -> Routing:
    """Routes in folders as torchrun lays them out, which are made. Raises `OSError`."""
    if options.log_dir == NO_FILES:
        return without_files(options, assignment)
    attempt = folder.open_attempt(assignment.round)
    own = [os.path.join(attempt, str(local_rank)) for local_rank in range(assignment.local_world_size)]
    for path in own:
        os.mkdir(path)
    return Routing(
        [
            WorkerRoutes(*_streams(options, assignment, local_rank, path), {ERROR_FILE: f"{path}/error.json"})
            for local_rank, path in enumerate(own)
        ],
        filtered_stdout=f"{attempt}/filtered_stdout.log",
        filtered_stderr=f"{attempt}/filtered_stderr.log",
    )


def without_files(options: LogOptions, assignment: Assignment) -> Routing:
    """Everything goes to the console; what was to go to a file says whose it is."""
    ranks = range(assignment.local_world_size)
    return Routing([WorkerRoutes(*_streams(options, assignment, local_rank)) for local_rank in ranks])


def narrowed(routing: Routing, options: LogOptions, assignment: Assignment) -> Routing:
    """A plug-in's routing without the ranks that the console shall not show: torch's class knows local ranks alone."""
    workers = [
        worker
        if _passes(options.ranks, assignment.first_rank + local_rank)
        else worker._replace(stdout=worker.stdout._replace(shown=False), stderr=worker.stderr._replace(shown=False))
        for local_rank, worker in enumerate(routing.workers)
    ]
    return routing._replace(workers=workers)


def from_plugin(path: str, *, teed: bool) -> Route:
    """Route of a stream for which torch's `LogsDest` has this path; empty: the console."""
    return Route(path, shown=teed or not path, prefixed=teed and bool(path))


def _streams(options: LogOptions, assignment: Assignment, local_rank: int, folder: str = "") -> tuple[Route, Route]:
    rank = assignment.first_rank + local_rank
    out, err = (f"{folder}/stdout.log", f"{folder}/stderr.log") if folder else ("", "")
    return (
        route(options, Std.OUT, local_rank=local_rank, rank=rank, path=out),
        route(options, Std.ERR, local_rank=local_rank, rank=rank, path=err),
    )


def _setting(setting: Std | Mapping[int, Std], local_rank: int) -> Std:
    return setting if isinstance(setting, Std) else setting.get(local_rank, Std.NONE)


def _passes(ranks: frozenset[int] | None, rank: int) -> bool:
    """Whether a filter lets this rank through. None, or no rank at all: it is not set."""
    return not ranks or rank in ranks
