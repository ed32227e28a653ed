"""Summary of a run for its scheduler."""

from rdzv_server.core.views import health, run_view, summary_view
from tests.support.scenario import running
from tests.support.stories import play


def test_a_run_without_progress_has_no_steps():
    run = running("2", "a", "b")
    summary = summary_view.view(run.run, run.now)
    assert (summary.phase, summary.health, summary.round, summary.nodes) == ("running", "ok", 1, 2)
    assert (summary.step, summary.checkpoint_step, summary.restarts) == (None, None, 0)
    run.is_lost("b")
    summary = summary_view.view(run.run, run.now)
    assert (summary.phase, summary.round, summary.nodes, summary.max_restarts) == ("restarting", 1, 0, 0)


def test_steps_and_restarts_of_earlier_rounds_count():
    run = running("1", "a", max_restarts=3)
    run.tells("a", highest_step=40, checkpoint_step=30)
    assert summary_view.view(run.run, run.now).step == 40
    play(run, "fail a; join a; restart_run; join a; tell a highest_step=35")
    summary = summary_view.view(run.run, run.now)
    assert (summary.step, summary.checkpoint_step) == (40, 30)
    assert (summary.restarts, summary.charged_restarts, summary.max_restarts) == (2, 1, 3)


def test_the_worst_finding_is_the_health():
    run = running("3", "a", "b", "c")
    play(run, "disconnect a; disconnect b; disconnect c; 5s")
    found = health.findings(run.run, run.now)
    summary = summary_view.view(run.run, run.now)
    assert (summary.health, summary.sentence) == (found[0].state, found[0].sentence)


def test_an_ended_run_shows_how_it_ended():
    run = running("1", "a")
    run.succeeds("a")
    summary = summary_view.view(run.run, run.now)
    assert (summary.phase, summary.health) == ("succeeded", "ok")
    assert summary.sentence == run_view.outlook(run.run, run.now).reason
