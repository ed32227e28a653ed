"""Benchmark of a year: which node the launcher's events name for a fault."""

import pytest

from benchmarks.year.campaign import blamed

STARTED = {"kind": "round_started"}
FAILED, LOST = {"kind": "workers_failed", "node_id": "a"}, {"kind": "node_lost", "node_id": "b"}


@pytest.mark.parametrize(
    ("said", "node"),
    [
        ([FAILED, STARTED], "a"),
        ([FAILED, LOST, STARTED], "b"),
        ([FAILED, STARTED, LOST], "a"),
        ([STARTED, LOST, STARTED], "b"),
        ([{"kind": "node_joined", "node_id": "c"}, STARTED], None),
        ([], None),
    ],
    ids=[
        "a failure", "a loss explains the failures", "the next round's end does not count",
        "the round started just after the fault", "no end", "no event",
    ],
)  # fmt: skip
def test_the_node_that_ended_the_round(said: list[dict[str, str]], node: str | None) -> None:
    assert blamed(said) == node
