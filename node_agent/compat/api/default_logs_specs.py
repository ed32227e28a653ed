"""Destinations of the workers' output, as in torch: `DefaultLogsSpecs`, and `LogsDest`, which a program's own classes
return.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node_agent import words
from node_agent.kernel.core.log_options import NO_FILES, LogOptions, Std
from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.output.folder import RunFolder
from node_agent.kernel.output.routing import Routing, by_flags, by_plugin
from node_agent.kernel.processes.temp_dir import TempDir

Streams = Std | Mapping[int, Std]


@dataclass
class LogsDest:
    """Files of each local rank; torch's class. The console shows streams without a path, and those in `tee_*`."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """Base of a program's own classes that name the files; torch's class. A class without this base works too."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return a `LogsDest` for workers with these environments, by local rank. It may add variables to them."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """Folder in which the runs' folders are made."""


@dataclass
class DefaultLogsSpecs(LogsSpecs):
    """Streams that go to files below `log_dir`: `<log_dir>/<run id>_<random>/attempt_<n>/<local_rank>/stdout.log`.

    - `redirects`: streams that go only to the file.
    - `tee`: streams that go to the file and the console.
    - `local_ranks_filter`: ranks that the console shows; None or empty for all.
    - `log_dir`: folder, made if it is missing. None means a temporary folder, which is kept if any output goes to
      files. `/dev/null` means no files.

    `redirects` and `tee` are one value for all local ranks, or a map. Ranks that the map lacks have `Std.NONE`, which
    means only the console. Raises `NotADirectoryError`, `TypeError` or `ValueError`.
    """

    log_dir: str | os.PathLike[str] | None = None
    redirects: Streams = Std.NONE
    tee: Streams = Std.NONE
    local_ranks_filter: Collection[int] | None = None

    def __post_init__(self) -> None:
        self.log_dir = os.fspath(self.log_dir) if self.log_dir else None
        self.redirects = checked_streams(self.redirects, "redirects")
        self.tee = checked_streams(self.tee, "tee")
        self.local_ranks_filter = frozenset(self.local_ranks_filter) if self.local_ranks_filter else None
        self._folder: RunFolder | None = None
        if self.log_dir not in (None, NO_FILES) and os.path.exists(self.log_dir) and not os.path.isdir(self.log_dir):
            raise NotADirectoryError(words.api.log_dir_is_a_file(self.log_dir, NO_FILES))

    @property
    def root_log_dir(self) -> str:
        """Folder in which the runs' folders are made, a new temporary folder if none was named."""
        if self.log_dir is None:
            self.log_dir = tempfile.mkdtemp(prefix="node-agent-logs-")
        return os.fspath(self.log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders of the next attempt and return the destinations. Set each error file in `envs`, by local
        rank.

        This is torch's method, for programs that call it. `elastic_launch` and `start_processes` do not. Raises
        `OSError`.
        """
        options = as_options(self, log_dir=self.root_log_dir)
        self._folder = self._folder or RunFolder(options, _run_id(envs) or "run", TempDir())
        decided = by_flags(options, self._folder, *_one_round(envs))
        has_files = options.log_dir != NO_FILES
        destination = LogsDest(filtered_stdout=decided.filtered_stdout, filtered_stderr=decided.filtered_stderr)
        for rank, worker in enumerate(decided.workers):
            envs[rank].update(worker.environment)
            destination.error_files[rank] = worker.error_file or NO_FILES
            for stream, paths, teed in (
                (worker.stdout, destination.stdouts, destination.tee_stdouts),
                (worker.stderr, destination.stderrs, destination.tee_stderrs),
            ):
                paths[rank] = stream.path or ("" if stream.shown else NO_FILES)
                if stream.shown and (stream.path or not has_files):
                    teed[rank] = stream.path or NO_FILES
        return destination


AnyLogsSpecs = DefaultLogsSpecs | LogsSpecs


def understood(specs: AnyLogsSpecs | None) -> tuple[DefaultLogsSpecs, LogsSpecs | None]:
    """Return the specs as our class, and the program's own class to ask instead, or None. Raises `TypeError`."""
    if specs is None:
        return DefaultLogsSpecs(), None
    kind = type(specs)
    if isinstance(specs, DefaultLogsSpecs) and kind.reify is DefaultLogsSpecs.reify:
        return specs, None
    if kind.__name__ == "DefaultLogsSpecs" and kind.__module__.partition(".")[0] == "torch":
        given: Any = specs
        return DefaultLogsSpecs(given._root_log_dir, given._redirects, given._tee, given._local_ranks_filter), None
    if callable(getattr(specs, "reify", None)):
        return DefaultLogsSpecs(), specs
    raise TypeError(words.api.not_logs_specs(specs))


def as_options(
    specs: DefaultLogsSpecs,
    stdout_filters: Sequence[str] | None = None,
    stderr_filters: Sequence[str] | None = None,
    log_dir: str | None = None,
) -> LogOptions:
    """Return the agent's options that are equivalent to the specs. Raises `TypeError`."""
    return LogOptions(
        log_dir=log_dir or (os.fspath(specs.log_dir) if specs.log_dir else None),
        redirects=specs.redirects,
        tee=specs.tee,
        local_ranks=frozenset(specs.local_ranks_filter) if specs.local_ranks_filter else None,
        stdout_filters=_texts(stdout_filters, "duplicate_stdout_filters"),
        stderr_filters=_texts(stderr_filters, "duplicate_stderr_filters"),
    )


def by_logs_specs(specs: LogsSpecs, environments: Sequence[Mapping[str, str]]) -> Routing:
    """Return the routing of a program's own class. The class may add variables to the environments."""
    given = {local_rank: dict(environment) for local_rank, environment in enumerate(environments)}
    decided = specs.reify(given)
    error_files = [given[rank].get(ERROR_FILE, decided.error_files.get(rank, "")) for rank in given]
    return by_plugin(decided, [{ERROR_FILE: path} for path in error_files])


def by_default_specs(
    options: LogOptions,
    name: str,
    environments: Mapping[int, Mapping[str, str]],
    scratch: TempDir,
    *,
    is_plain: bool = False,
) -> Routing:
    """Return the files of processes that belong to no run, or to the run in their environments. Make the folders.

    `is_plain`: whether the folder is of these processes only. Raises `OSError`.
    """
    kind = PlainFolder if is_plain else RunFolder
    folder = kind(options, _run_id(environments) or name, scratch)
    return by_flags(options, folder, *_one_round(environments))


class PlainFolder(RunFolder):
    """Folder with a folder for each process, `<log_dir>/<local_rank>/`, as in torch before 2.3."""

    def open_attempt(self, round_: int, workers: int) -> str:
        folder = os.path.abspath(self.parent)
        for local_rank in range(workers):
            os.makedirs(f"{folder}/{local_rank}")
        return folder


def check_empty(log_dir: str | os.PathLike[str]) -> None:
    """Check that a folder has no files of earlier processes. Raises `RuntimeError`, as torch did."""
    if os.path.isdir(log_dir) and os.listdir(log_dir):
        raise RuntimeError(words.api.log_dir_not_empty(os.fspath(log_dir)))


def _one_round(environments: Mapping[int, Mapping[str, str]]) -> tuple[int, range]:
    """Return a round and its ranks for the logs, from the environments if they have them."""
    restarts = environments[0].get("TORCHELASTIC_RESTART_COUNT", "") if environments else ""
    return int(restarts) + 1 if restarts.isdecimal() else 1, range(len(environments))


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return a map with each local rank's setting, `Std.NONE` for missing ranks, from one setting or a map; as in
    torch.
    """
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}


def checked_streams(given: Std | int | Mapping[int, Std | int], what: str) -> Std | dict[int, Std]:
    """Return streams given as our `Std`, torch's, or plain numbers. Raises `TypeError` or `ValueError`."""
    if isinstance(given, Mapping):
        for rank in given:
            if not is_rank(rank):
                raise TypeError(words.api.not_a_local_rank(what, rank))
        return {rank: _stream(value, f"{what}[{rank}]") for rank, value in given.items()}
    return _stream(given, what)


def is_rank(key: object) -> bool:
    return isinstance(key, int) and not isinstance(key, bool) and key >= 0


def _stream(value: Std | int, what: str) -> Std:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(words.api.not_streams(what, value))
    if value not in (0, 1, 2, 3):
        raise ValueError(words.api.not_a_number_of_streams(what, value))
    return Std(int(value))


def _run_id(environments: Mapping[int, Mapping[str, str]]) -> str:
    return environments[0].get("TORCHELASTIC_RUN_ID", "") if environments else ""


def _texts(given: Sequence[str] | None, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(text, str) and text for text in given or ()):
        raise TypeError(words.api.not_texts(what, given))
    return tuple(given or ())
