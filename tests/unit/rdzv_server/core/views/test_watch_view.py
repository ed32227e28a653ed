"""Documents for watchers of a run, and the differences between two of them."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.views import status_view, watch_view
from rdzv_server.core.views.watch_view import difference, merge
from rdzv_server.words import completion, health
from tests.support.scenario import RUN_ID, Scenario, running
from tests.support.stories import play

names = st.text(max_size=3)
values = st.recursive(
    st.booleans() | st.integers(0, 3) | st.text(max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(names, values, max_size=5)


@given(documents, documents)
def test_a_patch_turns_the_old_document_into_the_new_one(old: Any, new: Any) -> None:
    patch = difference(old, new)
    merged = copy.deepcopy(old)
    merge(merged, copy.deepcopy(patch))
    assert merged == new
    assert (patch == {}) == (old == new)
    assert msgspec.json.decode(msgspec.json.encode(patch)) == patch


def wall(at: float) -> float:
    return at + 1_000.0


def test_nothing_in_a_view_changes_by_itself() -> None:
    """Otherwise every watcher would get every run all the time."""
    run = running("2:3", "a", "b", max_restarts=1)
    run.fails("a")
    before = watch_view.view(run.run, run.now, wall), watch_view.summary(run.run, run.now, wall)
    assert (watch_view.view(run.run, run.now + 0.5, wall), watch_view.summary(run.run, run.now + 0.5, wall)) == before
    assert before[0]["reason"] == completion.too_few(2, 0, 2, "", to_stop=completion.to_stop("a, b", 1))
    assert before[0]["ending"] == "gives_up"
    assert before[0]["deadline_at"] == wall(run.now + run.settings.join_timeout_s)


def test_a_view_names_the_first_failure_and_the_seats_that_are_vacant() -> None:
    run = running("2:2", "a", "b", max_restarts=1)
    run.fails("a", error="ValueError: boom")
    run.leaves("b", "drained")
    view = watch_view.view(run.run, run.now, wall)
    assert view["first_failure"]["failure"]["error"] == "ValueError: boom"
    assert view["missing"] == {"1": {"node_id": "b", "cause": "drained", "at": wall(run.now)}}
    assert watch_view.node(run.run, run.run.agents["a"])["state"] == "stopping"


def test_an_agent_silent_for_longer_than_a_poll_is_marked_quiet() -> None:
    run = running("3:3", "a", "b", "c", lease_s=20.0)
    heard_at = run.now
    run.passes(watch_view.quiet_after_s(run.run) - 1.0)
    run.renews("b", "c")
    renewed_at = run.now
    run.passes(1.0)
    run.disconnects("c")
    grace_s = run.settings.disconnect_grace_s
    assert watch_view.quiet(run.run, run.now, wall) == {
        "c": {"why": "disconnected", "since": wall(run.now), "heard_at": wall(renewed_at), "limit_s": grace_s},
        "a": {"why": "silent", "since": wall(heard_at), "heard_at": wall(heard_at), "limit_s": 20.0},
    }


def test_while_the_run_waits_for_its_agents_a_time_of_loss_is_not_shown() -> None:
    run = running("2", "a", "b")
    run.disconnects("a")
    run.disconnects("b")
    assert ["limit_s" in each for each in watch_view.quiet(run.run, run.now, wall).values()] == [False, False]


@pytest.mark.parametrize("end", ["succeeds", "is_apart", ""])
def test_a_view_says_whether_the_run_can_be_forgotten(end: str) -> None:
    run = running("1", "a")
    if end == "succeeds":
        run.succeeds("a")
    elif end:
        run.run.set_apart = "an error"
    assert watch_view.view(run.run, run.now, wall).get("can_be_forgotten", False) is bool(end)


def test_a_view_names_the_last_failure_without_its_evidence_once_another_round_has_failed() -> None:
    run = Scenario("2", max_restarts=5)
    play(run, "join a b; fail a; join a b")
    shown = watch_view.view(run.run, run.now, wall)
    assert "last_failure" not in shown and shown["failed_rounds"] == 1
    play(run, "5s; fail b; fail a")
    shown = watch_view.view(run.run, run.now, wall)
    assert (shown["failed_rounds"], shown["last_failure"]["failure"]["node_id"]) == (2, "b")
    assert shown["first_failure"]["failure"]["stderr_tail"] and not shown["last_failure"]["failure"].get("stderr_tail")
    play(run, "join a b")
    assert watch_view.view(run.run, run.now, wall)["last_failure"] == shown["last_failure"]
    status = status_view.view(run.run, run.now)
    assert status.last_failure and (status.failed_rounds, status.last_failure.node_id) == (2, "b")
    assert not status.last_failure.stderr_tail and status.first_failure and status.first_failure.stderr_tail


def test_a_view_says_that_workers_report_no_progress_until_they_do() -> None:
    run = Scenario("2")
    run.join("a")
    assert "no_progress" not in watch_view.view(run.run, run.now, wall)
    run.join("b")
    untold = watch_view.view(run.run, run.now, wall)
    assert untold["no_progress"] == health.no_progress_reported(RUN_ID)
    assert untold["no_progress_command"] == f"rdzvctl stacks {RUN_ID}"
    run.tells("a", lowest_step=1, highest_step=1)
    assert "no_progress" not in watch_view.view(run.run, run.now, wall)
