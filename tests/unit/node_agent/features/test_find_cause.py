"""Answers to the server's question for the worker that failed first."""

from types import SimpleNamespace
from typing import Any

import pytest
from rdzv_protocol.queries import CauseSought, FindCause, Refused

from node_agent.features.find_cause import CauseFinder


def feature(*found: bool) -> Any:
    """Return the feature of an agent that finds the cause in these looks."""
    looks = list(found)

    async def report_raised() -> bool:
        return looks.pop(0)

    group = SimpleNamespace(report_raised=report_raised)
    started = SimpleNamespace(assignment=SimpleNamespace(round=3), group=group)
    made: Any = object.__new__(CauseFinder)
    made.kernel = SimpleNamespace(
        started=started, config=SimpleNamespace(join=SimpleNamespace(node_id="a")), looks=looks
    )
    return made


@pytest.mark.parametrize("looks", [[True], [False, True], [False, False]], ids=str)
async def test_the_agent_looks_for_the_cause_until_there_is_no_time_left_to_report_it(looks: list[bool]) -> None:
    causes = feature(*looks)
    answer = await causes.answer(FindCause(number=1, round=3, remaining_s=0.01))
    assert answer == CauseSought(found=looks[-1])
    assert not causes.kernel.looks


async def test_an_agent_without_workers_of_the_round_does_not_know_the_cause() -> None:
    assert isinstance(await feature().answer(FindCause(number=1, round=2, remaining_s=1.0)), Refused)
