"""Rules of the user about failures: which one fits, and patterns that take for ever."""

import re

import pytest

from node_agent.config import FailureRules
from node_agent.failures import rules
from node_agent.failures.rules import RulesNotMatched, judged
from tests.support.scenario import a_failure

FAILED = a_failure(
    "a",
    cause="exit code 3",
    error="OSError: [Errno 116] Stale file handle",
    traceback=("Traceback (most recent call last):", '  File "train.py", line 7, in <module>'),
    stderr_tail=("loading shard 12", "[rank3]: mount /data is away"),
)


@pytest.mark.parametrize(
    ("fatal", "retry", "verdict", "rule"),
    [
        ((), (), "count", ""),
        (("assert", "boom"), ("never",), "count", ""),
        ((), ("Stale file handle",), "retry", "Stale file handle"),
        ((), ("never", r"mount /\w+ is away$"), "retry", r"mount /\w+ is away$"),
        ((r"^exit code 3$",), (), "fatal", r"^exit code 3$"),
        ((r"train\.py", "shard"), ("Stale",), "fatal", r"train\.py"),
    ],
    ids=["none", "no match", "the error", "stderr", "the exit code in words", "fatal goes first"],
)
def test_the_first_rule_that_a_line_fits(fatal, retry, verdict, rule):
    found = judged(FAILED, FailureRules(fatal, retry))
    assert (found.verdict, found.rule) == (verdict, rule)


def test_a_pattern_that_takes_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr(rules, "MATCHED_WITHIN_S", 0.5)
    failure = a_failure("a", error="a" * 60 + "!")
    assert re.search("^a+!$", failure.error)
    with pytest.raises(RulesNotMatched, match=r"took longer than 0\.5 s: nested repeats such as \(a\+\)\+ take"):
        judged(failure, FailureRules((r"^(a+)+$",)))


def test_a_process_that_cannot_be_started_is_no_verdict(monkeypatch):
    monkeypatch.setattr(rules.sys, "executable", "/no/such/python")
    with pytest.raises(RulesNotMatched, match="No such file or directory"):
        judged(FAILED, FailureRules(("x",)))
