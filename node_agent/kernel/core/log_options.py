"""Options of the workers' output: streams that go to files or the console, and the prefix of a line."""

from collections.abc import Mapping
from enum import IntFlag

from msgspec import Struct

from node_agent import words


class Std(IntFlag):
    """Output streams, as numbers in `--redirects` and `--tee`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, text: str) -> "Std | dict[int, Std]":
        """A number for every worker, or a map from local ranks such as `0:1,1:3`; torch's method, which takes one digit
        for a rank. Raises `ValueError`.
        """
        try:
            if ":" not in text:
                return _stream(text)
            pairs = [pair.split(":") for pair in text.split(",")]
            return {_local_rank(rank): _stream(number) for rank, number in pairs}
        except ValueError:
            raise ValueError(words.values.not_streams(text)) from None


def _stream(text: str) -> Std:
    if text not in ("0", "1", "2", "3"):
        raise ValueError
    return Std(int(text))


def _local_rank(text: str) -> int:
    if not 0 <= (rank := int(text)) < 4096:
        raise ValueError
    return rank


NO_FILES = "/dev/null"
"""Value of `--log-dir` that means no log files and no error files, as under torchrun."""
PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""The environment variable with torchrun's template of a teed line's prefix."""
PREFIX_NAMES = ("role_name", "rank", "local_rank", "hostname", "node_id", "group_rank")
"""Names that `${...}` may have in a template; the first four are torchrun's."""


class LogOptions(Struct, frozen=True, kw_only=True):
    """The flags about logs, checked. A map leaves out the local ranks that it does not name."""

    log_dir: str | None = None
    """Parent of `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`, where files go. None: a temporary folder."""
    redirects: Std | Mapping[int, Std] = Std.NONE
    """Streams that go to a file instead of the console."""
    tee: Std | Mapping[int, Std] = Std.NONE
    """Streams that go to a file and to the console."""
    local_ranks: frozenset[int] | None = None
    """Local ranks whose output the console shows; None: all."""
    ranks: frozenset[int] | None = None
    """Global ranks whose output the console shows; None: all."""
    stdout_filters: tuple[str, ...] = ()
    """Lines with one of these go to `attempt_<n>/filtered_stdout.log`, too."""
    stderr_filters: tuple[str, ...] = ()
    prefix: str | None = None
    """Template of what every console line begins with; None: teed lines alone have one, `[<role><local_rank>]:`."""
    plugin: str | None = None
    """A `torchrun.logs_specs` entry point that decides the files instead."""
