"""Where a worker's output goes: torch's rules (`DefaultLogsSpecs.reify` of torch 2.13), and what we add to them."""

from collections.abc import Mapping
from typing import NamedTuple

from node_agent.core.log_options import NO_FILES, LogOptions, Std


class Route(NamedTuple):
    """One stream of one worker. To neither: it is dropped."""

    to_file: bool
    to_console: bool

    @property
    def is_teed(self) -> bool:
        return self.to_file and self.to_console


def route(options: LogOptions, stream: Std, *, local_rank: int, rank: int) -> Route:
    """Redirected: the file alone. Teed: the file and the console. Neither: the console alone.

    The filters by rank narrow what the console shows, never what files hold. Without files everything goes to the
    console, as torchrun does; unlike there, the filters hold then, too.
    """
    redirected = stream in _setting(options.redirects, local_rank)
    teed = stream in _setting(options.tee, local_rank)
    shown = passes(options.local_ranks, local_rank) and passes(options.ranks, rank)
    if options.log_dir == NO_FILES:
        return Route(to_file=False, to_console=shown)
    return Route(to_file=redirected or teed, to_console=shown and (teed or not redirected))


def _setting(setting: Std | Mapping[int, Std], local_rank: int) -> Std:
    return setting if isinstance(setting, Std) else setting.get(local_rank, Std.NONE)


def passes(ranks: frozenset[int] | None, rank: int) -> bool:
    """Whether a filter lets this rank through. None, or no rank at all: it is not set."""
    return not ranks or rank in ranks
