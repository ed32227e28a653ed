"""The user's rules about failures: which one matches, and patterns that take forever."""

import asyncio
import os
import re
import resource

import pytest
from rdzv_protocol.messages import Failure

from node_agent.features.rules import FailureRules, words
from node_agent.features.rules import feature as rules
from node_agent.features.rules.feature import Unmatched
from tests.support.scenario import a_failure

FAILED = a_failure(
    "a",
    cause="exit code 3",
    error="OSError: [Errno 116] Stale file handle",
    traceback=("Traceback (most recent call last):", '  File "train.py", line 7, in <module>'),
    stderr_tail=("loading shard 12", "[rank3]: mount /data is away"),
)


async def matched(failure: Failure, given: FailureRules) -> Failure:
    return await rules.matched(given, failure, os.environ)


@pytest.mark.parametrize(
    ("fatal", "retry", "verdict", "rule"),
    [
        (("assert", "boom"), ("never",), "count", ""),
        ((), ("Stale file handle",), "retry", "Stale file handle"),
        ((), ("never", r"mount /\w+ is away$"), "retry", r"mount /\w+ is away$"),
        ((r"^exit code 3$",), (), "fatal", r"^exit code 3$"),
        ((r"train\.py", "shard"), ("Stale",), "fatal", r"train\.py"),
        (("[[a]never", "shard"), (), "fatal", "shard"),
    ],
    ids=["no match", "the error", "stderr", "the exit code in words", "fatal goes first", "one that Python warns of"],
)
async def test_the_first_matching_rule_wins(fatal, retry, verdict, rule):
    found = await matched(FAILED, FailureRules(fatal_rule=fatal, retry_rule=retry))
    assert (found.verdict, found.rule) == (verdict, rule)


@pytest.mark.parametrize(("name", "limit_s"), [("CPU_S", 1), ("MATCHED_WITHIN_S", 0.5)])
async def test_a_pattern_that_never_finishes_is_given_up_without_blocking(monkeypatch, name, limit_s):
    monkeypatch.setattr(rules, "MATCHED_WITHIN_S", 100.0)
    monkeypatch.setattr(rules, name, limit_s)
    failure = a_failure("a", error="a" * 60 + "!")
    assert re.search("^a+!$", failure.error)
    took_turns = 0

    async def take_turns() -> None:
        nonlocal took_turns
        while took_turns <= 100:  # no more, because the matcher needs the processor
            await asyncio.sleep(0)
            took_turns += 1

    other = asyncio.create_task(take_turns())
    with pytest.raises(Unmatched) as why:
        await matched(failure, FailureRules(fatal_rule=(r"^(a+)+$",)))
    other.cancel()
    assert took_turns > 100, "the loop was held up"
    assert str(why.value) == words.too_slow(limit_s)


async def test_a_killed_matcher_does_not_leave_a_core_dump(monkeypatch, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    if limits[1] == 0:
        pytest.skip("no core dump may be had here")
    monkeypatch.setattr(rules, "MATCHED_WITHIN_S", 100.0)
    monkeypatch.setattr(rules, "CPU_S", 1)
    monkeypatch.chdir(tmp_path)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        with pytest.raises(Unmatched) as why:
            await matched(a_failure("a", error="a" * 60 + "!"), FailureRules(fatal_rule=(r"^(a+)+$",)))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)
    assert str(why.value) == words.too_slow(1) and list(tmp_path.iterdir()) == []


async def test_a_process_that_fails_gives_no_verdict(monkeypatch):
    monkeypatch.setattr(rules, "_MATCH", "raise SystemExit('no memory')")
    with pytest.raises(Unmatched) as why:
        await matched(FAILED, FailureRules(fatal_rule=("shard",)))
    assert str(why.value) == words.ended(1, "no memory")


async def test_rules_are_unmatched_if_their_process_cannot_start(monkeypatch):
    monkeypatch.setattr(rules.sys, "executable", "/no/such/python")
    with pytest.raises(Unmatched, match="No such file or directory"):
        await matched(FAILED, FailureRules(fatal_rule=("x",)))
