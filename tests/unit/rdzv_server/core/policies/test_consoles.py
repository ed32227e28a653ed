"""Consoles that take no output: the run's health says so while workers may wait for them."""

import pytest

from rdzv_server.core.policies import words
from rdzv_server.core.views import health, run_view
from tests.support.scenario import Scenario
from tests.support.stories import play


def told(steps: str) -> Scenario:
    run = Scenario("2", max_restarts=1)
    play(run, f"join a b; {steps}")
    return run


def states(run: Scenario) -> list[str]:
    return [found.state for found in health.of(run.run, run.now)]


def warnings(run: Scenario) -> list[str | None]:
    return [event.node_id for event in run.events if event.kind == "warning"]


@pytest.mark.parametrize(
    "polls", ["", "; 5s; renew a console_held_s=17; renew b", "; restart; renew a console_held_s=12"]
)
def test_a_blocked_console_is_named_once_with_the_next_step(polls: str) -> None:
    run = told("renew a console_held_s=12" + polls)
    (found,) = health.of(run.run, run.now)
    assert (found.state, found.sentence, found.next) == (
        "stalled",
        words.console_held("a"),
        (words.free_console("a"),),
    )
    assert found.is_trouble and found.since <= run.now - 12.0
    assert run_view.node_remarks(run.run, "a") == {"held": words.console_held("a")}
    assert run_view.node_remarks(run.run, "b") == {}
    assert warnings(run) == ["a"]


def test_the_first_of_several_consoles_is_named() -> None:
    run = told("renew a console_held_s=12; renew b console_held_s=30")
    (found,) = health.of(run.run, run.now)
    assert found.sentence == words.consoles_held(words.console_held("b"), 1)


def test_a_console_that_continues_is_no_longer_reported() -> None:
    run = told("renew a console_held_s=12; 5s; renew a")
    assert states(run) == ["ok"] and warnings(run) == ["a", "a"]


def test_another_request_than_a_poll_does_not_say_that_a_console_continues() -> None:
    run = told("renew a console_held_s=12; 5s")
    run.renews("a", is_poll=False)
    assert states(run) == ["stalled"] and warnings(run) == ["a"]


@pytest.mark.parametrize("ends", ["succeed a", "fail b; join a b"])
def test_workers_that_have_ended_do_not_wait_for_a_console(ends: str) -> None:
    assert "stalled" not in states(told(f"renew a console_held_s=12; {ends}"))


def test_an_agent_without_workers_does_not_report_a_console() -> None:
    run = Scenario("2")
    play(run, "join a; renew a console_held_s=12")
    assert run.run.policies["consoles"].held_consoles == {}
