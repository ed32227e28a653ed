"""Hang detectors with a simulated clock: what they find, how soon, and that healthy workers are never suspected."""

from math import inf
from typing import Any

import pytest
from rdzv_protocol.hang_sources import PREPARATION

from node_agent.features.hangs import progress_limits, words
from node_agent.features.hangs.detector import PreparationLimit, preparation_limit
from node_agent.features.hangs.progress_source import SHORTEST_S, UNSEEN_S, ProgressLimits
from node_agent.features.hangs.rule_source import LogRule
from node_agent.features.hangs.suspicion import Suspicion
from tests.unit.node_agent.features.hangs.watched_node import HOUR_S, Node


def learned(step_s: float = 1.0, **limits: Any) -> Node:
    """Return a node whose rhythm is known: a start, steps, short evaluations and epochs, a checkpoint of 3 steps."""
    node = Node(progress=ProgressLimits(**limits))
    node.passes(20.0)
    for step in range(20):
        node.progress(step=step)
        node.passes(step_s)
    for kind in ("evaluation", "evaluation", "epoch"):
        node.progress(kind=kind)
        node.passes(1.0)
    node.passes(3 * step_s - 1.0)
    node.progress(kind="checkpoint")
    assert node.found == []
    return node


@pytest.mark.parametrize("step_s", [10.0, 60.0])
def test_a_hang_is_found_within_twice_the_longest_that_was_seen(step_s: float) -> None:
    node = learned(step_s)
    node.passes(step_s)
    node.progress(0, step=20)  # rank 1 lags behind
    began = node.now - step_s
    while not node.found:
        node.passes(1.0)
    (found,) = node.found
    assert (found.source, found.local_ranks) == ("progress", (1, 0)) and "limit" in found.reason, (
        "furthest behind first"
    )
    longest_s = 3 * step_s  # of the checkpoint, which may come at any time
    assert longest_s < node.now - began <= 2 * longest_s + 2.0
    assert found.silent_s == pytest.approx(node.now - began - step_s, abs=1.0), "both of them"


def test_workers_that_stand_still_together_are_suspected_together() -> None:
    node = Node(range(3), 3, progress=ProgressLimits(step_s=10.0))
    node.progress(1, step=7)
    node.passes(0.6)
    node.progress(0, step=7)
    node.progress(2, step=7, kind="end")
    (found,) = node.passes(10.0)
    assert found.local_ranks == (1, 0), "rank 1 was silent first, and rank 0 does not continue either"


def test_a_worker_that_continues_is_not_suspected() -> None:
    node = Node(range(2), 2, progress=ProgressLimits(step_s=10.0))
    node.progress(1, step=7)
    node.passes(6.0)
    node.progress(0, step=8)
    (found,) = node.passes(5.0)
    assert found.local_ranks == (1,)


@pytest.mark.parametrize("end", ["goes on", "end", "exits"])
def test_a_worker_that_never_reports_progress_is_not_suspected_beside_one_that_does(end: str) -> None:
    node = Node(progress=ProgressLimits(start_s=10.0, step_s=5.0))
    for step in range(20):
        node.passes(2.0)
        node.progress(0, step=step)
    assert node.found == [] and node.detector.unwatched == [1], "many scripts report from rank 0 only"
    if end == "end":
        node.progress(0, kind="end")
    elif end == "exits":
        node.exits(0)
    found = node.passes(60.0)
    assert [each.local_ranks for each in found] == ([(0, 1)] if end == "goes on" else [])
    assert not any(each.is_untold for each in found)


def test_a_worker_that_has_reported_progress_in_an_earlier_round_is_expected_to_do_so() -> None:
    node = Node(progress=ProgressLimits(start_s=10.0, step_s=30.0))
    node.progress(step=1)
    node.restarts()
    for step in range(12):
        node.passes(1.0)
        node.progress(0, step=step)
    (found,) = node.found
    assert (found.local_ranks, found.is_untold) == ((1,), False) and node.detector.unwatched == []


def test_a_node_that_has_never_reported_progress_says_so() -> None:
    node = Node(progress=ProgressLimits(start_s=10.0))
    (found,) = node.passes(11.0)
    assert found.is_untold and node.detector.unwatched == []


def test_workers_that_report_progress_are_not_silent() -> None:
    node = Node(silence_s=60.0)
    for step in range(10):
        node.passes(30.0)
        node.progress(0, step=step)
    assert node.passes(59.0) == [] and node.found == []
    (found,) = node.passes(2.0)
    assert (found.source, found.silent_s) == ("silence", pytest.approx(60.0, abs=1.0))


def test_a_script_that_reports_its_saves_has_a_separate_limit_for_steps() -> None:
    node = learned(10.0)
    node.progress(kind="saving")
    node.passes(30.0)
    node.progress(kind="checkpoint")
    assert node.passes(19.0) == []
    (found,) = node.passes(5.0)
    assert found.reason == words.no_progress(found.silent_s, found.limit_s, None)
    node.progress(step=30)
    (over,) = node.passes(2.0 * SHORTEST_S / 2)
    assert over == Suspicion("progress", "", ()), "all is well again"
    node.progress(kind="saving")
    assert node.passes(50.0) == [], "a checkpoint takes thirty seconds"
    assert len(node.passes(15.0)) == 1


def test_an_unseen_phase_has_the_limit_of_torchs_own_time_out() -> None:
    node = Node(progress=ProgressLimits())
    node.progress(step=0)
    assert node.passes(UNSEEN_S - 1) == []
    assert len(node.passes(2.0)) == 1


@pytest.mark.parametrize(
    ("limits", "kinds", "limit_s"),
    [
        ({"start_s": 30.0}, (), 30.0),
        ({"step_s": 7.0}, ("step",), 7.0),
        ({"step_s": 7.0, "checkpoint_s": 40.0}, ("step",), 40.0),
        ({"step_s": 7.0, "checkpoint_s": 40.0}, ("step", "saving", "checkpoint"), 7.0),
        ({"step_s": 7.0, "checkpoint_s": 40.0}, ("step", "saving"), 40.0),
    ],
    ids=["start", "step", "either", "announced", "saving"],
)
def test_given_limits_are_kept(limits: dict[str, float], kinds: tuple[str, ...], limit_s: float) -> None:
    node = Node(progress=ProgressLimits(**limits))
    for kind in kinds:
        node.progress(kind=kind)
    assert node.passes(limit_s - 0.5) == []
    assert len(node.passes(1.0)) == 1 and node.passes(100.0) == [], "once"


def test_ended_and_gone_workers_need_not_report_progress() -> None:
    node = Node(progress=ProgressLimits(step_s=5.0))
    node.progress()
    node.progress(0, kind="end")
    node.exits(1)
    assert node.passes(HOUR_S) == [] and node.detector.next_deadline() is None


@pytest.mark.parametrize("paused_s", [3.0, 20.0, 1_000.0])
def test_a_paused_agent_is_not_silence(paused_s: float) -> None:
    node = Node(progress=ProgressLimits(step_s=10.0))
    node.progress()
    node.passes(4.0)
    node.stands_still(paused_s)
    assert node.passes(3.0) == [], "seven seconds that count"
    assert len(node.passes(8.0)) == 1


def test_a_stopped_server_is_not_silence() -> None:
    node = Node(progress=ProgressLimits(step_s=60.0))
    node.progress()
    node.passes(30.0)
    node.server_answers = False
    assert node.passes(HOUR_S) == [] and node.detector.next_deadline() is None
    node.server_answers = True
    assert node.passes(28.0) == []
    assert len(node.passes(20.0)) == 1


@pytest.mark.parametrize(
    "sources",
    [
        {"silence_s": 60.0},
        {"progress": ProgressLimits(start_s=60.0, step_s=60.0)},
        {"log_rules": (LogRule(pattern="step", first_s=60.0, every_s=60.0),)},
    ],
)
def test_workers_that_wait_for_a_blocked_console_are_not_hung(sources: dict[str, Any]) -> None:
    node = Node(range(1), 1, **sources)
    node.writes(0, "step")
    node.progress(0, step=1)
    node.passes(30.0)
    node.held_since = node.now
    assert node.passes(HOUR_S) == []
    node.held_since = None
    assert node.passes(10.0) == []
    (found,) = node.passes(60.0)
    assert 45.0 <= found.silent_s <= 75.0, "a worker that hangs when the console continues is found"


def test_a_console_that_is_slower_than_the_workers_does_not_hide_a_hang() -> None:
    node = Node(range(1), 1, progress=ProgressLimits(start_s=60.0, step_s=60.0))
    node.progress(0, step=1)
    found: list[Suspicion] = []
    for _ in range(700):
        node.held_since = node.now  # it takes a piece ten times a second, and workers wait for it
        found += node.passes(0.1)
    assert [each.local_ranks for each in found] == [(0,)]


RULE = LogRule(pattern="step", first_s=900.0, every_s=5.0)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, None),
        ({"silence_timeout": 4.0}, (600.0, "--silence-timeout")),
        ({"silence_timeout": 700.0}, (700.0, "--silence-timeout")),
        ({"progress_timeout": progress_limits("4")}, (600.0, "--progress-timeout")),
        ({"progress_timeout": progress_limits("700")}, (700.0, "--progress-timeout")),
        ({"progress_timeout": progress_limits("start=4")}, (4.0, "--progress-timeout")),
        ({"progress_timeout": progress_limits("step=4")}, (1_800.0, "--progress-timeout")),
        ({"progress_timeout": progress_limits("auto")}, (1_800.0, "--progress-timeout")),
        ({"log_rule": (RULE,)}, (900.0, "--log-rule")),
        ({"log_rule": (RULE,), "silence_timeout": 4.0}, (600.0, "--silence-timeout")),
        ({"log_rule": (LogRule(pattern="step", every_s=5.0),)}, None),
        ({"log_rule": (LogRule(pattern="step", first_s=5.0, rank=9),)}, None),
    ],
)
def test_a_node_that_prepares_its_workers_has_the_limits_of_a_start(
    given: dict[str, Any], limit: tuple[float, str] | None
) -> None:
    options = {"progress_timeout": None, "silence_timeout": None, "log_rule": (), **given}
    found = preparation_limit(*options.values(), range(2))
    assert found == (limit and PreparationLimit(*limit))
    if not found:
        return
    node = Node(range(2), 2, preparation=found, node_id="a")
    node.last_output_at.clear()
    assert node.passes(found.seconds - 1.0) == []
    (suspicion,) = node.passes(2.0)
    assert (suspicion.source, suspicion.local_ranks) == (f"{PREPARATION} ({found.flag})", (0, 1))
    assert [each.local_ranks for each in node.detector.take_back()] == [()]


def test_silence_is_that_of_all_workers() -> None:
    node = Node(silence_s=60.0)
    node.passes(50.0)
    node.writes(1)
    assert node.passes(59.0) == []
    (found,) = node.passes(2.0)
    assert (found.source, found.local_ranks) == ("silence", (0, 1))
    assert found.silent_s == pytest.approx(60.0, abs=1.0), "since the last output, not since the start"
    node.writes(0)
    assert node.passes(16.0) == [Suspicion("silence", "", ())]


def test_silence_counts_from_the_last_output_or_exit_of_any_worker() -> None:
    node = Node(silence_s=60.0)
    node.passes(50.0)
    node.writes(0)
    node.passes(30.0)
    node.exits(0)
    assert node.passes(59.0) == [], "rank 1 has never written anything"
    (found,) = node.passes(2.0)
    assert found.local_ranks == (1,) and found.silent_s == pytest.approx(60.0, abs=1.0)


def test_uninterruptible_sleep_counts_while_it_lasts_without_a_break() -> None:
    node = Node(uninterruptible_s=8.0)
    for _ in range(4):
        node.uninterruptible = frozenset({(1, 71)})
        node.passes(6.0)
        node.uninterruptible = frozenset()
        node.passes(2.1)
    assert node.found == []
    node.uninterruptible = frozenset({(1, 71)})
    (found,) = node.passes(13.0)
    assert (found.local_ranks, found.reason) == ((1,), words.uninterruptible(8.0))


def test_threads_that_sleep_uninterruptibly_by_turns_are_not_a_hang() -> None:
    node = Node(uninterruptible_s=8.0)
    for thread in range(72, 78):
        node.uninterruptible = frozenset({(1, thread)})
        node.passes(6.0)
    assert node.found == []
    node.uninterruptible = frozenset({(1, 77), (1, 78)})
    (found,) = node.passes(20.0)
    assert found.local_ranks == (1,)


STEP = r"step (\d+)"


@pytest.mark.parametrize(
    ("rule", "lines", "found_of"),
    [
        ({"pattern": STEP, "first_s": 30.0}, [(29, 0, "hello"), (2, 0, "")], 0),
        ({"pattern": STEP, "first_s": 30.0}, [(29, 0, "step 1"), (100, 0, "")], None),
        ({"pattern": STEP, "every_s": 30.0}, [(100, 0, "step 1"), (29, 0, "step 2"), (31, 0, "")], 0),
        ({"pattern": STEP, "every_s": 30.0}, [(1, 0, "step 1"), (29, 1, "step 2"), (2, 0, "")], 0),
        ({"pattern": STEP, "every_s": 30.0, "rank": 1}, [(1, 1, "step 1"), (31, 0, "step 2")], 1),
        ({"pattern": "NaN", "is_fault": True}, [(1, 1, "grad is NaN")], 1),
        ({"pattern": r"loss=(\S+)", "most": 9.0}, [(1, 1, "loss=9.0"), (1, 1, "loss=nan")], 1),
        ({"pattern": r"loss=(\S+)", "most": 9.0, "points": 2}, [(1, 1, "loss=10"), (1, 1, "loss=1")] * 3, None),
        ({"pattern": r"loss=(\S+)", "most": 9.0, "points": 2}, [(1, 1, "loss=10"), (1, 1, "loss=inf")], 1),
        ({"pattern": r"loss=(\S+)", "least": 0.0}, [(1, 0, "loss=-1")], 0),
        ({"pattern": r"loss=(\S+)", "most": 9.0}, [(1, 0, "loss=none")], None),
    ],
)  # fmt: skip
def test_a_log_rule(rule: dict[str, Any], lines: list[tuple[float, int, str]], found_of: int | None) -> None:
    node = Node(log_rules=(LogRule(**rule),))
    for seconds, rank, line in lines:
        node.passes(seconds)
        node.writes(rank, line)
    assert [found.local_ranks for found in node.found if found.local_ranks] == (
        [] if found_of is None else [(found_of,)]
    )


def test_a_stop_pattern_ends_all_rules() -> None:
    rules = (LogRule(pattern=STEP, every_s=10.0), LogRule(pattern="done", is_stop=True))
    node = Node(log_rules=rules)
    node.writes(0, "step 1")
    node.passes(5.0)
    node.writes(0, "done")
    node.writes(1, "done")
    (ends,) = node.found
    assert ends.ends_rules and ends.reason == "done" and not ends.local_ranks, "other nodes learn of it once"
    assert node.passes(HOUR_S) == []


@pytest.mark.parametrize("is_stop", [True, False])
def test_a_rule_that_ends_takes_back_that_its_line_is_overdue(is_stop: bool) -> None:
    """It ends by a `stop` line, or because its pattern is too slow. What was found in a line is not taken back."""
    rules = (
        LogRule(pattern=STEP, every_s=10.0),
        LogRule(pattern="NaN", is_fault=True),
        LogRule(pattern="done", is_stop=True),
    )
    node = Node(log_rules=rules)
    node.writes(0, "step 1")
    node.writes(0, "NaN")
    overdue = node.passes(12.0)[-1]
    if is_stop:
        node.writes(1, "done")
        assert node.found[-2:] == [
            Suspicion(overdue.source, "", ()),
            Suspicion(node.found[-1].source, "done", (), ends_rules=True),
        ]
    else:
        assert node.detector.give_up_rules({0, 1}) == [Suspicion(overdue.source, "", ())]
    assert node.passes(HOUR_S) == []


@pytest.mark.parametrize(
    "rules",
    [
        [LogRule(pattern=r"loss=(\S+)", every_s=10.0, most=9.0)],
        [LogRule(pattern=r"loss=(\S+)", every_s=10.0), LogRule(pattern=r"loss=(\S+)", most=9.0)],
    ],
)
def test_a_number_beyond_its_limit_stays_found_while_its_lines_come_in_time(rules: list[LogRule]) -> None:
    node = Node(log_rules=tuple(rules))
    node.writes(0, "loss=10")
    for _ in range(20):
        node.passes(5.0)
        node.writes(0, "loss=1")
    (found,) = node.found
    assert found.local_ranks == (0,) and found.limit_s is None


def test_a_number_is_found_while_a_line_of_its_rule_is_overdue() -> None:
    """The line with the number is the overdue one, and takes back that it is overdue."""
    node = Node(log_rules=(LogRule(pattern=r"loss=(\S+)", every_s=10.0, most=9.0),))
    node.writes(0, "loss=1")
    (overdue,) = node.passes(12.0)
    node.writes(0, "loss=10")
    node.passes(5.0)
    _, number, over = node.found
    assert number.local_ranks == (0,) and over == Suspicion(overdue.source, "", ()) and number.source != over.source


def test_rules_with_the_same_pattern_are_distinguished() -> None:
    rules = LogRule(pattern=STEP, every_s=10.0), LogRule(pattern=STEP, every_s=10.0, rank=1)
    node = Node(log_rules=rules)
    node.writes(1, "step 1")
    for _ in range(10):
        node.writes(0, "step 1")
        node.passes(5.0)
    assert [found.local_ranks for found in node.found] == [(1,)]


@pytest.mark.parametrize("first_line", ["step 1", "hello"])
def test_a_rule_does_not_expect_lines_of_a_worker_that_has_exited(first_line: str) -> None:
    rule = LogRule(pattern=STEP, first_s=10.0, every_s=10.0)
    node = Node(log_rules=(rule, LogRule(pattern="NaN", is_fault=True)))
    node.writes(0, first_line)
    node.passes(5.0)
    node.exits(0)
    assert node.passes(HOUR_S) == []
    node.writes(1, "NaN")
    assert [found.local_ranks for found in node.found] == [(1,)]


def test_an_overdue_line_is_no_longer_expected_once_its_worker_has_exited() -> None:
    node = Node(log_rules=(LogRule(pattern=STEP, first_s=10.0),))
    (found,) = node.passes(12.0)
    node.exits(0)
    assert node.passes(12.0) == [Suspicion(found.source, "", ())]


def test_a_rule_does_not_miss_a_line_while_lines_wait_for_the_search() -> None:
    node = Node(log_rules=(LogRule(pattern=STEP, every_s=10.0),))
    node.writes(0, "step 1")
    node.passes(5.0)
    node.lines_seen_until = node.now
    assert node.passes(HOUR_S) == []
    node.lines_seen_until = inf
    assert len(node.passes(5.0)) == 1


def test_a_skipped_line_can_have_ended_the_rules() -> None:
    """The next line that a rule waits for shows that it has not."""
    node = Node(log_rules=(LogRule(pattern=STEP, every_s=10.0), LogRule(pattern="done", is_stop=True)))
    node.writes(0, "step 1")
    (overdue,) = node.passes(12.0)
    node.detector.lines_lost(node.now)
    assert node.passes(HOUR_S) == [Suspicion(overdue.source, "", ())]
    node.writes(0, "step 2")
    assert len(node.passes(12.0)) == 1


def test_a_skipped_line_can_have_matched() -> None:
    node = Node(log_rules=(LogRule(pattern=STEP, first_s=10.0),))
    node.passes(9.0)
    node.detector.lines_lost(node.now)
    assert node.passes(9.0) == []
    assert len(node.passes(3.0)) == 1


def test_a_rule_that_is_given_up_expects_nothing() -> None:
    node = Node(log_rules=(LogRule(pattern=STEP, first_s=10.0), LogRule(pattern="NaN", is_fault=True)))
    node.detector.give_up_rules({0})
    assert node.passes(HOUR_S) == []
    node.writes(0, "NaN")
    assert len(node.found) == 1


def test_a_rule_about_another_nodes_rank_does_not_wait_on_this_node() -> None:
    node = Node(range(4, 6), log_rules=(LogRule(pattern=STEP, first_s=10.0),))
    assert node.passes(HOUR_S) == []


def test_without_a_source_the_detector_does_not_sample() -> None:
    node = Node()
    node.passes(HOUR_S)
    assert node.looks <= 1
