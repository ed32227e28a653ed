"""Which output goes to files: torch's `LogsSpecs`."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from node_agent.api.maps import checked_streams
from node_agent.core.log_options import NO_FILES, LogOptions, Std

Streams = Std | Mapping[int, Std]


class DefaultLogsSpecs:
    """Which streams go to files below `log_dir`: `<log_dir>/<run id>_<random>/attempt_<n>/<local_rank>/stdout.log`.

    `redirects`: to the file alone. `tee`: to the file and the console. Either for all local ranks, or a map; ranks that
    it leaves out have `Std.NONE`, which is the console alone. `local_ranks_filter`: ranks that the console shows;
    None or empty: all. `log_dir` is made if it is missing; None: a temporary folder, which stays if anything was to go
    to files; `/dev/null`: no files at all. Raises `NotADirectoryError`, `TypeError` or `ValueError`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: Collection[int] | None = None,
    ) -> None:
        self.log_dir = os.fspath(log_dir) if log_dir else None
        self.redirects = checked_streams(redirects, "redirects")
        self.tee = checked_streams(tee, "tee")
        self.local_ranks_filter = frozenset(local_ranks_filter) if local_ranks_filter else None
        if (
            self.log_dir
            and self.log_dir != NO_FILES
            and os.path.exists(self.log_dir)
            and not os.path.isdir(self.log_dir)
        ):
            raise NotADirectoryError(f"log_dir: {self.log_dir} is a file: name a folder, or {NO_FILES} for no files")

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(log_dir={self.log_dir!r}, redirects={self.redirects!r}, tee={self.tee!r}, "
            f"local_ranks_filter={set(self.local_ranks_filter) if self.local_ranks_filter else None!r})"
        )


class LogsSpecs(Protocol):
    """torch's: a class of one's own that names the files. What it returns is torch's `LogsDest`."""

    def reify(self, envs: dict[int, dict[str, str]]) -> Any: ...


AnyLogsSpecs = DefaultLogsSpecs | LogsSpecs


def understood(specs: AnyLogsSpecs | None) -> DefaultLogsSpecs | LogsSpecs:
    """torch's own default class as ours; another one of torch's kind as it is. Raises `TypeError`."""
    if specs is None:
        return DefaultLogsSpecs()
    if isinstance(specs, DefaultLogsSpecs):
        return specs
    kind = type(specs)
    if kind.__name__ == "DefaultLogsSpecs" and kind.__module__.partition(".")[0] == "torch":
        given: Any = specs
        return DefaultLogsSpecs(given._root_log_dir, given._redirects, given._tee, given._local_ranks_filter)
    if callable(getattr(specs, "reify", None)):
        return specs
    raise TypeError(f"logs_specs: a DefaultLogsSpecs, or a class with torch's reify(), not {specs!r:.80}")


def as_options(
    specs: DefaultLogsSpecs, stdout_filters: Sequence[str] | None, stderr_filters: Sequence[str] | None
) -> LogOptions:
    """What the agent's own logs go by. Raises `TypeError`."""
    return LogOptions(
        log_dir=specs.log_dir,
        redirects=specs.redirects,
        tee=specs.tee,
        local_ranks=specs.local_ranks_filter,
        stdout_filters=_texts(stdout_filters, "duplicate_stdout_filters"),
        stderr_filters=_texts(stderr_filters, "duplicate_stderr_filters"),
    )


def _texts(given: Sequence[str] | None, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(text, str) and text for text in given or ()):
        raise TypeError(f"{what}: a list of texts to look for, not {given!r:.80}")
    return tuple(given or ())
