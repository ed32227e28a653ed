"""Where the output of one round's workers goes, decided: by the flags, or by a plug-in."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from rdzv_protocol.messages import Assignment

from node_agent.core.log_options import NO_FILES, LogOptions, Std
from node_agent.output.folder import RunFolder
from node_agent.output.routing import Route, passes, route

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class PluginFailed(Exception):
    """A plug-in cannot say where output goes; the message says why."""


class Destination(NamedTuple):
    """One stream of one worker. Neither a path nor shown: it is dropped."""

    path: str = ""
    """The file it is written to; empty: none."""
    shown: bool = True
    """Whether the console shows it."""
    marked: bool = False
    """Whether the console says whose lines they are, also if the user asked for no prefix."""


class WorkerLogs(NamedTuple):
    """What belongs to one worker."""

    stdout: Destination = Destination()
    stderr: Destination = Destination()
    environment: Mapping[str, str] = {ERROR_FILE: ""}
    """What the worker's environment needs for it."""

    @property
    def error_file(self) -> str:
        """Where torch's `@record` writes an error; empty: nowhere."""
        return self.environment.get(ERROR_FILE, "")

    @property
    def is_shown(self) -> bool:
        return self.stdout.shown or self.stderr.shown


class Destinations(NamedTuple):
    """Of all local workers, by local rank; and where what the filters let through is copied to."""

    workers: Sequence[WorkerLogs]
    filtered_stdout: str = ""
    filtered_stderr: str = ""

    @property
    def has_files(self) -> bool:
        """Whether the output of a worker goes to a file."""
        return any(worker.stdout.path or worker.stderr.path for worker in self.workers)


def by_flags(options: LogOptions, folder: RunFolder, assignment: Assignment) -> Destinations:
    """As torchrun lays them out; makes the folders. Raises `OSError`."""
    if options.log_dir == NO_FILES:
        return instead_of_files(options, assignment)
    attempt = folder.open_attempt(assignment.round)
    workers = []
    for local_rank in range(assignment.local_world_size):
        folder_of_worker = os.path.join(attempt, str(local_rank))
        os.mkdir(folder_of_worker)
        workers.append(
            WorkerLogs(
                stdout=_teed(_route(options, assignment, Std.OUT, local_rank), f"{folder_of_worker}/stdout.log"),
                stderr=_teed(_route(options, assignment, Std.ERR, local_rank), f"{folder_of_worker}/stderr.log"),
                environment={ERROR_FILE: f"{folder_of_worker}/error.json"},
            )
        )
    return Destinations(workers, f"{attempt}/filtered_stdout.log", f"{attempt}/filtered_stderr.log")


def instead_of_files(options: LogOptions, assignment: Assignment) -> Destinations:
    """What was to go to a file goes to the console, too, and says whose it is."""
    return Destinations(
        [
            WorkerLogs(
                _to_console(options, assignment, Std.OUT, local_rank),
                _to_console(options, assignment, Std.ERR, local_rank),
            )
            for local_rank in range(assignment.local_world_size)
        ]
    )


def narrowed(destinations: Destinations, options: LogOptions, assignment: Assignment) -> Destinations:
    """What a plug-in said, without the ranks that the console shall not show: torch's class knows local ranks alone."""
    workers = [
        worker
        if passes(options.ranks, assignment.first_rank + local_rank)
        else worker._replace(stdout=worker.stdout._replace(shown=False), stderr=worker.stderr._replace(shown=False))
        for local_rank, worker in enumerate(destinations.workers)
    ]
    return destinations._replace(workers=workers)


def _to_console(options: LogOptions, assignment: Assignment, stream: Std, local_rank: int) -> Destination:
    wanted = _route(options, assignment, stream, local_rank)
    possible = _route(replace(options, log_dir=NO_FILES), assignment, stream, local_rank)
    return Destination(shown=possible.to_console, marked=wanted.to_file)


def _teed(decided: Route, path: str) -> Destination:
    return Destination(path if decided.to_file else "", decided.to_console, decided.is_teed)


def _route(options: LogOptions, assignment: Assignment, stream: Std, local_rank: int) -> Route:
    return route(options, stream, local_rank=local_rank, rank=assignment.first_rank + local_rank)
