"""Runs that wait for nodes and may be one: their nodes gave different run ids, for example `--rdzv-id $RANDOM`.

None of them can begin, and each node only sees that others are missing. So the server warns the agents if two runs have
waited for a while for the same number of nodes, with the same command.
"""

from collections.abc import Iterable
from itertools import islice

from rdzv_server.core.kernel import legal_sizes
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.words import runs as words

WAITED_S = 10.0
"""Seconds for which both runs must have waited: longer than the nodes of a run usually take to come."""
MOST_COMPARED = 64
"""Most runs that a run is compared with: the latest."""


def warning(run: Run, newest: Iterable[Run], now: float) -> str:
    """Return the warning for an agent of the run; empty if there is none. `newest`: all runs, the newest first.

    An agent with a token for some runs learns nothing about other runs.
    """
    if not _lacks_first_nodes(run, now):
        return ""
    others = (other for other in islice(newest, MOST_COMPARED) if other is not run)
    other = next((other for other in others if _lacks_first_nodes(other, now) and _is_alike(run, other)), None)
    return words.may_be_one(run.run_id, other.run_id) if other else ""


def _lacks_first_nodes(run: Run, now: float) -> bool:
    """Return whether the run has waited for a while for nodes to begin its first round."""
    if run.stage is not Stage.FORMING or run.membership is not None or run.is_scoped:
        return False
    is_below = 0 < len(run.waiting) < legal_sizes.smallest(run.settings)
    return is_below and now - run.opening.below_since >= WAITED_S


def _is_alike(run: Run, other: Run) -> bool:
    """Return whether the nodes of both runs have the same command and would fit into one run."""
    commands = {next(iter(each.waiting.values())).join.command for each in (run, other)}
    sizes = {(each.settings.min_nodes, each.settings.max_nodes) for each in (run, other)}
    fits = len(run.waiting) + len(other.waiting) <= run.settings.max_nodes
    return len(commands) == len(sizes) == 1 and "" not in commands and fits
