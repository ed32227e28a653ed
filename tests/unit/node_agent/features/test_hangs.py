"""Reports of workers that may hang, as people and the server get them."""

from types import SimpleNamespace
from typing import Any

import pytest

from node_agent.features.hangs import words
from node_agent.features.hangs.detector import Suspicion
from node_agent.features.hangs.feature import LONGEST_SOURCE, suspect
from node_agent.kernel.core.effects import Level
from node_agent.kernel.core.events import Suspected
from tests.unit.node_agent.story import an_assignment


@pytest.mark.parametrize(
    ("local_ranks", "says"),
    [
        ((1,), words.may_hang((3,), "stuck")),
        ((0, 1), words.may_hang((2, 3), "stuck")),
        ((), words.no_longer_hung("progress")),
    ],
)
def test_ranks_match_the_run(local_ranks: tuple[int, ...], says: str) -> None:
    event = reported(Suspicion("progress", "stuck", local_ranks, silent_s=9.0, limit_s=8.0))
    assert event.ranks == tuple(2 + rank for rank in local_ranks)
    assert (event.round, event.source, event.reason, event.silent_s, event.limit_s) == (
        1,
        "progress",
        "stuck",
        9.0,
        8.0,
    )
    assert (event.log.text, event.log.level, event.log.event) == (says, Level.WARNING, "hang_suspected")


def test_the_name_of_a_source_has_a_limit() -> None:
    assert reported(Suspicion("x" * 999, "stuck", ())).source == "x" * LONGEST_SOURCE


def reported(found: Suspicion) -> Suspected:
    """Return the event that the agent's machine gets."""
    events: list[Suspected] = []
    kernel: Any = SimpleNamespace(assignment=an_assignment(1), suspect=events.append)
    suspect(kernel, found)
    (event,) = events
    return event
