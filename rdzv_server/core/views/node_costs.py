"""Costs of a node for its runs: blame, rounds that ended because of the node, and lost time."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from rdzv_protocol.constraints import Count, Duration, Id

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_history import EXCLUDED, OF_KERNEL, Incident
from rdzv_server.core.nodes.cordons import CordonStatus
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.policies.timeline import RoundSpan
from rdzv_server.core.views.timeline_view import rounds_up_to

Shows = Callable[[str], bool]
FAULTS = (*OF_KERNEL, *(fault for policy in POLICIES for fault in policy.faults))
if TYPE_CHECKING:
    FaultName = str
else:
    FaultName = Literal[(*(fault.name for fault in FAULTS), EXCLUDED)]
"""Name of a fault of the kernel or of a policy, or `EXCLUDED`."""


class IncidentStatus(Struct, frozen=True, kw_only=True):
    """Blame of a node by a run, or the server's exclusion of the node."""

    at: Annotated[float | None, Meta(description="seconds since 1970; null if unknown")]
    fault: Annotated[FaultName, Meta(description="what the node is blamed for; `excluded`: the server excluded it")]
    run_id: Annotated[
        str, Meta(description="run that blames the node; empty if there is none, or if you may not see it")
    ]
    reason: Annotated[str, Meta(description="reason; empty if you may not see the run")]


class NodeCost(Struct, frozen=True, kw_only=True):
    """Cost of a node for one attempt of a run. The seconds are those that the whole run lost, not only this node."""

    run_id: Id
    attempt: Count
    takes_part: Annotated[bool, Meta(description="true if the run is active and has an agent on this node")]
    failures: Annotated[
        Count, Meta(description="failures of the node's workers that were the first failure of their round")
    ]
    losses: Annotated[
        Count,
        Meta(description="number of times that the run lost the node; the run remembers only its latest departures"),
    ]
    rounds: Annotated[
        Count,
        Meta(description="number of rounds that these failures and losses ended, of those that the run remembers"),
    ]
    stood_s: Annotated[Duration, Meta(description="time that these rounds stood still before that was detected")]
    lost_s: Annotated[
        Duration, Meta(description="work of these rounds since their last checkpoint, which the run must repeat")
    ]
    formed_s: Annotated[Duration, Meta(description="time until the next rounds had formed")]


class NodeCosts(Struct, frozen=True, kw_only=True):
    """Costs of a node for all runs that this server remembers, the latest first."""

    node_id: Annotated[str, Meta(description="name in the request")]
    cordon: CordonStatus | None
    incidents: list[IncidentStatus]
    runs: list[NodeCost]


def incident(each: Incident, shows: Shows | None) -> IncidentStatus:
    """Return the status of an incident, with the run and the reason only if the reader may see that run."""
    is_shown = shows is None or (bool(each.run_id) and shows(each.run_id))
    shown = (each.run_id, each.reason) if is_shown else ("", "")
    return IncidentStatus(at=each.wall_at, fault=each.fault, run_id=shown[0], reason=shown[1])


def of_run(run: Run, node_id: str, now: float) -> NodeCost | None:
    """Return the cost of the node for a run; None if the run does not remember the node."""
    departures = [gone for gone in run.departures if gone.node_id == node_id]
    losses = [gone for gone in departures if not gone.left]
    failures, takes_part = run.failures_by_node.get(node_id, 0), node_id in run.node_ids and not run.stage.is_end
    if not (departures or failures or node_id in run.node_ids):
        return None
    ended = {gone.round for gone in losses} | _failed_rounds(run, node_id)
    spans = [span for span in _with_next(rounds_up_to(run, now)) if ended & {*range(span[0].first, span[0].last + 1)}]
    return NodeCost(
        run_id=run.run_id,
        attempt=run.attempt,
        takes_part=takes_part,
        failures=failures,
        losses=len(losses),
        rounds=len(ended),
        stood_s=_sum(_share(this, ended) * this.detecting_s for this, _ in spans),
        lost_s=_sum(_share(this, ended) * this.lost_s for this, _ in spans),
        formed_s=_sum(next_.forming_s + next_.waiting_s for _, next_ in spans if next_),
    )


def _failed_rounds(run: Run, node_id: str) -> set[int]:
    """Return the rounds, of those that the run remembers, whose first failure was on this node."""
    first: dict[int, str] = {}
    for record in run.failures:
        if record.failure.singled_out and not record.failure.consequence:
            first.setdefault(record.round, record.failure.node_id)
    return {round_ for round_, node in first.items() if node == node_id}


def _with_next(spans: Sequence[RoundSpan]) -> Iterable[tuple[RoundSpan, RoundSpan | None]]:
    return zip(spans, [*spans[1:], None], strict=True)


def _share(span: RoundSpan, ended: set[int]) -> float:
    """Return the share of a span's rounds that are in `ended`. A span may merge several short rounds."""
    return len(ended & {*range(span.first, span.last + 1)}) / (span.last + 1 - span.first)


def _sum(seconds: Iterable[float]) -> float:
    return round(sum(seconds), 3)
