"""Specification of one worker."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from node_agent.kernel.output.streams import Stream
from node_agent.kernel.processes.process import Start


class WorkerSpec(Struct, frozen=True, kw_only=True):
    """One worker to start."""

    node_id: str
    rank: int
    local_rank: int
    title: str
    """Name of what is executed, for people."""
    start: Start
    open_streams: Callable[[], tuple[Stream, Stream]]
    """Open the worker's stdout and stderr. Called when the worker is about to start."""
    error_file: str = ""
    """File to which torch's `@record` writes the error, empty for none."""
    environment: Mapping[str, str] = {}
    """Its environment, with the names of the places where it can be asked what it is doing."""
