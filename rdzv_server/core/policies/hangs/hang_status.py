"""Hang of a run, as its status shows it."""

from typing import Annotated

from msgspec import Meta, Struct
from rdzv_protocol.constraints import Duration, Id, Rank

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.policies.hangs.hang_policy import Hangs


class HangStatus(Struct, frozen=True, kw_only=True):
    """Workers of the running round that seem to hang."""

    age_s: Duration
    nodes: Annotated[list[str], Meta(description="nodes whose agents report the hang")]
    reason: Annotated[str, Meta(description="reason that the first of them reports")]
    reported: Annotated[bool, Meta(description="the server has judged the hang and reported it as an event")]
    verdict: Annotated[str, Meta(description="sentence about the rank to blame; empty: the server has not judged yet")]
    node: Annotated[Id | None, Meta(description="node to blame; null: unknown, or the server has not judged yet")]
    rank: Annotated[Rank | None, Meta(description="rank to blame; null: unknown, or the server has not judged yet")]
    withheld: Annotated[
        str, Meta(description="why the hang has caused no restart, and which limit may be too short; may be empty")
    ]
    restarts_in_s: Annotated[
        float | None, Meta(description="seconds until the hang causes a restart, if it lasts; null: never")
    ]


def view(run: Run, now: float) -> HangStatus | None:
    """Return the status of the run's hang; None if none is suspected."""
    hang = Hangs.of(run).hang
    if hang is None:
        return None
    suspicions, verdict = list(hang.suspicions.values()), hang.verdict
    return HangStatus(
        age_s=round(now - hang.since, 3),
        nodes=list(dict.fromkeys(each.node_id for each in suspicions)),
        reason=suspicions[0].reason if suspicions else "",
        reported=hang.is_reported,
        verdict=verdict.sentence if verdict else "",
        node=verdict.node_id if verdict else None,
        rank=verdict.rank if verdict else None,
        withheld=Hangs.withheld(run, now) if hang.charge_at is not None else "",
        restarts_in_s=None if hang.charge_at is None else round(max(0.0, hang.charge_at - now), 3),
    )
