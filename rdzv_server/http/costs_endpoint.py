"""Costs of an operator's action, for a person who is about to confirm it."""

from functools import partial

from msgspec import Struct

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import costs
from rdzv_server.core.views.costs import Cost, Question
from rdzv_server.service.interface import Service, Shows
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read
from rdzv_server.words import costs as words


class Costs(Struct, frozen=True):
    """Costs of an action: a sentence, and whether a person should confirm them first."""

    sentence: str
    is_high: bool


async def costs_of(service: Service, shows: Shows | None, action: str, run_id: str, asked: Question) -> Costs:
    """Return the costs of the action in the run, or of an action on a node in all active runs that have the node."""
    latest = {run.run_id: run for run in service.runs() if shows is None or shows(run.run_id)}
    found: list[tuple[Run, Cost]] = []
    for run in [latest[run_id]] if run_id in latest else latest.values() if asked.node_id else ():
        await checkpoint()
        if not asked.node_id or (not run.stage.is_end and run.agents_of(asked.node_id)):
            cost = partial(costs.of_action, action, run, asked, service.now(run.run_id))
            found.append((run, read(run, cost, lambda _: Cost(""))))
    told = [words.of_run(run.run_id, cost.sentence) if asked.node_id else cost.sentence for run, cost in found]
    return Costs(". ".join(filter(None, told)), any(cost.is_high for _, cost in found))
