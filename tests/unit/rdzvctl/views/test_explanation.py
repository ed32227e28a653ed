"""The explanation of a run for people, made from a real server's status, in each state of a run."""

from typing import Any

import pytest
from rdzv_protocol.words.run import (
    gives_up_in,
    last_restart_took,
    read_console,
    restarts_took,
    starts_in,
    worker_failed,
)

from rdzv_server.core.events import NodeCordoned
from rdzv_server.core.kernel.silent_runs import MOST_S
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.policies.network_check import words as network_words
from rdzv_server.words import completion, failures, finishing, health, notices
from rdzv_server.words import runs as run_words
from rdzvctl import words as ctl
from rdzvctl.views import explanation, lines, state, tables
from rdzvctl.words.explanation import forms, has_been, has_ended
from tests.support.message_search import has_message
from tests.support.scenario import Scenario, running
from tests.support.stories import check
from tests.unit.rdzvctl.views.reported import CORDON, LOOP, SERVER, START, UNTOLD, told

ONE_OF_3 = completion.too_few(2, 1, 3, "a")
TOO_FEW = completion.too_few(2, 1, 3, "a", to_stop=completion.to_stop("b", 1), gone="c")
OVERDUE = f"Overdue for 5m: {finishing.finishing('rank 0', 'rank 1 on node b')}. "
FAILED = worker_failed("a", 0, "exit code 1", "")
LOOPS = health.looping(3, "exit code 1", health.worker_at(0, "a"), tells_steps=False)


@pytest.mark.parametrize(
    ("nodes", "happens", "says", "next_step"),
    [
        ("3", "join a; 10s", forms("Run run", "forming", 10.0, 1, gives_up_in(ONE_OF_3, 590.0)),
         ctl.steps.start_more(2, START)),
        ("1:4", "join a b", f"{starts_in(completion.awaits_more(4), 5.0)}.", ctl.steps.STARTS),
        ("3", "join a b c; lose c; join a; 2s", f"has been restarting for 2s, in round 2: {TOO_FEW}",
         ctl.steps.check_lost("c")),
        ("2 max_restarts=1", "join a b; fail a; join a", "b to stop", ctl.steps.wait_for("b", 1)),
        ("1:2", "join a b; 30s; lose b; 3s", "has been restarting for 3s", ctl.steps.wait_for("a", 1)),
        ("2", "join a b; 70s", has_been("Run run", "running", 70.0, completion.running(1, 2)), UNTOLD),
        ("2", "join a b; tell a highest_step=7; 7s", "has been running for 7s", ctl.steps.RUNS),
        ("2", "join a b; tell a highest_step=7; 70s", "has been running for 1m10s", ctl.steps.told_once("run", 70.0)),
        ("2", "join a b; tell a highest_step=7 step_s=9.0; 70s", "has been running for 1m10s", ctl.steps.RUNS),
        ("2", "join a b; 60s; succeed a; 70s", ctl.explanation.finishing(
            "Run run", "rank 0", 70.0, "rank 1 on node b"), ctl.steps.RUNS),
        ("2", "join a b; succeed a; 300s", OVERDUE + has_been("Run run", "finishing", 300.0, completion.running(1, 2)),
         health.stacks("run")),
        ("1:2 scale_up=manual", "join a; 30s; join b", ctl.explanation.standing_by("b"), ctl.steps.admit("run")),
        ("1", "join a; 5s; succeed a; 9s", has_ended(
            "Run run", "succeeded", 9.0, 5.0, run_words.succeeded(1)), ctl.steps.ENDED),
        ("1", "join a; 5s; fail a; 9s", has_ended(
            "Run run", "failed", 9.0, 5.0, f"{FAILED}; {failures.no_restarts_left(0, None)}"), read_console("a")),
    ],
    ids=["forming", "last call", "node gone", "failed", "stopping", "untold", "running", "told once",
         "stepping", "finishing", "finishing for long", "manual", "succeeded", "ended"],
)  # fmt: skip
def test_why_shows_a_runs_state_and_what_to_do(nodes: str, happens: str, says: str, next_step: str) -> None:
    run = told(check((nodes, happens)))
    found = explanation.why(run, SERVER)
    assert says in found.text
    assert any(next_step in step for step in found.next), found.next


LEAVES = notices.leaves("c", "SIGTERM")
ANNOUNCED = "join a b c; tell a highest_step=7; announce c notice_s=20 stop_s=25; 5s"


@pytest.mark.parametrize(
    ("nodes", "happens", "says", "next_step"),
    [
        ("2:3", ANNOUNCED, completion.ends_soon(LEAVES, 15.0), ctl.steps.ends_by_itself(15.0)),
        ("3", ANNOUNCED, completion.ends_soon(LEAVES, 15.0), ctl.steps.start_before_end(1, 15.0, START)),
        ("2:3", f"{ANNOUNCED}; announce b notice_s=20", ctl.explanation.leave_together("c, b"),
         ctl.steps.start_before_end(1, 15.0, START)),
        ("2:3", "join a b c; succeed a; announce c notice_s=20", ctl.explanation.round_ends(20.0, LEAVES),
         ctl.steps.ends_by_itself(20.0)),
    ],
    ids=["enough", "too few", "two", "finishing"],
)  # fmt: skip
def test_during_a_notice_why_says_which_node_leaves_and_what_follows(
    nodes: str, happens: str, says: str, next_step: str
) -> None:
    found = explanation.why(told(check((f"{nodes} notice_timeout_s=20", happens))), SERVER)
    assert says in found.text and found.next == [next_step]


def test_why_names_running_nodes_without_a_seat_in_a_new_round() -> None:
    run = running("2", "a", "b")
    run.handle(NodeCordoned(node_id="b", by="admin", reason="its fan"))
    assert ctl.explanation.gets_no_seat("b", CORDON) in explanation.why(told(run), SERVER).text


def test_why_names_the_first_failure_with_its_evidence_and_hint() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b", error="ValueError: boom", traceback=("Traceback:", "  line\x1b[2J 3"), hint="Mend the data")
    run.join("a", "b")
    run.fails("a")
    found = explanation.why(told(run), SERVER)
    first = worker_failed("b", 1, "exit code 1", "ValueError: boom")
    assert ctl.explanation.failed_first(first, 0.0, 1) in found.text
    assert "Mend the data." in found.text
    assert ctl.explanation.rounds_have_failed(2, "") in found.text, "the run's reason is the last failure"
    assert ctl.explanation.has_restarted({"worker failure": 1}, 1, 1, {}) in found.text
    assert found.evidence == ["Traceback:", "  line [2J 3"]


def test_why_names_the_last_failure_and_the_number_of_failed_rounds() -> None:
    run = check(("2 max_restarts=9", "join a b; fail a; rejoin; fail b; rejoin"))
    last = ctl.explanation.failed_last(worker_failed("b", 1, "exit code 1", ""), 0.0, 2)
    assert ctl.explanation.rounds_have_failed(2, last) in explanation.why(told(run), SERVER).text


def test_why_does_not_take_the_last_failure_for_the_first_one_if_the_same_fails_in_each_round() -> None:
    text = explanation.why(told(check(("1 max_restarts=1", "join a; fail a; join a; 300s; fail a"))), SERVER).text
    first = worker_failed("a", 0, "exit code 1", "")
    assert ctl.explanation.failed_first(first, 300.0, 1) in text
    assert ctl.explanation.that_failed_first(300.0, 1) not in text, "the run's reason is the failure of round 2"
    assert ctl.explanation.rounds_have_failed(2, "") in text


def test_why_says_what_a_restart_is_for() -> None:
    run = told(check(("2", "join a b; lose b")))
    assert ctl.explanation.reason_of_restart("node b was lost") in explanation.why(run, SERVER, "node b was lost").text


def test_why_ends_with_the_failure_of_the_attempt_before() -> None:
    earlier = ctl.explanation.earlier_failed(1, "boom")
    assert explanation.why(told(check(("1", "join a; 5s"))), SERVER, earlier=earlier).text.endswith(f" {earlier}")


def test_why_of_an_ended_run_says_why_its_missing_nodes_are_gone() -> None:
    run = told(check(("2 join_timeout_s=60", "join a b; lose b; join a; 61s")))
    assert run["phase"] == "failed"
    (gone,) = run["departures"]
    assert ctl.explanation.gone("b", 61.0, gone["cause"]) in explanation.why(run, SERVER).text
    assert tables.nodes_table(run).rows[-1][:2] == ("b", "gone")
    assert "b" not in explanation.why(told(check(("2", "join a b; succeed a b"))), SERVER).text.split()


def test_why_shows_once_what_ended_the_run() -> None:
    found = explanation.why(told(check(("1", "join a; fail a"))), SERVER)
    assert found.text.count("worker rank 0 on node a failed") == 1


def test_why_does_not_name_a_rank_if_the_hang_singles_none_out() -> None:
    run = told(check(("2", "join a b; suspect a 0; suspect b 1; judge")))
    found = explanation.why(run, SERVER)
    assert worker_failed("", 0, hang_words.hang(""), "", singled_out=False) in found.text and "rank" not in found.text
    assert not [step for step in found.next if "rdzvctl logs" in step]


def test_why_says_that_a_limit_may_be_too_short_and_what_to_do() -> None:
    hang = "suspect a 0 limit_s=30; judge"
    run = told(check(("1 max_restarts=9", f"join a; {hang}; join a; {hang}; join a; {hang}; join a; {hang}")))
    found = explanation.why(run, SERVER)
    assert has_message(found.text, hang_words.limit_doubted, in_row=3, setting="--progress-timeout", limit_s=30.0)
    assert found.text.startswith("Hung for 2s: ") and found.text.count("may be too short") == 1
    assert found.next[:3] == [health.stacks("run"), health.restart("run"), hang_words.RAISE_LIMIT]
    assert found.next[3:] == [read_console("a"), health.events("run"), health.stop_and_mend("run")], "it loops, too"


BACK = "50s; tell a telling_s=1 spawned_ago_s=45 imported_ago_s=15 initialized_ago_s=14 loaded_ago_s=2"


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        ("20s; fail a ago_s=0.5; join a; 1s", last_restart_took(2, {"detecting_s": 0.5})),
        (
            f"20s; fail a ago_s=0.5; join a; {BACK}; 60s; fail a ago_s=3; join a; {BACK}",
            last_restart_took(
                3, {"detecting_s": 3.0, "spawning_s": 5.0, "importing_s": 30.0, "loading_s": 12.0, "first_step_s": 1.0}
                | {"initializing_s": 1.0},
            ),
        ),
    ],
    ids=["no progress yet", "the latest of two"],
)  # fmt: skip
def test_why_shows_the_largest_parts_of_the_last_restart(happens: str, says: str) -> None:
    text = explanation.why(told(check(("1 max_restarts=3", f"join a; {happens}"))), SERVER).text
    assert f" T{says[1:]}." in text


def test_why_does_not_show_parts_of_a_restart_before_it_starts() -> None:
    beginning = last_restart_took(2, {}).partition(",")[0]
    assert (
        beginning[1:] not in explanation.why(told(check(("1 max_restarts=3", "join a; 20s; fail a; 5s"))), SERVER).text
    )


def test_why_names_the_silent_nodes() -> None:
    run = running("2", *"ab", disconnect_grace_s=5)
    run.disconnects("b")
    run.passes(2)
    assert ctl.explanation.disconnected("b", 2.0, 3.0) in explanation.why(told(run), SERVER).text


def test_no_node_of_several_that_vanish_together_is_announced_as_lost_before_its_lease_ends() -> None:
    run = running("3", *"abc", lease_s=20, disconnect_grace_s=5)
    run.disconnects("b")
    run.disconnects("c")
    text = explanation.why(told(run), SERVER).text
    assert all(ctl.explanation.disconnected(node_id, 0.0, 20.0) in text for node_id in "bc")


def test_why_says_at_once_that_no_agent_is_connected_without_announcing_a_loss() -> None:
    run = running("2", *"ab", disconnect_grace_s=5)
    run.disconnects("a")
    run.disconnects("b")
    run.passes(2)
    found = explanation.why(told(run), SERVER)
    assert found.text.startswith(f"Silent for 2s: {health.none_connected('ab', 0)}.") and "lost" not in found.text
    assert found.next == [health.LOOK_AT_NODES, health.START_AGENTS, health.stop("run")]
    assert not any("lost within" in row[-1] for row in tables.nodes_table(told(run)).rows)


def test_why_reports_silent_agents_since_when_and_what_to_do() -> None:
    run = told(check(("2 lease_s=10", "join a b; 42s")))
    found = explanation.why(run, SERVER)
    assert found.text == (
        f"Silent for 42s: {completion.no_agent_heard(MOST_S)}. "
        f"Run run has been running for 42s: {completion.running(1, 2)}."
    )
    assert found.next == [health.LOOK_AT_NODES, health.START_AGENTS, health.stop("run")]
    assert not any("lost within" in row[-1] for row in tables.nodes_table(run).rows)


def test_why_names_nodes_between_which_the_network_test_has_failed() -> None:
    run = Scenario("2")
    run.join("a", "b", queries=("pair_test",), secret="s")
    run.tests_network(bad="b")
    found = explanation.why(told(run), SERVER)
    assert found.text.lower().count(network_words.unreachable("a", "b", "0.3 MB/s, fewer than 10", 0).lower()) == 1
    assert found.next == [network_words.MEND_LINK, network_words.restart_tests_network("run")]


def test_why_begins_with_what_is_wrong_and_what_to_do_about_that() -> None:
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; 60s")))
    found = explanation.why(run, SERVER)
    assert found.text.startswith(f"Looping for 1m: {LOOPS}. Run run has ")
    assert found.next == run["health"]["next"] and found.next[0] == read_console("a")
    assert lines.of_run(run).endswith(f"; looping for 1m: {run['health']['sentence']}")
    run["health"] = None  # as of a run that cannot be shown
    assert explanation.why(run, SERVER).next == [UNTOLD] and tables.runs_table([run]).rows[0][2] == "-"


def test_why_of_a_slow_run_says_once_which_node_is_slow() -> None:
    found = explanation.why(told(check(("2 lease_s=10", "join a b; steps 140 a=1.0 b=3.0"))), SERVER)
    assert found.text.startswith("Slow for ") and found.text.lower().count("node b is slow") == 1
    assert found.next == [policy_words.replace("b")]


def test_all_runs_are_asked_which_of_them_need_a_person() -> None:
    stories = [
        ("1", "join a"), ("2 max_restarts=9", f"join a b; {LOOP}; 60s"), ("3", "join a; 10s"), ("1:2", "join a; 9s"),
        ("1", "join a; succeed a"), ("1", "join a; fail a"),
    ]  # fmt: skip
    runs = [told(check(story)) for story in stories]
    for number, run in enumerate(runs):
        run["run_id"] = f"r{number}"
    start_r2 = ctl.steps.start_more(2, ctl.steps.agent("r2", SERVER.endpoint))
    assert explanation.troubles(runs, SERVER) == [
        ctl.runs.needs_person("r1", ctl.runs.trouble("looping", 60.0, LOOPS, []), read_console("a")),
        ctl.runs.needs_person("r2", ctl.runs.state("forming", 10.0, runs[2]["reason"]), start_r2),
        ctl.runs.needs_person("r5", ctl.runs.ended("failed", 0.0, runs[5]["reason"]), read_console("a")),
        ctl.runs.needs_nothing(2, {"succeeded": 1}, named_failed=1, are_all_well=False),
    ]
    few = explanation.troubles(runs, SERVER._replace(program="rdzvctl --context lab"), most=1)
    assert few[1] == ctl.runs.more_runs(1, "1 forming").replace("rdzvctl", "rdzvctl --context lab")
    assert [len(few), few[3:]] == [4, explanation.troubles(runs, SERVER)[3:]]
    assert explanation.troubles(runs[1:3], SERVER) == explanation.troubles(runs, SERVER)[:2], "no run needs nothing"
    assert explanation.troubles(runs[:1], SERVER) == [ctl.runs.needs_nothing(1, {}, named_failed=0, are_all_well=True)]


def test_the_latest_failed_runs_are_named_and_the_others_counted() -> None:
    runs = [told(check(("1", f"join a; fail a; {age_s}s"))) for age_s in (90_000, 60, 50, 40, 30, 20)]
    for number, run in enumerate(runs):
        run["run_id"] = f"r{number}"
    stopped = told(check(("1", "join a; stop")))
    *named, last = explanation.troubles([*runs, stopped], SERVER)
    assert [line.partition(":")[0] for line in named] == ["r5", "r4", "r3", "r2"]
    assert last == ctl.runs.needs_nothing(0, {"failed": 2, "stopped": 1}, named_failed=4, are_all_well=True)
    assert explanation.failures(runs[:1], SERVER) == [], "a day ago is not recently"


def test_status_shows_what_all_restarts_took_with_the_steps_that_they_kept_and_repeated() -> None:
    run = told(check(("1 max_restarts=3", f"join a; 20s; fail a ago_s=0.5; join a; {BACK}")))
    run["restart_costs"] |= {"kept_steps": 15, "repeated_steps": 1}
    assert explanation.restarts_line(run) == f"{restarts_took(1, 1, run['restart_costs']['cost'], 15, 1)}."


def test_a_run_says_what_its_time_went_into() -> None:
    went = ctl.explanation.time_went_into
    run = told(running("1", "a"))
    run["time_s"] |= {"running": 7_500.0, "forming": 12.0, "waiting": 0.4}
    assert explanation.time_line(run) == went({"running": 7_500.0, "forming": 12.0}, None)
    run["time_s"] |= {"training": 7_200.0, "checkpointing": 0.0, "detecting": 60.0, "lost": 240.0, "ettr": 0.9585}
    assert explanation.time_line(run) == went(
        {"training": 7_200.0, "detecting": 60.0, "lost": 240.0, "forming": 12.0}, 0.9585
    )
    run["time_s"] |= {"training": None, "ettr": None, "detecting": 600.0, "lost": 0.0}
    assert explanation.time_line(run) == went({"running": 6_900.0, "detecting": 600.0, "forming": 12.0}, None)
    run["time_s"] |= dict.fromkeys(("running", "forming", "detecting"), 0.0)
    assert explanation.time_line(run) == ""


def a_server(reason: str | None, *leaders: str | None, leads: bool = False) -> dict[str, Any]:
    """Return a server's part of its status. `leaders`: of the shards; none for a single server."""
    shards = [{"shard": number, "leader": leader} for number, leader in enumerate(leaders)]
    return {
        "address": "s:29400", "ready": reason is None, "unhealthy_reason": reason, "leads": leads, "shards": shards
    }  # fmt: skip


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (a_server(None, leads=True), ""),
        (a_server("disk full", leads=True), ctl.servers.cannot_decide("s:29400", "disk full")),
        (a_server("no leader", None), ctl.servers.cannot_decide("s:29400", "no leader")),
        (a_server("shutting down", "other:29400"), ""),  # another server decides
    ],
    ids=["well", "stuck leader", "no leader", "follower that ends"],
)
def test_if_the_server_cannot_write_why_reports_only_that(server: dict[str, Any], says: str) -> None:
    assert state.unhealthy_reason([server]) == says
    run = told(check(("3", "join a; 10s")))
    found, without = explanation.why(run, SERVER._replace(unhealthy_reason=says)), explanation.why(run, SERVER)
    assert found.text == f"{says} {without.text}".strip()
    assert (found.next == without.next) is not says.startswith("rdzv-server")
