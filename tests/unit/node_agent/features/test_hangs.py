"""Reports of workers that may hang, as people and the server get them, and what /proc shows of the workers."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent.features import hangs as options
from node_agent.features.hangs import words
from node_agent.features.hangs.feature import LONGEST_SOURCE, Hangs, suspect, threads_asleep
from node_agent.features.hangs.progress_source import ProgressLimits
from node_agent.features.hangs.suspicion import Suspicion
from node_agent.in_worker import KINDS
from node_agent.kernel.core.effects import Level
from node_agent.kernel.core.events import Suspected
from node_agent.kernel.core.progress import Reading, Spent
from tests.support import leaderless
from tests.support.process_info import until
from tests.unit.node_agent.story import an_assignment


def test_hang_detection_is_off_by_default() -> None:
    assert not options.Hangs().is_on


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


@pytest.mark.parametrize(
    ("nodes", "local_ranks", "level", "says"),
    [
        (1, (1,), Level.WARNING, words.may_hang((3,), "stuck")),
        (1, (), Level.WARNING, words.no_longer_hung("silence")),
        (2, (1,), Level.ROUTINE, words.node_is_silent("stuck")),
        (2, (), Level.ROUTINE, words.NODE_WRITES_AGAIN),
    ],
)
def test_the_silence_of_one_of_several_nodes_does_not_cause_a_warning(
    nodes: int, local_ranks: tuple[int, ...], level: Level, says: str
) -> None:
    event = reported(Suspicion("silence", "stuck", local_ranks), nodes=nodes)
    assert (event.log.text, event.log.level, bool(event.ranks)) == (says, level, bool(local_ranks))


def test_the_name_of_a_source_has_a_limit() -> None:
    assert reported(Suspicion("x" * 999, "stuck", ())).source == "x" * LONGEST_SOURCE


async def test_the_time_after_a_notice_is_not_learned() -> None:
    """The workers may wait for long then, and a final save is no usual checkpoint."""
    now, assignment = asyncio.get_running_loop().time(), an_assignment(1)
    spent = {**dict.fromkeys(KINDS, Spent()), "checkpoint": Spent(1, 500.0, 500.0)}
    readings: dict[int, Reading] = {}
    kernel: Any = SimpleNamespace(
        config=SimpleNamespace(environment={}, join=SimpleNamespace(node_id="a")),
        console=SimpleNamespace(log=print, held_since=None),
        preparation="",
        machine=SimpleNamespace(answer_gap_s=10.0),
        workers=lambda: {0: 1},
        started=SimpleNamespace(
            progress=SimpleNamespace(read=lambda now: readings), group=SimpleNamespace(finished_at={})
        ),
    )
    feature = Hangs(kernel, options.Hangs(progress_timeout=ProgressLimits()))
    feature.starting(assignment)
    feature.started(assignment, {0: 1})
    feature.noticed()
    readings[0] = Reading(1, 7, 7, "checkpoint", now - 400.0, spent)
    feature.stopping()
    rhythm = feature._rhythms.next_round(assignment.world_size)
    assert rhythm.longest_s("checkpoint") is None and rhythm.cut_off_s["start"] < 400.0


def reported(found: Suspicion, nodes: int = 3) -> Suspected:
    """Return the event that the agent's machine gets."""
    events: list[Suspected] = []
    kernel: Any = SimpleNamespace(assignment=an_assignment(1, group_world_size=nodes), suspect=events.append)
    suspect(kernel, found)
    (event,) = events
    return event


@pytest.mark.parametrize("how", ["", "uninterruptibly"])
async def test_if_a_main_thread_has_ended_another_thread_that_sleeps_uninterruptibly_is_seen(how: str) -> None:
    process = await asyncio.create_subprocess_exec(*leaderless.COMMAND, how, start_new_session=True)
    try:
        await until(lambda: leaderless.is_leaderless(process.pid))
        if how:
            await until(lambda: len(threads_asleep(process.pid)) == 1)
        assert process.pid not in threads_asleep(process.pid)
        assert bool(threads_asleep(process.pid)) is bool(how)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert threads_asleep(process.pid) == []
