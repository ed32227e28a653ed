"""Costs of operators' actions, shown before they are carried out."""

import pytest

from rdzv_server.core.views import costs
from rdzv_server.core.views.costs import Cost, Question
from rdzv_server.words import costs as words
from tests.support.scenario import running
from tests.support.stories import check

SAVED = "60s; tell a highest_step=55 step_s=1 telling_s=60 checkpoint_step=40 checkpoint_s=5"


@pytest.mark.parametrize(
    ("action", "asked", "cost"),
    [
        ("stop", Question(), Cost(words.stop(1, words.work(15.0, 40)), is_high=True)),
        ("restart", Question(), Cost(words.restart(1, words.work(15.0, 40)), is_high=True)),
        ("drain", Question(node_id="a"), Cost(words.drain(1, 0, words.work(15.0, 40)), is_high=True)),
        ("drain", Question(node_id="z"), Cost(words.NOTHING_STOPS)),
        ("resize", Question(min_nodes=4, max_nodes=4), Cost(words.waits(3), is_high=True)),
        ("resize", Question(min_nodes=1, max_nodes=4), Cost(words.NOTHING_STOPS)),
        ("cordon", Question(node_id="a"), Cost("")),
    ],
)
def test_an_action_on_a_run_with_checkpoints_costs_the_work_since_the_last_one(
    action: str, asked: Question, cost: Cost
) -> None:
    run = check(("1", f"join a; {SAVED}"))
    assert costs.of_action(action, run.run, asked, run.now) == cost


def test_without_progress_it_is_unknown_how_much_work_is_lost() -> None:
    run = running("2", *"ab")
    assert costs.of_action("restart", run.run, Question(), run.now).sentence == words.restart(2, words.WORK_UNKNOWN)
    smaller = Question(min_nodes=1, max_nodes=1)
    assert costs.of_action("resize", run.run, smaller, run.now).is_high


def test_a_round_that_forms_has_nothing_to_lose() -> None:
    run = check(("2", "join a"))
    assert costs.of_action("restart", run.run, Question(), run.now) == Cost(words.NOTHING_RUNS)
