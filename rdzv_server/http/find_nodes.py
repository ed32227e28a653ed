"""Search for nodes by name over all runs, since the list of runs on pages does not contain names of nodes."""

from functools import partial

from msgspec import Struct
from rdzv_protocol.constraints import Id

from rdzv_server.core.kernel.run import Run
from rdzv_server.service.interface import Service, Shows, latest_runs
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read

MOST_NAMED = 4
"""Most nodes of a run that the answer names."""


class RunWithNodes(Struct, frozen=True):
    """Run with matching nodes: the first few, and the number of others."""

    run_id: Id
    nodes: list[str]
    more: int = 0


class FoundNodes(Struct, frozen=True):
    """Runs with nodes whose names contain the text, ignoring case."""

    runs: list[RunWithNodes]


async def find_nodes(service: Service, shows: Shows | None, name: str) -> FoundNodes:
    """Search the latest attempts of the runs that `shows` accepts, in slices. If `shows` is None: of all runs."""
    found = []
    for run in latest_runs(service, shows).values():
        await checkpoint()
        if names := read(run, partial(_names, run, name.casefold()), lambda _: []):
            found.append(RunWithNodes(run.run_id, names[:MOST_NAMED], max(0, len(names) - MOST_NAMED)))
    return FoundNodes(found)


def _names(run: Run, wanted: str) -> list[str]:
    """Return the sorted names of the run's nodes that contain the text."""
    return sorted({agent.node_id for agent in run.agents.values() if wanted in agent.node_id.casefold()})
