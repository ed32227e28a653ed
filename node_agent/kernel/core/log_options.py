"""Options of the workers' output: which streams go to files or the console, and the prefix of a line."""

from collections.abc import Mapping
from enum import IntFlag

from msgspec import Struct

from node_agent import words


class Std(IntFlag):
    """Output streams, numbered as in `--redirects` and `--tee`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, text: str) -> "Std | dict[int, Std]":
        """Parse a number for every worker, or a map from local ranks such as `0:1,1:3`. Raises `ValueError`.

        This is torch's method, but torch accepts only one digit for a rank.
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
"""Environment variable with torchrun's template for the prefix of a teed line."""
PREFIX_NAMES = ("role_name", "rank", "local_rank", "hostname", "node_id", "group_rank")
"""Names allowed in `${...}` of a template. The first four are torchrun's."""


class LogOptions(Struct, frozen=True, kw_only=True):
    """Checked flags about logs. A map holds only the local ranks that the user names."""

    log_dir: str | None = None
    """Parent of `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`, the folder of the files. None for a temporary
    folder."""
    redirects: Std | Mapping[int, Std] = Std.NONE
    """Streams that go to a file instead of the console."""
    tee: Std | Mapping[int, Std] = Std.NONE
    """Streams that go to a file and to the console."""
    local_ranks: frozenset[int] | None = None
    """Local ranks whose output the console shows, None for all."""
    ranks: frozenset[int] | None = None
    """Global ranks whose output the console shows, None for all."""
    stdout_filters: tuple[str, ...] = ()
    """Texts to search for. A line with one of them is copied to `attempt_<n>/filtered_stdout.log`."""
    stderr_filters: tuple[str, ...] = ()
    prefix: str | None = None
    """Template for the prefix of every console line. None means `[<role><local_rank>]:`, for teed lines only."""
    plugin: str | None = None
    """Name of a `torchrun.logs_specs` entry point that chooses the files instead."""
