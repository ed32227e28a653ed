"""Final report: what every agent gets at the end of a run."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.messages import Failure, Finish, Reply

from rdzv_server.core.events import WorkersFailed
from rdzv_server.core.kernel import final_report
from rdzv_server.core.kernel.restart_budget import CAUSE_WINDOW_S
from tests.support.scenario import WALL_AT, Scenario, a_failure, running
from tests.unit.protocol.test_codec import values

MOST_BYTES = 16 << 10
NODES = ("a", "b", "c")
WIDE = "\N{GRINNING FACE}"


def end_of(run: Scenario, name: str = "a") -> Finish:
    finish = run.directive(name)
    assert isinstance(finish, Finish)
    return finish


def rejoin_all(run: Scenario) -> None:
    run.join(*list(run.run.stopping))


def test_a_success_reports_its_restarts():
    run = running("1:3", *NODES, max_restarts=2)
    run.fails("a")
    rejoin_all(run)
    run.leaves("c")
    rejoin_all(run)
    run.succeeds("a", "b")
    end = end_of(run)
    assert end.succeeded
    assert (end.restart_total, end.charged_restarts) == (2, 1)
    assert [(entry.round, entry.cause, entry.charged) for entry in end.restarts] == [
        (2, "worker_failure", True),
        (3, "node_left", False),
    ]
    assert (end.failure, end.first_failure, end.others) == (None, None, ())


def test_a_run_that_fails_at_once_reports_one_failure():
    run = running("2", "a", "b")
    run.fails("b", error="ValueError: boom")
    end = end_of(run)
    assert end.failure.error == "ValueError: boom"
    assert end.failure.stderr_tail == ("Traceback", "Boom on b")
    assert (end.round, end.first_failure, end.first_round, end.restarts) == (1, None, 0, ())


def test_a_failure_with_a_traceback_has_no_other_stderr_lines():
    run = running("1", "a")
    run.fails("a", traceback=("Traceback (most recent call last):", "ValueError: boom"))
    assert end_of(run).failure.traceback[-1] == "ValueError: boom"
    assert end_of(run).failure.stderr_tail == ()


def test_the_final_report_has_the_first_failure_and_the_last():
    run = running("2", "a", "b", max_restarts=2)
    run.fails("a", error="MemoryError")
    rejoin_all(run)
    run.fails("b", error="ValueError: boom")
    rejoin_all(run)
    run.fails("b", error="KeyError: 'x'")
    end = end_of(run)
    assert (end.first_failure.error, end.first_round) == ("MemoryError", 1)
    assert (end.failure.error, end.round) == ("KeyError: 'x'", 3)
    assert [entry.charged for entry in end.restarts] == [True, True]


def test_a_failure_that_a_departure_explained_is_not_the_root_of_the_run():
    run = running("1:3", *NODES, max_restarts=1)
    run.fails("a", error="first")
    run.is_lost("c")
    rejoin_all(run)
    run.fails("a", error="second")
    rejoin_all(run)
    run.fails("a", error="third")
    assert end_of(run).first_failure.error == "second"
    assert end_of(run).failure.error == "third"


def test_other_failures_of_the_last_round_are_named_and_counted():
    names = [f"n{index}" for index in range(12)]
    run = running("12", *names)
    for name in names[1:]:
        run.fails(name, consequence=True, error=f"gone from {name}", hint="look elsewhere")
    run.fails("n0", error="ValueError: boom")
    end = end_of(run, "n5")
    assert end.failure.node_id == "n0"
    assert [other.node_id for other in end.others] == ["n1", "n2", "n3", "n4"]
    assert end.more_failures == 7
    assert (end.others[0].error, end.others[0].stderr_tail, end.others[0].hint) == ("gone from n1", (), "")


def test_the_report_has_the_latest_of_many_restarts_and_counts_all():
    run = running("1", "a", max_restarts=20)
    for _ in range(20):
        run.fails("a")
        rejoin_all(run)
    run.fails("a")
    end = end_of(run)
    assert [entry.round for entry in end.restarts] == list(range(14, 22))
    assert (end.restart_total, end.charged_restarts) == (20, 20)


def test_restarts_are_shown_with_the_time_of_day():
    run = running("1", "a", max_restarts=1)
    run.passes(100)
    run.fails("a")
    rejoin_all(run)
    run.fails("a")
    assert end_of(run).restarts[0].at == WALL_AT + 100


def test_a_run_that_fails_for_lack_of_nodes_reports_its_restarts():
    run = running("2", "a", "b", join_timeout_s=60)
    run.is_lost("b")
    run.join("a")
    run.passes(60)
    end = end_of(run)
    assert end.failure is None
    assert [(entry.round, entry.cause, entry.charged) for entry in end.restarts] == [(2, "node_lost", False)]
    assert end.restart_total == 0, "it did not come about"


def test_a_run_that_then_lacks_nodes_blames_the_failure_before():
    run = running("2", "a", "b", max_restarts=3, join_timeout_s=60)
    run.fails("b", error="ValueError: boom")
    run.join("a")
    run.passes(60)
    assert end_of(run).failure.error == "ValueError: boom"
    assert end_of(run).restarts == ()


def test_every_node_hears_the_same():
    run = running("3", *NODES)
    run.join("spare")
    run.fails("b")
    assert end_of(run, "spare") == end_of(run, "a") == end_of(run, "c")


def test_the_largest_story_stays_small():
    """It stays small with any number of nodes, restarts and failures, and with any texts of scripts."""
    line, names = WIDE * 1_024, [WIDE * 250 + str(index) for index in range(30)]
    evidence = {
        "cause": line,
        "error": line,
        "hint": line,
        "error_file": line,
        "stderr_tail": (line,) * 32,
        "traceback": (WIDE * 512,) * 40,
    }
    run = running("30", *names, max_restarts=12)
    for _ in range(12):
        run.fails(names[0], **evidence)
        rejoin_all(run)
    for name in names[1:]:
        run.fails(name, consequence=True, **evidence)
    run.fails(names[0], **evidence)
    end = end_of(run, names[0])
    assert end.first_failure and end.failure and end.others and end.restarts
    assert len(encode(_reply(end))) < MOST_BYTES


@given(st.lists(values(Failure), min_size=1, max_size=6))
def test_every_accepted_failure_can_be_put_into_a_sentence(failures):
    run = running("2", "a", "b", max_restarts=len(failures) - 1)
    for failure in failures:
        verdict = "count" if failure.verdict == "retry" else failure.verdict
        run.handle(WorkersFailed("a", run.run.round, replace(failure, verdict=verdict, node_id="a")))
        rejoin_all(run)
    run.passes(CAUSE_WINDOW_S)
    end = end_of(run)
    encoded = encode(_reply(end))
    assert decode(Reply, encoded) == _reply(end)
    assert len(encoded) < MOST_BYTES


def test_a_post_mortem_exists_only_for_an_ended_run():
    run = running("1", "a")
    run.handle(WorkersFailed("a", 1, a_failure("a")))
    assert final_report.finish(run.run) == end_of(run)


def _reply(end: Finish) -> Reply:
    return Reply(epoch="epoch", revision=1, lease_s=10.0, directive=end)
