"""Stored evidence of failures: how much is kept, and what is dropped first."""

import pytest
from rdzv_protocol.messages import Failure, Finish

from rdzv_server.core.kernel import kept_failures
from rdzv_server.core.kernel.kept_failures import LEAST_BYTES, size, size_of
from rdzv_server.core.kernel.run import HISTORY, Run
from rdzv_server.core.runs.registry import Registry
from tests.support.scenario import RETENTION_S, ManyRuns, a_failure, settings_of

EVER = settings_of("1", max_restarts=10**6)
TEXT = "\U0001f600" * 1_024
LINES = {"traceback": ("\U0001f600" * 512,) * 40, "stderr_tail": (TEXT,) * 32}
WORST = {"cause": TEXT, "error": TEXT, "hint": TEXT, "error_file": TEXT, "rule": TEXT, **LINES}
"""All that the protocol allows: 215 kB."""
MOST = 4 << 20


@pytest.fixture
def server() -> ManyRuns:
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_evidence=MOST)
    return server


def fails(server: ManyRuns, run_id: str, times: int) -> None:
    server.join("a", run_id, settings=EVER)
    for number in range(1, times + 1):
        server.fails("a", run_id, round=number, **WORST)
        server.join("a", run_id, settings=EVER, after_round=number)


def run_of(server: ManyRuns, run_id: str) -> Run:
    (run,) = server.registry.attempts_of(run_id)
    return run


def test_a_failure_is_cut_to_the_most_that_an_agent_reports(server: ManyRuns) -> None:
    fails(server, "one", 1)
    assert size_of(a_failure("a", **WORST)) > 200_000
    (record,) = run_of(server, "one").failures
    assert size_of(record.failure) < 30_000
    assert record.failure.traceback and record.failure.stderr_tail


def test_an_agents_failure_stays_as_it_is() -> None:
    written = tuple(f"{number} {'x' * 190}" for number in range(40))
    failure = a_failure("a", traceback=written, stderr_tail=written[-32:], error="e" * 512, hint="h" * 512)
    assert kept_failures.bounded(failure) == failure


def test_the_evidence_of_all_runs_together_is_bounded_and_runs_that_have_ended_drop_theirs_first(
    server: ManyRuns,
) -> None:
    fails(server, "ended", HISTORY)
    server.succeeds("a", "ended", round=HISTORY + 1)
    for run_id in ("one", "two", "three", "four"):
        fails(server, run_id, HISTORY)
        runs = server.registry.runs()
        assert sum(map(size, runs)) <= MOST + len(runs) * LEAST_BYTES
        assert size(run_of(server, "ended")) < LEAST_BYTES or run_id == "one"
    assert size(run_of(server, "four")) > LEAST_BYTES, "it is the last"
    assert run_of(server, "ended").failures_by_node == {"a": HISTORY}, "counters forget nothing"


def test_a_run_that_has_dropped_its_evidence_ends_with_the_same_report() -> None:
    reports = []
    for most in (1 << 30, 1):
        server = ManyRuns()
        server.registry = Registry(RETENTION_S, max_evidence=most)
        settings = settings_of("2", max_restarts=1)
        for number in range(2):
            for agent in "ab":
                server.join(agent, "one", settings=settings, after_round=number)
            for agent in "ab":
                server.fails(agent, "one", round=number + 1, **WORST)
        finish = server.directive("a", "one")
        assert isinstance(finish, Finish) and isinstance(finish.failure, Failure)
        reports.append(finish)
    assert reports[0] == reports[1]


def test_a_restarted_server_does_not_keep_more(server: ManyRuns) -> None:
    for run_id in ("one", "two", "three", "four"):
        fails(server, run_id, HISTORY)
    again = Registry(RETENTION_S, max_evidence=MOST)
    for record in server.records:
        again.replay(record)
    assert sum(map(size, again.runs())) <= MOST + 4 * LEAST_BYTES
