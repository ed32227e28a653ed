"""Costs of an operator's action before it is carried out, and what a node has cost runs."""

from functools import partial

from msgspec import Struct
from rdzv_protocol.actions import ACTIONS
from rdzv_protocol.errors import MalformedMessage

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import costs, node_costs
from rdzv_server.core.views.costs import Cost, Question
from rdzv_server.core.views.node_costs import NodeCost, NodeCosts
from rdzv_server.service.interface import Service, Shows, latest_runs, state_for
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read
from rdzv_server.words import costs as words

NAMES = tuple(action.name for action in ACTIONS)


class Costs(Struct, frozen=True):
    """Costs of an action: a sentence, and whether a person should confirm them first."""

    sentence: str
    is_high: bool


async def costs_of(service: Service, shows: Shows | None, action: str, run_id: str, asked: Question) -> Costs:
    """Return the costs of the action in the run, or of an action on a node in all active runs that have the node.

    Raises `MalformedMessage` if there is no such action.
    """
    if action not in NAMES:
        raise MalformedMessage(words.unknown_action(action, NAMES))
    latest = latest_runs(service, shows)
    found: list[tuple[Run, Cost]] = []
    for run in [latest[run_id]] if run_id in latest else latest.values() if asked.node_id else ():
        await checkpoint()
        if not asked.node_id or (not run.stage.is_end and run.agents_of(asked.node_id)):
            cost = partial(costs.of_action, action, run, asked, service.now(run.run_id))
            found.append((run, read(run, cost, lambda _: Cost(""))))
    told = [(run, cost.sentence) for run, cost in found if cost.sentence]
    sentences = [words.of_run(run.run_id, sentence) if asked.node_id else sentence for run, sentence in told]
    return Costs(". ".join(sentences), any(cost.is_high for _, cost in found))


async def costs_of_node(service: Service, shows: Shows | None, node_id: str) -> NodeCosts:
    """Return the costs of a node for the runs of this server that `shows` accepts; for all runs if it is None."""
    found: list[NodeCost] = []
    for run in reversed(service.runs()):
        await checkpoint()
        if shows is None or shows(run.run_id):
            cost = partial(node_costs.of_run, run, node_id, service.now(run.run_id))
            found += filter(None, [read(run, cost, lambda _: None)])
    incidents = [node_costs.incident(each, shows) for each in service.incidents_of(node_id)]
    return NodeCosts(
        node_id=node_id,
        cordon=next((each for each in state_for(service, shows).cordons if each.node_id == node_id), None),
        incidents=sorted(incidents, key=lambda each: -(each.at or 0.0)),
        runs=found,
    )
