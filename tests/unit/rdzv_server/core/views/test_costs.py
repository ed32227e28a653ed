"""Costs of operators' actions, shown before they are carried out."""

import pytest
from rdzv_protocol.actions import ACTIONS

from rdzv_server.core.views import costs
from rdzv_server.core.views.costs import Cost, Question
from rdzv_server.words import costs as words
from tests.support.scenario import running
from tests.support.stories import SAVED, check


@pytest.mark.parametrize(
    ("action", "asked", "cost"),
    [
        ("stop", Question(), Cost(words.stop(1, words.work(15.0, 40)), is_high=True)),
        ("restart", Question(), Cost(words.restart(1, words.work(15.0, 40)), is_high=True)),
        (
            "drain",
            Question(node_id="a"),
            Cost(words.drain(1, 0, words.work(15.0, 40), words.stands_still(1, 600.0)), is_high=True),
        ),
        ("drain", Question(node_id="z"), Cost(words.NOTHING_STOPS)),
        ("resize", Question(min_nodes=4, max_nodes=4), Cost(words.waits(3), is_high=True)),
        ("resize", Question(min_nodes=1, max_nodes=4), Cost(words.NOTHING_STOPS)),
        ("cordon", Question(node_id="a"), Cost(words.waits(1), is_high=True)),
        ("cordon", Question(node_id="z"), Cost("")),
        ("admit", Question(), Cost(words.NOTHING_TO_ADMIT)),
        ("uncordon", Question(node_id="a"), Cost("")),
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


LOST = words.WORK_UNKNOWN
STANDS_STILL = words.stands_still(1, 600.0)


@pytest.mark.parametrize(
    ("action", "story", "asked", "cost"),
    [
        ("drain", ("3", "join a b c"), "c", words.drain(1, 2, LOST, STANDS_STILL)),
        ("drain", ("2:3", "join a b c"), "c", words.drain(1, 2, LOST)),
        ("drain", ("3", "join a b c spare"), "c", words.drain(1, 2, LOST)),
        ("drain", ("3", "join a b c spare; cordon spare"), "c", words.drain(1, 2, LOST, STANDS_STILL)),
        ("drain", ("3", "join a b c spare; cordon b"), "c", words.drain(1, 2, LOST, STANDS_STILL)),
        ("drain", ("3", "join a b c spare; cordon b"), "spare", words.waits(1)),
        ("drain", ("3", "join a b"), "b", words.nothing_stops(words.stands_still(2, 600.0))),
        ("restart", ("2", "join a b"), "", words.restart(2, LOST)),
        ("restart", ("2", "join a b; cordon b"), "", words.restart(2, LOST, STANDS_STILL)),
        ("restart", ("2", "join a b spare; cordon b"), "", words.restart(2, LOST)),
        ("cordon", ("2", "join a b"), "b", words.waits(1)),
        ("cordon", ("2", "join a b spare"), "b", ""),
        ("cordon", ("2", "join a b; cordon b"), "b", ""),
        ("admit", ("1:2 scale_up=manual", "join a; form; join b; cordon b"), "", words.NOTHING_TO_ADMIT),
        ("admit", ("1:2 scale_up=manual", "join a; form; join b"), "", words.restart(1, LOST)),
    ],
)
def test_an_action_after_which_the_run_has_too_few_nodes_says_that_the_run_stands_still(
    action: str, story: tuple[str, ...], asked: str, cost: str
) -> None:
    run = check(story)
    assert costs.of_action(action, run.run, Question(node_id=asked), run.now).sentence == cost


def test_a_smaller_size_counts_nodes_for_the_new_size() -> None:
    run = check(("4", "join a b c d; cordon c; cordon d"))
    found = costs.of_action("resize", run.run, Question(min_nodes=2, max_nodes=2), run.now)
    assert found.sentence == words.restart(4, words.WORK_UNKNOWN)


def test_a_round_that_forms_has_nothing_to_lose() -> None:
    run = check(("2", "join a"))
    assert costs.of_action("restart", run.run, Question(), run.now) == Cost(words.NOTHING_RUNS)


def test_an_action_that_is_asked_about_has_costs() -> None:
    names = {action.name for action in ACTIONS}
    assert {action.name for action in ACTIONS if action.question} <= costs._COSTS.keys() <= names
