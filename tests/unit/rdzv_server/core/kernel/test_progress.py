"""Progress of workers is a sign: kept while its round runs, shown, and recorded only at a round's first report."""

import pytest

from rdzv_server.core.policies.time_ledger import TrainingBegan
from rdzv_server.core.views import status_view
from tests.support.scenario import running


def test_status_shows_the_steps_of_each_node_and_of_the_run() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.tells("a", lowest_step=7, highest_step=9, age_s=2.0, step_s=0.5, checkpoint_step=5, checkpoint_s=3.0)
    assert [effect.fact for effect in run.effects] == [TrainingBegan(0.0)], "nothing is recorded but the first of it"
    run.passes(1.0)
    run.tells("a", lowest_step=7, highest_step=9, age_s=3.0, step_s=0.5, checkpoint_step=5, checkpoint_s=3.0)
    assert run.effects == []
    run.tells("b", lowest_step=8, highest_step=8, age_s=0.5, step_s=0.75)
    status = status_view.view(run.run, run.now)
    first, second = (node.progress for node in status.nodes)
    assert first and (first.lowest_step, first.age_s, first.checkpoint_step) == (7, 3.0, 5)
    assert second and (second.highest_step, second.step_s, second.checkpoint_step) == (8, 0.75, None)
    whole = status.progress
    assert whole and (whole.lowest_step, whole.highest_step, whole.step_s, whole.age_s) == (7, 9, 0.75, 3.0)
    run.fails("a")
    assert status_view.view(run.run, run.now).progress is None, "the round is over"


@pytest.mark.parametrize("round_", [0, 2])
def test_progress_of_another_round_is_not_kept(round_: int) -> None:
    run = running("1", "a")
    run.tells("a", round=round_, lowest_step=1)
    assert run.run.progress == {} and run.effects == []


@pytest.mark.parametrize(("spawned_ago_s", "falls"), [(20.0, False), (40.0, True), (None, True)])
def test_a_late_copy_of_a_report_does_not_count_as_falling_steps(spawned_ago_s: float | None, falls: bool) -> None:
    """A real fall is reported later than the higher step. An older agent does not say when it made its report."""
    run = running("1", "a")
    run.tells("a", highest_step=9, spawned_ago_s=30.0, age_s=1.0)
    run.tells("a", highest_step=5, spawned_ago_s=spawned_ago_s, age_s=1.0)
    assert run.run.pace.falls is falls
    assert run.run.progress["a"].progress.highest_step == (5 if falls else 9)


def test_a_node_that_is_gone_has_no_progress() -> None:
    run = running("1:2", "a", "b")
    run.tells("b", lowest_step=1)
    run.is_lost("b")
    assert run.run.progress == {}
