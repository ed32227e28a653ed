"""The log of what happens in runs: one line for each event, with a limit for each run."""

import pytest
from rdzv_protocol.events import EventKind, RunEvent

from rdzv_server.service import run_log
from rdzv_server.service.run_log import RunLog
from rdzv_server.token_buckets import Rate
from rdzv_server.words import service as words

LINES = Rate(1, 200)
"""Limit of a run's lines that is reached soon."""


def event(kind: EventKind = "round_opened", run_id: str = "r", number: int = 1) -> RunEvent:
    return RunEvent(number=number, run_id=run_id, attempt=1, round=1, kind=kind, reason="rank 0 failed")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> RunLog:
    monkeypatch.setattr(run_log, "LINES", LINES)
    caplog.set_level("INFO", "rdzv_server")
    return RunLog()


def test_a_run_that_restarts_without_a_pause_does_not_fill_the_log(
    log: RunLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the run and the lines of other runs are logged."""
    for number in range(LINES.burst + 500):
        log.note(event(number=number + 1), now=0.0)
    assert len(caplog.messages) == LINES.burst
    caplog.clear()
    log.note(event(run_id="other"), now=0.0)
    log.note(event(kind="run_failed"), now=0.0)
    assert caplog.messages == [
        words.happened("other", 1, 1, event().sentence),
        words.of_run("r", words.lines_left_out(500, LINES.per_s)),
        words.happened("r", 1, 1, event(kind="run_failed").sentence),
    ]
    caplog.clear()
    log.note(event(), now=0.0)
    log.note(event(), now=1.0)
    log.note(event(), now=1.1)
    assert len(caplog.messages) == 2, "one line, and how many are missing before it"


def test_joins_are_not_logged_or_counted(log: RunLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(LINES.burst + 1):
        log.note(event("node_joined", number=number + 1), now=0.0)
    log.note(event(), now=0.0)
    assert caplog.messages == [words.happened("r", 1, 1, event().sentence)]


def test_events_that_the_log_does_not_show_are_not_counted(log: RunLog, caplog: pytest.LogCaptureFixture) -> None:
    """A server inside an agent logs only warnings: a warning after many restarts must not be left out."""
    caplog.set_level("WARNING", "rdzv_server")
    for number in range(LINES.burst + 1):
        log.note(event(number=number + 1), now=0.0)
    log.note(event("warning"), now=0.0)
    assert caplog.messages == [words.happened("r", 1, 1, event("warning").sentence)]


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["the run is forgotten", "the server stops"])
def test_the_log_reports_left_out_lines_before_it_ends(
    log: RunLog, caplog: pytest.LogCaptureFixture, is_forgotten: bool
) -> None:
    for number in range(LINES.burst + 3):
        log.note(event(number=number + 1), now=0.0)
    caplog.clear()
    if is_forgotten:
        log.forget("r")
    log.close()
    log.note(event(), now=2.0)
    assert caplog.messages == [
        words.of_run("r", words.lines_left_out(3, LINES.per_s, has_events=not is_forgotten)),
        words.happened("r", 1, 1, event().sentence),
    ]
