"""Search for patterns of `--log-rule` in a real process: the matches, and patterns that take forever."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from math import inf

import pytest

from node_agent.features.hangs import log_rules, words
from node_agent.features.hangs.log_rules import MOST_KILLS, Line, LineMatcher
from node_agent.features.hangs.rule_source import LineMatch, LogRule
from tests.support.process_info import children, is_running, until

FOR_EVER = ("(a+)+$", "a" * 60 + "!")


class Looking:
    """A matcher, and what it has reported."""

    def __init__(self, *patterns: str) -> None:
        self.found: list[tuple[float, LineMatch]] = []
        self.given_up: set[int] = set()
        self.lost = 0
        self.warnings: list[str] = []
        rules = [LogRule(pattern=pattern, is_fault=True) for pattern in patterns]
        self.matcher = LineMatcher(
            rules, os.environ, self._matched, self.given_up.update, self._lost, self.warnings.append
        )

    def writes(self, *texts: str, at: float = 0.0) -> None:
        self.matcher.put([Line(1, 0, text, at) for text in texts])

    async def ends(self) -> None:
        """Return when all lines have been searched."""
        await until(lambda: self.matcher.seen_until == inf)

    def _matched(self, line: Line, match: LineMatch) -> None:
        self.found.append((line.at, match))

    def _lost(self) -> None:
        self.lost += 1


@pytest.fixture
async def look() -> AsyncIterator[Callable[..., Looking]]:
    made: list[Looking] = []

    def make(*patterns: str) -> Looking:
        made.append(Looking(*patterns))
        return made[-1]

    yield make
    for each in made:
        each.matcher.close()


async def test_each_pattern_is_found_with_its_line_and_what_it_captures(look: Callable[..., Looking]) -> None:
    looking = look(r"loss=(\S+)", "NaN", r"(x)|epoch")
    looking.writes("step 1 loss=3.5", "nothing", at=1.0)
    looking.writes("loss=1 NaN \u2713", "epoch 1", at=2.0)
    await looking.ends()
    assert looking.found == [
        (1.0, LineMatch(0, "step 1 loss=3.5", "3.5")),
        (2.0, LineMatch(0, "loss=1 NaN \u2713", "1")),
        (2.0, LineMatch(1, "loss=1 NaN \u2713", "NaN")),
        (2.0, LineMatch(2, "epoch 1", "")),
    ]
    assert looking.warnings == []


async def test_many_lines_are_looked_at_in_their_order(look: Callable[..., Looking]) -> None:
    looking = look(r"\d+")
    for first in range(0, 20_000, 1_000):
        looking.writes(*(f"line {number} {'x' * 60}" for number in range(first, first + 1_000)))
    await looking.ends()
    assert [int(match.captured) for _, match in looking.found] == list(range(20_000))


async def test_a_pattern_that_never_finishes_is_switched_off_and_the_others_still_count(
    look: Callable[..., Looking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rules, "CPU_S", 0.2)
    pattern, line = FOR_EVER
    looking = look("fine", pattern, "later")
    looking.writes("fine", line, "later", at=5.0)
    assert looking.matcher.seen_until == 5.0
    took_turns = 0
    while looking.matcher.seen_until < inf:
        await asyncio.sleep(0)
        took_turns += 1
    assert took_turns > 100, "the loop was held up"
    assert looking.given_up == {1}
    assert [match.text for _, match in looking.found] == ["fine", "later"], "looked at once more, and told once"
    assert looking.warnings == [words.pattern_too_slow("(a+)+$", 0.2)]


async def test_lines_are_left_out_if_too_many_wait(
    look: Callable[..., Looking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rules, "MOST_WAITING", 1_000)
    looking = look("x")
    for _ in range(100):
        looking.writes("x" * 100)
    assert looking.lost > 80 and looking.warnings == [words.LINES_LEFT_OUT]
    await looking.ends()
    assert len(looking.found) == 100 - looking.lost


async def kill_process_beside(others: set[int]) -> None:
    """Kill the process that searches. It may be a replacement that has not been started yet."""

    def running() -> list[int]:
        return [child for child in children(os.getpid()) - others if is_running(child)]

    await until(running)
    (process,) = running()
    os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "asked"])
async def test_a_killed_process_is_replaced_without_losing_a_line(look: Callable[..., Looking], waits: bool) -> None:
    others = children(os.getpid())
    looking = look("x", "y")
    for number in range(MOST_KILLS + 2):
        looking.writes(f"x {number}")
        if waits:
            await kill_process_beside(others)
        await looking.ends()
        if not waits:
            await kill_process_beside(others)
            await until(lambda count=number + 1: len(looking.warnings) == count)
    assert [match.text for _, match in looking.found] == [f"x {number}" for number in range(MOST_KILLS + 2)]
    assert set(looking.warnings) == {words.PROCESS_REPLACED} and not looking.given_up


async def test_a_process_that_is_killed_again_and_again_before_it_answers_ends_all_rules(
    look: Callable[..., Looking],
) -> None:
    pattern, line = FOR_EVER
    others = children(os.getpid())
    looking = look("x", pattern)
    looking.writes(line)
    for number in range(MOST_KILLS + 1):
        await kill_process_beside(others)
        await until(lambda count=number + 1: len(looking.warnings) == count)
    assert looking.given_up == {0, 1}
    looking.writes("x")
    assert looking.matcher.seen_until == inf
    ended = words.rules_given_up(words.process_ended(-signal.SIGKILL))
    assert looking.warnings == [*MOST_KILLS * [words.PROCESS_REPLACED], ended]


async def test_a_process_whose_socket_does_not_take_a_batch_is_not_replaced(
    look: Callable[..., Looking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process would not take it either."""
    monkeypatch.setattr(log_rules, "BATCH", 1)
    looking = look("x", "y")
    looking.writes("x" * 1_000_000)
    await until(lambda: looking.given_up == {0, 1})
    assert looking.warnings == [words.rules_given_up(words.process_ended(-signal.SIGKILL))]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGSEGV])
async def test_a_process_that_ends_otherwise_ends_all_rules(
    look: Callable[..., Looking], signum: signal.Signals
) -> None:
    others = children(os.getpid())
    looking = look("x", "y")
    looking.writes("x")
    await looking.ends()
    (process,) = children(os.getpid()) - others
    os.kill(process, signum)
    await until(lambda: looking.given_up == {0, 1})
    assert looking.warnings == [words.rules_given_up(words.process_ended(-signum))]


async def test_a_process_that_cannot_be_started_ends_all_rules(
    look: Callable[..., Looking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    looking = look("x")
    looking.writes("x")
    assert looking.given_up == {0}
    assert looking.warnings == [words.rules_given_up(words.no_process("No such file or directory"))]


async def test_a_process_that_cannot_be_started_for_now_is_started_later(
    look: Callable[..., Looking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rules, "RETRY_S", 0.01)
    looking, limits = look("x"), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        looking.writes("x 1", at=7.0)
        looking.writes("x 2", at=8.0)
        for _ in range(3):  # it fails again
            timer = looking.matcher._retry
            assert timer and looking.matcher.seen_until == 7.0
            await until(lambda timer=timer: looking.matcher._retry is not timer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await looking.ends()
    assert [match.text for _, match in looking.found] == ["x 1", "x 2"] and not looking.given_up
    starts_later = words.starts_later(words.no_process("Too many open files"), 0.01)
    assert looking.warnings == [starts_later, words.MATCHES_AGAIN]
