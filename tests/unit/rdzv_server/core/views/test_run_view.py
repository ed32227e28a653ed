"""Facts about a run for people: every view shows the same."""

from collections.abc import Mapping

import pytest
from msgspec import json, to_builtins
from rdzv_protocol.text import age

from node_agent.flags import sort_key
from rdzv_server.core.kernel.policy import NoSigns, Policy
from rdzv_server.core.kernel.run import PolicyState, Run, Stage
from rdzv_server.core.views import run_view, status_view, watch_view
from rdzv_server.core.views.run_view import Missing, Outlook
from rdzv_server.http.metrics import RUN_FINISHING, RUN_NODES, RUN_RESTARTS_LEFT, RUN_UNHEARD, RUN_WORLD_SIZE, Survey
from rdzv_server.words import completion, notices
from rdzv_server.words import health as health_words
from rdzvctl.answers import decoded
from rdzvctl.views import explanation, tables
from rdzvctl.views.state import Servers
from tests.support.scenario import Scenario, running
from tests.support.stories import check


def stories() -> dict[str, Scenario]:
    forming = Scenario("3")
    forming.join("a")
    restarting = running("2:3", "a", "b", max_restarts=1)
    restarting.fails("a")
    spare = running("2", "a", "b")
    spare.join("c")
    ended = running("2", "a", "b")
    ended.succeeds("a", "b")
    return {"forming": forming, "restarting": restarting, "running": spare, "succeeded": ended}


def test_status_watch_and_metrics_are_made_of_one_model() -> None:
    for phase, story in stories().items():
        run, now = story.run, story.now
        status, watched = to_builtins(status_view.view(run, now)), watch_view.view(run, now, lambda at: at)
        assert phase == run_view.phase(run) == status["phase"] == watched["phase"]
        assert run_view.world_size(run) == status["world_size"] == watched["world_size"]
        assert status["reason"].startswith(watched["reason"]) and watched["reason"] == run_view.outlook(run, now).reason
        assert now - status["phase_age_s"] == watched["since"] == run.stage_since
        if not run.stage.is_end:
            found = Survey().samples_of(run, now, is_listed=True)
            samples = {(each.metric, *each.labels[1:]): each.value for each in found}
            assert samples[RUN_WORLD_SIZE,] == status["world_size"]
            states = [node["state"] for node in status["nodes"]]
            assert all(samples[RUN_NODES, state] == states.count(state) for state in states)


TRAINED = "tell a highest_step=7 step_s=1.0 checkpoint_step=5; 9s"
NUMBERS = pytest.mark.parametrize(
    ("story", "nodes"),
    [
        (("3", "join a"), "1 of 3"),
        (("2:3", "join a b c; lose c; join a"), "1 of 2:3"),
        (("2 max_restarts=1", "join a b; fail a; join a"), "1 of 2"),
        (("1:2 scale_up=manual", "join a b c; 30s"), "2+1 of 1:2"),
        (("1:2 scale_up=manual", "join a; 30s; join b"), "1+1 of 1:2"),
        (("1:3", "join a b c; 30s; drain b"), "0 of 1:3"),
        (("2:3", "join a b c; 30s; disconnect b"), "3 of 2:3"),
        (("2", "join a b; 60s; succeed a; 70s"), "2 of 2"),
        (("1:2", "join a b; 30s; succeed a b"), "2 of 1:2"),
        (("1", "join a; 5s; fail a"), "1 of 1"),
        (("1 max_restarts=3", f"join a; {TRAINED}; fail a; join a; 5s; {TRAINED}"), "1 of 1"),
    ],
    ids=["forming", "restarting", "stopping", "full", "standing by", "draining", "disconnected", "finishing",
         "succeeded", "failed", "training"],
)  # fmt: skip


@NUMBERS
def test_numbers_of_nodes_are_the_same_in_the_status_on_the_page_in_metrics_and_in_rdzvctl(
    story: tuple[str, str], nodes: str
) -> None:
    """A node that still stops its workers, or is drained, does not take part: it has no place in the next round."""
    happened = check(story)
    run, now = happened.run, happened.now
    status, watched = status_view.view(run, now), watch_view.view(run, now, lambda at: at)
    assert (status.present, status.standbys) == (watched["nodes"], watched.get("standbys", 0))
    (row,) = tables.runs_table([decoded(json.encode(status))]).rows
    assert row[5] == nodes
    if not run.stage.is_end:
        samples = {each.metric: each.value for each in Survey().samples_of(run, now, is_listed=True)}
        assert samples[RUN_FINISHING] == (status.finishing.age_s if status.finishing else 0.0)
        assert samples[RUN_UNHEARD] == (status.unheard_s or 0.0)
        assert samples[RUN_RESTARTS_LEFT] == status.restarts_left
    assert watched["restarts_used"] == status.restarts_used == status.max_restarts - status.restarts_left
    assert watched.get("restarts", {}) == {cause: times for cause, times in status.restarts.items() if times}


@NUMBERS
def test_the_time_of_a_run_has_the_same_parts_in_the_status_on_the_page_and_in_rdzvctl(
    story: tuple[str, str], nodes: str
) -> None:
    nodes_, steps = story
    happened = check((nodes_, f"{steps}; 17s"))
    run, now = happened.run, happened.now
    status, watched = status_view.view(run, now), watch_view.view(run, now, lambda at: at)
    spent = dict(watched.get("time_s", {}))
    if not run.stage.is_end:  # as the page does
        spent[watched["time_in"]] = spent.get(watched["time_in"], 0.0) + now - watched["time_since"]
    line = explanation.time_line(decoded(json.encode(status)))
    assert all(f"{age(seconds)} {word}" in line for word, seconds in spent.items() if seconds > 0.5)
    assert run.stage.is_end or sum(spent.values()) == pytest.approx(status.age_s, abs=0.5)


class MadeUp(Policy[PolicyState, NoSigns]):
    """Policy that no view knows."""

    name = "made_up"

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> Mapping[str, str]:
        return {"hot": "node b is hot"} if agent_id == "b" else {}

    @classmethod
    def run_remark(cls, run: Run, now: float) -> str:
        return "a limit is near"


def test_remarks_of_a_policy_about_a_node_or_a_run_are_in_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "POLICIES", (MadeUp,))
    monkeypatch.setattr(run_view, "NODE_REMARKS", (MadeUp.node_remarks,))
    story = running("2", "a", "b")
    run, now = story.run, story.now
    status, watched = status_view.view(run, now), watch_view.view(run, now, lambda at: at)
    assert status.reason == watched["reason"] and status.reason.endswith("; a limit is near")
    nodes = [watch_view.node(run, agent) for agent in run.agents.values()]
    assert [node.get("remarks") for node in nodes] == [None, {"hot": "node b is hot"}]
    assert [node.remarks for node in status.nodes] == [{}, {"hot": "node b is hot"}]
    told = decoded(json.encode(status))
    assert [row[-1] for row in tables.nodes_table(told).rows] == ["", "hot"]
    assert "Node b is hot." in explanation.why(told, Servers("h:1")).text


def test_the_model_says_what_a_run_waits_for_and_what_it_is_on_its_way_to() -> None:
    story = stories()["forming"]
    assert run_view.missing(story.run) == Missing(2, [], [], 0, {})
    story.run.set_apart = "an error"
    assert run_view.missing(story.run) is None, "no node that joins would get a seat"
    story.run.set_apart = ""
    until = run_view.forms_until(story.run)
    assert run_view.outlook(story.run, story.now)[1:] == ("gives_up", until)
    assert run_view.forming_s(story.run, story.now + 5.0) == 5.0
    ended = stories()["succeeded"].run
    assert (run_view.missing(ended), run_view.forms_until(ended)) == (None, None)
    assert run_view.outlook(ended, 0.0) == Outlook(ended.end_reason)


def test_only_a_running_round_reports_no_progress_with_a_command_quoted_for_a_shell() -> None:
    story = running("1", "a")
    story.run.run_id = "a b"
    assert run_view.no_progress(story.run) == health_words.no_progress_reported("'a b'")
    story.succeeds("a")
    story.run.unwritten_since = lambda: story.now
    assert (run_view.phase(story.run), run_view.no_progress(story.run)) == ("running", None)


def test_a_disconnected_node_is_lost_when_its_grace_is_over() -> None:
    run = running("2", "a", "b", lease_s=20, disconnect_grace_s=5)
    run.disconnects("b")
    assert run_view.lost_at(run.run, "b") == run.now + 5.0
    run.passes(2)
    (_, node) = status_view.nodes(run.run, run.now)
    assert node.lost_in_s == 3.0


def test_leases_decide_about_nodes_that_vanish_together() -> None:
    run = running("3", "a", "b", "c", lease_s=20, disconnect_grace_s=5)
    run.passes(4)
    run.renews("a")
    run.disconnects("b")
    run.disconnects("c")
    assert [run_view.lost_at(run.run, node_id) for node_id in "abc"] == [run.now + 20.0, run.now + 16.0, run.now + 16.0]
    assert [node.lost_in_s for node in status_view.nodes(run.run, run.now)] == [None, 16.0, 16.0]


def test_a_run_whose_agents_are_all_gone_waits_for_them_and_loses_none() -> None:
    run = running("2", "a", "b", lease_s=20)
    assert not run_view.waits_for_agents(run.run)
    run.disconnects("a")
    run.disconnects("b")
    assert run_view.waits_for_agents(run.run) and run_view.lost_at(run.run, "a") is None
    run.passes(60)
    assert run.run.unheard_since is not None and run_view.waits_for_agents(run.run)
    run.renews("a")
    assert not run_view.waits_for_agents(run.run)


@pytest.mark.parametrize(("name", "round_"), [("forming", 0), ("restarting", 1), ("running", 1), ("succeeded", 1)])
def test_the_status_has_the_round_of_the_last_workers(name: str, round_: int) -> None:
    run = stories()[name].run
    assert run_view.workers_round(run) == round_
    run.set_apart = "an error"
    assert run_view.workers_round(run) == round_, "also if the server decides nothing about the run"


@pytest.mark.parametrize(
    ("topology", "place"),
    [
        ("spine1.rack07.node3", "spine1.rack7"), ("rack10.node120", "rack10"), ("us-east-1a", "us-east-1a"),
        ("17", ""), ("", ""), ("pod0.0", "pod0"),
    ],
)  # fmt: skip
def test_the_place_of_a_node_is_the_part_of_the_network_above_it(topology: str, place: str) -> None:
    run = Scenario("1")
    run.join("a", sort_key=sort_key(topology))
    assert run_view.place(run.run.agents["a"]) == place


def test_during_a_notice_the_reason_says_which_node_leaves_why_and_until_when() -> None:
    run = check(("1:2 notice_timeout_s=20", "join a b; announce b notice_s=20 stop_s=25; 5s"))
    leaves = notices.leaves("b", "SIGTERM")
    untimed = completion.running(1, 2, also=[completion.ends_soon(leaves)])
    assert run_view.outlook(run.run, run.now) == (untimed, "ends", run.now + 15.0)
    assert run_view.reason(run.run, run.now) == completion.running(1, 2, also=[completion.ends_soon(leaves, 15.0)])


def test_an_ended_run_counts_the_nodes_of_its_last_round_even_if_that_never_started() -> None:
    run = Scenario("2")
    run.join("a")
    run.passes(run.run.settings.join_timeout_s)
    assert run.stage is Stage.FAILED and run_view.present(run.run) == 1
    run = running("2", "a", "b")
    run.is_lost("b")
    run.join("a")
    run.passes(run.run.settings.join_timeout_s)
    assert run.stage is Stage.FAILED and run_view.present(run.run) == 1
    run = running("2", "a", "b")
    run.fails("a")
    assert run.stage is Stage.FAILED and run_view.present(run.run) == 2
