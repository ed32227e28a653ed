"""Workers whose script has ended, and whose process has not: the run's health names them."""

import pytest
from rdzv_protocol.messages import EndedScript

from rdzv_server.core.policies import words
from rdzv_server.core.views import health, run_view
from tests.support.scenario import Scenario
from tests.support.stories import play

BOOM = "ValueError: boom"


def told(*ended: str, rank: int = 1, round_: int = 1) -> Scenario:
    """Return a run whose agents with these names have reported such a worker."""
    run = Scenario("2", max_restarts=1)
    play(run, "join a b; 40s; renew a b")
    for name in ended:
        run.renews(name, ended_script=EndedScript(round=round_, rank=rank, error=BOOM))
    return run


def states(run: Scenario) -> list[str]:
    return [found.state for found in health.of(run.run, run.now)]


def warnings(run: Scenario) -> list[str | None]:
    return [event.node_id for event in run.events if event.kind == "warning"]


def test_the_worker_is_named_once_with_what_to_do_and_nothing_is_killed() -> None:
    run = told("b", "b")
    (found,) = health.of(run.run, run.now)
    sentence = words.script_ended(1, "b", BOOM)
    assert (found.state, found.sentence, found.is_trouble) == ("stalled", sentence, True)
    assert [step.command for step in found.next] == ["rdzvctl stacks run 1", "rdzvctl restart run"]
    assert run_view.node_remarks(run.run, "b") == {"raised": sentence}
    assert run_view.node_remarks(run.run, "a") == {}
    assert warnings(run) == ["b"]
    assert run.stage.value == "running" and run.run.round == 1


def test_of_several_nodes_the_first_is_named() -> None:
    run = told("b", "a")
    (found,) = health.of(run.run, run.now)
    assert found.sentence == words.scripts_ended(words.script_ended(1, "b", BOOM), 1)


def test_it_outlives_a_restart_of_the_server() -> None:
    run = told("b")
    play(run, "restart; renew a")
    run.renews("b", ended_script=EndedScript(round=1, rank=1, error=BOOM))
    assert states(run) == ["stalled"] and warnings(run) == ["b"]


def test_a_sign_of_work_takes_it_back() -> None:
    run = told("b")
    play(run, "renew a b")
    assert states(run) == ["ok"] and warnings(run) == ["b", "b"]
    assert run.events[-1].reason == words.script_continues(1, "b")


def test_another_request_than_a_poll_does_not_take_it_back() -> None:
    run = told("b")
    run.renews("b", is_poll=False)
    assert states(run) == ["stalled"] and warnings(run) == ["b"]


@pytest.mark.parametrize("ends", ["succeed b", "fail b; join a b"])
def test_workers_that_have_ended_are_not_named(ends: str) -> None:
    run = told("b")
    play(run, ends)
    assert "stalled" not in states(run)


def test_a_report_about_another_round_changes_nothing() -> None:
    assert states(told("b", round_=2)) == ["ok"]
