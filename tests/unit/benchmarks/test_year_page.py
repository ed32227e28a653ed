"""The command `year`, its plan of faults, the score and the page."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.year import page
from benchmarks.year.campaign import TITLES, Injected, Score, plan
from benchmarks.year.contenders import FAIR, OURS, USUAL, all_contenders
from benchmarks.year.model import Policy
from benchmarks.year.scenarios import BASE, CHECKED, CHECKS, NOTICED_AT_ONCE, Scenario, play
from benchmarks.year.training import Watched

UNATTENDED = Path(__file__).parents[3] / "docs" / "explanation" / "unattended.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the page to write."""
    path = tmp_path / "unattended.md"
    path.write_text(UNATTENDED.read_text())
    return path


def score(name: str = OURS) -> Score:
    crash = Injected("crash", 1, 1, 100, at_s=10.0, planned_s=1.0, recovered_s=11.5, named=True)
    slow = Injected("slow", 2, 2, 101, at_s=20.0, planned_s=2.0, needs_recovery=False)
    hang = Injected("hang", 3, 3, 102, at_s=30.0, planned_s=3.0, named=False)
    score = Score(name, "--flags", wall_s=60.0, rate=10.0, steps=300, repeated=7, persons=1, survived=2)
    score.faults, score.progress = [crash, slow, hang], [(1.0, 10), (50.0, 300)]
    return score


def test_the_score_counts_what_happened():
    rows = {what: figures for what, *figures in page.score_rows([score()])}
    assert rows["ETTR"] == ["50%"]
    assert rows["recovery, median"] == ["1.5 s"]
    assert rows["root cause named right"] == ["1 of 2"]
    assert rows["times that a person was needed"] == ["1"]


def test_every_kind_of_fault_occurs_once_before_any_repeats_and_a_seed_repeats_the_plan():
    planned = plan(3, minutes=5)
    assert sorted(each.title for each in planned[: len(TITLES)]) == sorted(TITLES)
    assert planned == plan(3, minutes=5) != plan(4, minutes=5)
    assert all(before.at_s < after.at_s for before, after in pairwise(planned))


def test_each_launcher_is_started_as_the_page_says():
    ours, fair, usual = all_contenders()
    assert (ours.name, fair.name, usual.name) == (OURS, FAIR, USUAL)
    assert "--admin-token-file=/f/admin-token" in (ours.server("a:1", "/f") or []) and not fair.server("a:1", "/f")
    assert "--token-file=/f/agent-token" in ours.agent(0, "2:4", "a:1", "a", "/f")
    shell, _, script = fair.agent(0, "2:4", "a:1", "a", "/f")
    assert shell == "sh" and script.startswith("until ") and "is_host=true,last_call_timeout=5" in script
    is_host = [f"is_host={str(not node).lower()}" in usual.agent(node, "2:4", "a:1", "b", "/f") for node in (0, 1)]
    assert is_host == [True, True]


def test_both_parts_are_written_between_their_marks_and_the_rest_stays(path):
    pytest.importorskip("matplotlib")
    page.write_processes(str(path), [score(), score(FAIR), score(USUAL)], "a machine", "16 nodes.")
    ideal = replace(CHECKS, is_noticed_at_once=True)
    played = [
        Scenario(about=about, nodes=16, days=20, policy=policy)
        for about, policy in ((BASE, Policy()), (CHECKED, CHECKS), (NOTICED_AT_ONCE, ideal))
    ]
    page.write_simulation(str(path), [play(each) for each in played], "a machine")
    text = path.read_text()
    assert "| crash | 1.5 | 1.5 | 1.5 |\n| slow | no restart |" in text and "| hang | never |" in text
    assert re.search(
        r"^- 16 nodes, 20 days, checks: 9\d\.\d\d% beside 9\d\.\d\d% had each fault been noticed at once", text, re.M
    )
    assert "points of ETTR lost, and restarts, because of:\n\n| | 16 nodes |" in text
    assert "| 16 | node-agent, 2 % spares | 20 |" in text and "arXiv 2502.03885, Apache-2.0" in text
    assert (path.parent / "unattended" / page.PLOT).read_text().startswith("<?xml")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in UNATTENDED.read_text().splitlines() if line.startswith("#")
    ]
    page.write_processes(str(path), [score()], "a machine", "16 nodes.")
    assert path.read_text().count("times that a person was needed") == 1


def test_a_fault_without_a_victim_is_marked_only_for_its_launcher(path):
    pytest.importorskip("matplotlib")
    theirs = score(FAIR)
    del theirs.faults[1]
    page.write_processes(str(path), [score(), theirs], "a machine", "16 nodes.")
    assert "| crash | 1.5 | 1.5 |\n| slow | no restart |  |\n| hang | never | never |" in path.read_text()


def test_each_false_alarm_is_reported(path):
    page.write_training(str(path), Watched(1.0, 30_000, ("rank 1 on node b may hang",), "--flags"), "a machine")
    said = "1 wrong alarms in 1.00 hours, 30,000 steps of each worker, with `--flags`.\n- rank 1 on node b may hang"
    assert said in path.read_text()
