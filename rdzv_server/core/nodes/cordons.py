"""Cordons of nodes, as people and runs see them."""

from collections.abc import Iterable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from rdzv_protocol.constraints import Id

from rdzv_server.core import events
from rdzv_server.core.events import Cordon
from rdzv_server.core.kernel.run import Run

MOST_CORDONS = 1_000
"""Most cordons of a server: a snapshot of them is one record."""
MOST_EXCLUSIONS = 900
"""Most cordons by which the server itself excludes nodes. The others are left to operators, since agents can make up
nodes and have them excluded.
"""
MOST_OF_RUN = 128
"""Most cordons of a run that are for this run only."""

Given = TypeVar("Given", bound=Cordon | events.NodeOperation)


class CordonStatus(Struct, frozen=True, kw_only=True):
    """Cordon of a node, which gets no seat in a new round: its author, its reason and its end."""

    node_id: Id
    by: str
    reason: str
    until: Annotated[
        float | None,
        Meta(description="time at which the cordon ends, in seconds since 1970; null: only an operator ends it"),
    ]
    drained: Annotated[bool, Meta(description="the server has asked the node's agents to leave")]
    excluded: Annotated[bool, Meta(description="the server itself excludes the node, because runs blamed it")]
    since: Annotated[
        float | None, Meta(description="time at which the cordon began, in seconds since 1970; null: not known")
    ] = None


def status(given: Cordon) -> CordonStatus:
    """Return the status of a cordon."""
    return CordonStatus(
        node_id=given.node_id,
        by=given.by,
        reason=given.reason,
        until=given.wall_until,
        drained=given.drain_s is not None,
        excluded=given.excludes,
        since=given.wall_at,
    )


def for_others(given: Given) -> Given:
    """Return the cordon, or the action on a node, for runs other than the one that its reason quotes."""
    if not isinstance(given, Cordon | events.NodeCordoned) or not given.general:
        return given
    return replace(given, reason=given.general, general="")


def known_to(runs: Iterable[Run], given: Iterable[CordonStatus]) -> list[CordonStatus]:
    """Return the given cordons that these runs know, in the runs' own words: cordons of nodes that take part."""
    known: dict[str, Cordon] = {}
    for run in runs:
        for cordon in () if run.stage.is_end else run.cordons.values():
            if cordon.node_id not in known or cordon.general:
                known[cordon.node_id] = cordon
    return [status(known[each.node_id]) for each in given if each.node_id in known]
