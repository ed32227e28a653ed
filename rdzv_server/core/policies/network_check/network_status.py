"""Broken links of a run, as its status and its watched document show them."""

from typing import Annotated

from msgspec import Meta, Struct
from rdzv_protocol.constraints import Id

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.policies.network_check.network_policy import broken_links


class BrokenLinkStatus(Struct, frozen=True, kw_only=True):
    """Two nodes between which the last network test has failed although both take part."""

    nodes: Annotated[tuple[Id, Id], Meta(description="names of the two nodes")]
    problem: Annotated[str, Meta(description="reason of the failure, with the address and port")]


def view(run: Run) -> list[BrokenLinkStatus]:
    """Return the links that the last network test has found broken; empty if the run has ended."""
    found = list[BrokenLinkStatus]()
    for link in () if run.stage.is_end else broken_links(run):
        one, other = (run.agents[each].node_id for each in link.agents)
        found.append(BrokenLinkStatus(nodes=(one, other), problem=link.problem))
    return found
