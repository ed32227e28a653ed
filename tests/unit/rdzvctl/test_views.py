"""Views of a run for people, made from a real server's status, in each state of a run."""

from typing import Any, cast, get_args

import pytest
from msgspec import json
from rdzv_protocol.words.run import last_restart_took, restarts_took, worker_failed

from rdzv_server.core.events import EXCLUDER, NodeCordoned
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.views import status_view
from rdzv_server.core.views.health import State
from rdzv_server.words import completion, health
from rdzvctl import output, views
from rdzvctl import words as ctl
from rdzvctl.answers import Fields, decoded
from tests.support.message_search import has_message
from tests.support.scenario import Scenario, running
from tests.support.stories import check

SERVER = "a:29400,b:29400"
ONE_OF_3 = completion.too_few(2, 1, 3, "a")
TOO_FEW = completion.too_few(2, 1, 3, "a", to_stop=completion.to_stop("b", 1), gone="c")
START = f"node-agent --endpoint {SERVER} --run-id run ... SCRIPT"
LOOPS = health.looping(3, "exit code 1", health.worker_at(0, "a"), tells_steps=False)
UNTOLD = views.untold("run")
"""What to do about a run whose workers report no progress."""
UNCORDON = "If node {0} is fit (cordoned by admin: its fan): rdzvctl uncordon {0}"
UNCORDON_ABSENT = (
    "If node {0} is fit (cordoned by admin: its fan), uncordon it and start its agent again: rdzvctl uncordon {0}"
)
LEFT = "Start the agent of node {} again (it left: {})."


def told(run: Scenario) -> Fields:
    """Return the run as a server reports it."""
    return cast(Fields, decoded(json.encode(status_view.view(run.run, run.now))))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (12.4, "12s"), (60, "1m"), (200, "3m20s"), (7_500, "2h5m"), (360_000, "4d4h"), (-3, "0s")],
)
def test_an_age_is_short(seconds: float | None, shown: str) -> None:
    assert views.age(seconds) == shown


@pytest.mark.parametrize(
    ("nodes", "happens", "says", "next_step"),
    [
        ("3", "join a; 10s", f"has been forming for 10s, in round 1: {ONE_OF_3}; gives up in 590 s.",
         "Start 2 more nodes: node-agent --endpoint a:29400,b:29400 --run-id run ... SCRIPT"),
        ("1:4", "join a b", f"{completion.awaits_more(4)}; starts in 5 s.", "Nothing: the round will start by itself."),
        ("3", "join a b c; lose c; join a; 2s", f"has been restarting for 2s, in round 2: {TOO_FEW}",
         "Check the lost nodes: c."),
        ("2 max_restarts=1", "join a b; fail a; join a", "b to stop", "Wait for b to stop its workers"),
        ("1:2", "join a b; 30s; lose b; 3s", "has been restarting for 3s", "Wait for a to stop its workers"),
        ("2", "join a b; 70s", f"Run run has been running for 1m10s: {completion.running(1, 2)}.", UNTOLD),
        ("2", "join a b; tell a highest_step=7; 7s", "Run run has been running for 7s", "Nothing: it runs."),
        ("2", "join a b; 60s; succeed a; 70s", "Run run has been running for 2m10s: rank 0 finished 1m10s ago; still "
         "running: rank 1 on node b.", "Nothing: it runs."),
        ("2", "join a b; succeed a; 300s", "Overdue for 5m: rank 0 finished; still running: rank 1 on node b. Run run "
         f"has been finishing for 5m: {completion.running(1, 2)}.", health.stacks("run")),
        ("1:2 scale_up=manual", "join a; 30s; join b", "Standing by: b.", "rdzvctl admit run"),
        ("1", "join a; 5s; succeed a; 9s", "Run run succeeded 9s ago, after 5s: all workers", "the run has ended"),
        ("1", "join a; 5s; fail a; 9s", "failed 9s ago, after 5s: worker rank 0 on node a failed: exit code 1; no "
         "restarts left", health.logs("run", 0)),
    ],
    ids=["forming", "last call", "node gone", "failed", "stopping", "untold", "running", "finishing",
         "finishing for long", "manual", "succeeded", "ended"],
)  # fmt: skip
def test_why_shows_a_runs_state_and_what_to_do(nodes: str, happens: str, says: str, next_step: str) -> None:
    run = told(check((nodes, happens)))
    found = views.why(run, SERVER)
    assert says in found.text
    assert any(next_step in step for step in found.next), found.next


@pytest.mark.parametrize(
    ("nodes", "kept_out", "next_steps"),
    [
        (2, "b", [UNCORDON.format("b"), f"Or start 1 more node: {START}"]),
        (2, "bc", [UNCORDON.format("b"), f"Or start 1 more node: {START}"]),
        (4, "b", [UNCORDON.format("b"), f"Start 2 more nodes: {START}"]),
        (9, "bcdefg", [*map(UNCORDON.format, "bcde"), f"Start 2 more nodes: {START}"]),
    ],
    ids=["one missing", "more than are missing", "fewer than are missing", "many"],
)
def test_why_says_which_cordoned_nodes_could_take_part(nodes: int, kept_out: str, next_steps: list[str]) -> None:
    run = check((str(nodes), "join a"))
    for node_id in kept_out:
        run.handle(NodeCordoned(node_id=node_id, by="admin", reason="its fan"))
        run.join(node_id)
    assert views.why(told(run), SERVER).next == next_steps


@pytest.mark.parametrize(
    ("nodes", "happens", "cordoned", "next_steps"),
    [
        ("2", "join a b; drain b; leave b reason=drained; join a", "b", [
            UNCORDON_ABSENT.format("b"), f"Or start 1 more node: {START}"]),
        ("2", "join a b; drain b; leave b reason=drained; join a", "", [
            "If node b is fit (it left: drained), start its agent again.", f"Or start 1 more node: {START}"]),
        ("2", "join a b; leave b reason=SIGINT; join a", "", [
            LEFT.format("b", "SIGINT"), f"Or start 1 more node: {START}"]),
        ("2", "join a b; leave b reason=SIGINT; join a", "b", [
            UNCORDON_ABSENT.format("b"), f"Or start 1 more node: {START}"]),
        ("2", "join a b; lose b; join a", "b", [UNCORDON_ABSENT.format("b"), f"Or start 1 more node: {START}"]),
        ("2", "join a b; lose b; join a", "", ["Check the lost nodes: b.", f"Start 1 more node: {START}"]),
        ("4", "join a b c d; lose b; leave c; leave d reason=SIGINT; join a", "", [
            "Check the lost nodes: b.", "Start the agents of nodes c, d again (they left: SIGINT, SIGTERM).",
            f"Start 1 more node: {START}"]),
        ("1:3", "join a b c; 60s; leave b; join a", "", [
            "Wait for c to stop its workers, for --shutdown-timeout at most."]),
    ],
    ids=["drained", "drained, and the cordons are unknown", "left by a signal", "left, and cordoned later",
         "lost, and cordoned later", "lost", "each of several", "not needed"],
)  # fmt: skip
def test_why_says_what_to_do_about_a_node_by_the_reason_why_it_is_gone(
    nodes: str, happens: str, cordoned: str, next_steps: list[str]
) -> None:
    run = told(check((nodes, happens)))
    assert views.why(run, SERVER, cordons=cordons_of(cordoned)).next == next_steps
    older = as_an_older_server(run)
    assert views.why(older, SERVER, cordons=cordons_of(cordoned)).next == next_steps
    if run["missing"]["more_nodes"]:
        (line, _) = views.troubles([run], SERVER, cordons=cordons_of(cordoned))
        assert line.endswith(f" Next: {next_steps[0]}")


def cordons_of(nodes: str) -> dict[str, Fields]:
    """Return cordons of the nodes, as a server reports them."""
    cordon = {"by": "admin", "reason": "its fan", "until": None, "drained": True, "excluded": False}
    return views.cordons([Fields(cordons=[Fields(cordon, node_id=node_id) for node_id in nodes])])


def test_why_says_which_absent_cordoned_nodes_could_fill_free_seats() -> None:
    run = check(("1:4", "join a b c; 60s; leave b; leave c; join a; 60s"))
    start = f"To run on all, start 3 more nodes: {START}"
    steps = [ON_ONE.format(4), UNCORDON_ABSENT.format("b"), start]
    assert views.why(told(run), SERVER, cordons=cordons_of("bx")).next == steps
    run.handle(NodeCordoned(node_id="b", by="admin", reason="its fan"))
    run.join("b2", node="b")
    steps = [ON_ONE.format(4), UNCORDON.format("b"), f"To run on all, start 2 more nodes: {START}"]
    assert views.why(told(run), SERVER, cordons=cordons_of("b")).next == steps


@pytest.mark.parametrize("program", ["rdzvctl --endpoint b:7", r"rdzvctl --context 'my '"])
def test_a_printed_command_repeats_the_flags_for_the_server(program: str) -> None:
    commands = [health.logs("run", 0), health.stacks("run"), health.drain("b"), UNTOLD, UNCORDON_ABSENT.format("b")]
    for text in commands:
        sentence, _, command = text.rpartition(": rdzvctl ")
        assert views.with_flags(text, program) == f"{sentence}: {program} {command}"
    more = ctl.runs.more_runs(3, "3 running")
    assert views.with_flags(more, program) == more.replace("rdzvctl", program)
    for text in (f"Start 1 more node: {START}", "Check the lost nodes: rdzvctl.", "of my-rdzvctl only"):
        assert views.with_flags(text, program) == text


@pytest.mark.parametrize(
    "story",
    [("1", "join a; fail a"), ("2", "join a b; 70s"), ("1:2 scale_up=manual", "join a; 30s; join b"),
     ("2 lease_s=10", "join a b; steps 140 a=1.0 b=3.0")],
    ids=["failed", "untold", "manual", "of the server"],
)  # fmt: skip
def test_every_command_of_why_repeats_the_flags_for_the_server(story: tuple[str, str]) -> None:
    run = told(check(story))
    plain, found = views.why(run, SERVER).next, views.why(run, SERVER, program="rdzvctl --context lab").next
    assert found == [step.replace("rdzvctl ", "rdzvctl --context lab ") for step in plain] != plain


ON_ONE = "Nothing has to be done: the run uses 1 of at most {0} nodes."
ADMIT = "Give the free seats to standby nodes: rdzvctl admit run"


@pytest.mark.parametrize(
    ("nodes", "standbys", "kept_out", "next_steps"),
    [
        ("1:2", "", "b", [ON_ONE.format(2), UNCORDON.format("b")]),
        ("1:4", "", "b", [ON_ONE.format(4), UNCORDON.format("b"), f"To run on all, start 2 more nodes: {START}"]),
        ("1:3", "", "", [ON_ONE.format(3), f"To run on all, start 2 more nodes: {START}"]),
        ("1:2 scale_up=manual", "c", "b", [ON_ONE.format(2), ADMIT]),
        ("1:3 scale_up=manual", "c", "b", [ON_ONE.format(3), ADMIT, UNCORDON.format("b")]),
        ("1:9", "", "bcdefg", [ON_ONE.format(9), *map(UNCORDON.format, "bcde"),
                               f"To run on all, start 2 more nodes: {START}"]),
        ("1", "c", "b", [UNTOLD]),
        ("1:4 legal_sizes=1,2,4 scale_up=manual", "cd", "", [
            ON_ONE.format(4), ADMIT, f"To run on all, start 1 more node: {START}"]),
        ("1:8 legal_sizes=1,4,8 scale_up=manual", "c", "b", [
            ON_ONE.format(8), UNCORDON.format("b"), f"To run on 4, start 1 more node: {START}",
            f"To run on all, start 5 more nodes: {START}"]),
        ("1:8 legal_sizes=1,4,8 scale_up=manual", "c", "", [
            ON_ONE.format(8), f"To run on 4, start 2 more nodes: {START}",
            f"To run on all, start 6 more nodes: {START}"]),
    ],
    ids=["cordoned alone", "cordoned and new", "new alone", "a standby is enough", "standby and cordoned", "many",
         "full", "standbys for a legal size", "one short of a legal size", "too few for a legal size"],
)  # fmt: skip
def test_why_says_how_free_seats_of_a_running_round_could_be_filled(
    nodes: str, standbys: str, kept_out: str, next_steps: list[str]
) -> None:
    run = check((nodes, "join a; 30s"))
    for node_id in kept_out:
        run.handle(NodeCordoned(node_id=node_id, by="admin", reason="its fan"))
        run.join(node_id)
    run.join(*standbys)
    assert views.why(told(run), SERVER).next == next_steps


def test_a_node_excluded_by_the_server_is_shown_as_excluded() -> None:
    run = check(("2", "join a"))
    run.handle(NodeCordoned(node_id="b", by=EXCLUDER, reason="blamed 3 times within 1 d"))
    run.join("b")
    step = "If node b is fit (excluded: blamed 3 times within 1 d): rdzvctl uncordon b"
    assert step in views.why(told(run), SERVER).next
    assert [row[:2] for row in views.nodes_table(told(run)).rows] == [("a", "waiting"), ("b", "excluded")]


def test_why_says_which_nodes_run_that_get_no_seat_in_a_new_round() -> None:
    run = running("2", "a", "b")
    run.handle(NodeCordoned(node_id="b", by="admin", reason="its fan"))
    assert (
        "Node b is running, but gets no seat in a new round: cordoned by admin: its fan."
        in views.why(told(run), SERVER).text
    )


def test_why_names_the_first_failure_with_its_evidence_and_hint() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b", error="ValueError: boom", traceback=("Traceback:", "  line\x1b[2J 3"), hint="Mend the data")
    run.join("a", "b")
    run.fails("a")
    found = views.why(told(run), SERVER)
    assert (
        "First failure, 0s ago in round 1: worker rank 1 on node b failed: exit code 1: ValueError: boom." in found.text
    )
    assert "Mend the data." in found.text
    assert "2 rounds have failed." in found.text, "the run's reason is the last failure"
    assert "It has restarted 1 time: 1 by worker failure; 1 of 1 charged." in found.text
    assert found.evidence == ["Traceback:", "  line [2J 3"]


def test_why_names_the_last_failure_and_the_number_of_failed_rounds() -> None:
    run = check(("2 max_restarts=9", "join a b; fail a; rejoin; fail b; rejoin"))
    last = "the last failure, 0s ago in round 2: worker rank 1 on node b failed: exit code 1"
    assert f" 2 rounds have failed; {last}." in views.why(told(run), SERVER).text


def test_why_says_what_a_restart_is_for() -> None:
    run = told(check(("2", "join a b; lose b")))
    assert "Reason of this restart: node b was lost." in views.why(run, SERVER, "node b was lost").text


def test_an_event_is_a_line_in_the_words_of_the_log() -> None:
    event = Fields(number=3, run_id="r", attempt=1, round=2, kind="round_opened", reason="node b\x1b was lost")
    assert views.event_line(event) == "- #3 round 2: opened: node b  was lost"
    newer = Fields(event | {"kind": "of_next_year", "attempt": 2, "by": "admin\n", "at": 1_750_000_000.0})
    line = views.event_line(newer)
    assert line.endswith(" #3 attempt 2, round 2: of_next_year: node b  was lost (by admin )") and line.isprintable()


def test_why_shows_once_what_ended_the_run() -> None:
    found = views.why(told(check(("1", "join a; fail a"))), SERVER)
    assert found.text.count("worker rank 0 on node a failed") == 1


def test_why_names_no_rank_of_a_hang_that_singles_none_out() -> None:
    run = told(check(("2", "join a b; suspect a 0; suspect b 1; judge")))
    found = views.why(run, SERVER)
    assert worker_failed("", 0, hang_words.hang(""), "", singled_out=False) in found.text and "rank" not in found.text
    assert not [step for step in found.next if "rdzvctl logs" in step]
    del run["first_failure"]["singled_out"]  # like an older server, which always names one
    assert f"worker rank 0 on node a failed: {hang_words.hang('')}" in views.why(run, SERVER).text


def test_why_says_that_a_limit_may_be_too_short_and_what_to_do() -> None:
    hang = "suspect a 0 limit_s=30; judge"
    run = told(check(("1 max_restarts=9", f"join a; {hang}; join a; {hang}; join a; {hang}; join a; {hang}")))
    found = views.why(run, SERVER)
    assert has_message(found.text, hang_words.limit_doubted, in_row=3, setting="--progress-timeout", limit_s=30.0)
    assert found.text.startswith("Hung for 2s: ") and found.text.count("may be too short") == 1
    assert found.next == [health.stacks("run"), health.restart("run"), health.RAISE_LIMIT]


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
    text = views.why(told(check(("1 max_restarts=3", f"join a; {happens}"))), SERVER).text
    assert f" T{says[1:]}." in text


def test_why_shows_no_parts_of_a_restart_that_has_not_started() -> None:
    beginning = last_restart_took(2, {}).partition(",")[0]
    assert beginning[1:] not in views.why(told(check(("1 max_restarts=3", "join a; 20s; fail a; 5s"))), SERVER).text


def test_why_names_the_silent_nodes() -> None:
    run = running("2", *"ab", disconnect_grace_s=5)
    run.disconnects("b")
    run.passes(2)
    says = "Node b is disconnected, last heard 2s ago; unless it returns, it is lost within 3s."
    assert says in views.why(told(run), SERVER).text


NEWER = ("can_be_forgotten", "present", "standbys", "waits_for_agents", "workers_round")


def as_an_older_server(run: Fields) -> Fields:
    """Return the run without what its reader had to derive."""
    nodes = [
        Fields({name: node[name] for name in node if name not in ("lost_in_s", "remarks")}) for node in run["nodes"]
    ]
    missing = run["missing"] and Fields({name: run["missing"][name] for name in ("more_nodes", "stopping", "gone")})
    return Fields({name: run[name] for name in run if name not in NEWER} | {"nodes": nodes, "missing": missing})


@pytest.mark.parametrize(
    "story",
    [
        ("3", "join a; 10s"), ("2:3", "join a b c; lose c; join a; 2s"), ("1:2", "join a b; 30s; lose b; 3s"),
        ("2", "join a b; 70s"), ("1:2 scale_up=manual", "join a; 30s; join b"), ("1", "join a; 5s; fail a; 9s"),
        ("2 lease_s=10", "join a b; 42s"), ("2 max_restarts=1", "join a b; fail a; join a"),
        ("1:3", "join a b c; drain b"), ("2", "join a b; 60s; succeed a; 70s"), ("2", "join a b; succeed a b"),
    ],
)  # fmt: skip
def test_an_older_server_is_understood_as_well(story: tuple[str, str]) -> None:
    run = told(check(story))
    older = as_an_older_server(run)
    assert {*NEWER} <= run.keys() and older.keys().isdisjoint(NEWER)
    for name in NEWER:
        assert older[name] == run[name], name
    assert views.why(older, SERVER) == views.why(run, SERVER)
    assert (views.runs_table([older]), views.nodes_table(older)) == (views.runs_table([run]), views.nodes_table(run))
    assert views.worker(older, 0) == views.worker(run, 0)


def test_a_node_that_is_gone_is_lost_within_the_whole_grace_for_an_older_server() -> None:
    run = running("2", *"ab", disconnect_grace_s=5)
    run.disconnects("b")
    run.passes(2)
    assert "it is lost within 5s." in views.why(as_an_older_server(told(run)), SERVER).text


def test_no_node_of_several_that_vanish_together_is_announced_as_lost_before_its_lease_ends() -> None:
    run = running("3", *"abc", lease_s=20, disconnect_grace_s=5)
    run.disconnects("b")
    run.disconnects("c")
    assert views.why(told(run), SERVER).text.count("it is lost within 20s.") == 2


def test_the_files_of_a_worker_belong_to_its_round_even_if_the_run_has_another_round() -> None:
    run = Scenario("2", max_restarts=1)
    run.join("a", "b", log_dir="logs")
    run.fails("a")
    run.run.set_apart = "an error"
    place = views.worker(told(run), 0)
    assert place and place.path == "logs/attempt_0/0"


def test_why_says_at_once_that_no_agent_is_connected_and_promises_no_loss() -> None:
    run = running("2", *"ab", disconnect_grace_s=5)
    run.disconnects("a")
    run.disconnects("b")
    run.passes(2)
    found = views.why(told(run), SERVER)
    assert found.text.startswith(f"Silent for 2s: {health.none_connected('ab', 0)}.") and "lost" not in found.text
    assert found.next == [health.LOOK_AT_NODES, health.START_AGENTS, health.stop("run")]
    assert not any("lost within" in row[-1] for row in views.nodes_table(told(run)).rows)


def test_why_reports_silent_agents_since_when_and_what_to_do() -> None:
    run = told(check(("2 lease_s=10", "join a b; 42s")))
    found = views.why(run, SERVER)
    assert found.text == (
        f"Silent for 42s: {completion.NO_AGENT_HEARD}. Run run has been running for 42s: {completion.running(1, 2)}."
    )
    assert found.next == [health.LOOK_AT_NODES, health.START_AGENTS, health.stop("run")]
    assert not any("lost within" in row[-1] for row in views.nodes_table(run).rows)


def test_why_names_nodes_between_which_the_network_test_has_failed() -> None:
    run = Scenario("2")
    run.join("a", "b", queries=("pair_test",), secret="s")
    run.tests_network(bad="b")
    found = views.why(told(run), SERVER)
    assert found.text.lower().count(health.unreachable("a", "b", "0.3 MB/s, fewer than 10", 0).lower()) == 1
    assert found.next == [health.MEND_LINK, health.restart_tests_network("run")]


def test_a_stop_by_an_operator_is_no_failure_to_mend() -> None:
    (step,) = views.why(told(check(("2 max_restarts=1", "join a b; fail a; join a b; stop"))), SERVER).next
    assert step.startswith("Nothing: an operator stopped the run.")


def test_runs_that_continue_come_first() -> None:
    runs = [told(check(("1", happens))) for happens in ("join a; succeed a", "join a; 5s", "join a; fail a")]
    assert [row[1] for row in views.runs_table(runs).rows] == ["running", "succeeded", "failed"]


def test_a_run_is_one_row() -> None:
    run = running("2:3", *"abc", max_restarts=3)
    run.join("spare")
    run.is_lost("c")
    run.join("a", "b")
    (row,) = views.runs_table([told(run)]).rows
    assert row[5:7] == ("3 of 2:3", "0/3+1")


LOOP = "fail a; join a b; fail a; join a b; fail a; join a b"


def test_troubled_runs_come_first_and_their_row_says_what_is_wrong() -> None:
    hung, well = check(("1 on_hang=report", "join a; 60s; suspect a 0; judge; 60s")), check(("1", "join a; 5s"))
    looping, small = check(("2 max_restarts=9", f"join a b; {LOOP}")), check(("1:2", "join a; 10s"))
    rows = views.runs_table([told(run) for run in (small, well, looping, hung)]).rows
    assert [row[2] for row in rows] == ["hung", "looping", "ok", "below size"], "the worst first"
    assert rows[0][-1].startswith("for 1m2s: rank 0 on node a may hang: ")
    assert get_args(State) == views.HEALTH
    assert output.STYLES["hung"] == output.STYLES["looping"] == "red"


def test_why_begins_with_what_is_wrong_and_what_to_do_about_that() -> None:
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; 60s")))
    found = views.why(run, SERVER)
    assert found.text.startswith(f"Looping for 1m: {LOOPS}. Run run has ")
    assert found.next == run["health"]["next"] and found.next[0] == health.logs("run", 0)
    assert views.one_line(run).endswith(f"; looping for 1m: {run['health']['sentence']}")
    del run["health"]  # like an older server
    assert views.why(run, SERVER).next == [UNTOLD] and views.runs_table([run]).rows[0][2] == "-"


def test_why_of_a_slow_run_says_once_which_node_is_slow() -> None:
    found = views.why(told(check(("2 lease_s=10", "join a b; steps 140 a=1.0 b=3.0"))), SERVER)
    assert found.text.startswith("Slow for ") and found.text.lower().count("node b is slow") == 1
    assert found.next == [health.drain("b")]


def test_a_run_that_restarts_and_loops_lacks_nodes_besides() -> None:
    found = views.why(told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b"))), SERVER)
    assert found.text.startswith("Looping for ")
    assert found.next[-2:] == [LEFT.format("b", "SIGTERM"), f"Or start 1 more node: {START}"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (views.Wanted("t*"), ["train", "tiny"]),
        (views.Wanted(phase="failed"), ["broken"]),
        (views.Wanted(health="slow"), ["train"]),
        (views.Wanted(health="trouble"), ["train"]),
        (views.Wanted(health="ok"), ["tiny"]),
        (views.Wanted(node="[bc]"), ["train"]),
        (views.Wanted("t*", phase="failed"), []),
    ],
)
def test_runs_are_chosen_by_id_phase_health_and_node(wanted: views.Wanted, found: list[str]) -> None:
    train, tiny, broken = (told(running(str(len(names)), *names)) for names in ("abc", "a", "a"))
    train |= {"run_id": "train", "health": {"state": "slow", "others": ["below_size"], "is_trouble": True}}
    broken |= {"run_id": "broken", "phase": "failed", "health": None, "nodes": []}
    tiny |= {"run_id": "tiny"}
    assert [run["run_id"] for run in (train, tiny, broken) if wanted.covers(decoded(json.encode(run)))] == found


def test_a_screen_shows_troubled_and_failed_runs_first() -> None:
    well, hung, failed, stopped = (told(running("1", "a")) for _ in range(4))
    hung |= {"run_id": "hung", "health": Fields(state="hung", is_trouble=True, others=[])}
    failed |= {"run_id": "failed", "phase": "failed", "health": None}
    stopped |= {"run_id": "stopped", "phase": "failed", "health": None, "is_stopped": True}
    assert [run["run_id"] for run in views.first_to_see([well, stopped, failed, hung])] == [
        "hung", "failed", "run", "stopped",
    ]  # fmt: skip


def test_the_number_of_lost_nodes_is_shown_if_the_run_does_not_remember_all() -> None:
    names = [f"n{number:03}" for number in range(200)]
    run = running("200", *names)
    for name in names[:199]:
        run.is_lost(name)
    shown = told(run)
    assert any("n135, n136, n137, n138 and 195 more" in step for step in views.why(shown, SERVER).next)
    assert views.nodes_table(shown).rows[-1][0] == "and 135 more nodes"


def test_all_runs_are_asked_which_of_them_need_a_person() -> None:
    stories = [
        ("1", "join a"), ("2 max_restarts=9", f"join a b; {LOOP}; 60s"), ("3", "join a; 10s"), ("1:2", "join a; 9s"),
        ("1", "join a; succeed a"), ("1", "join a; fail a"),
    ]  # fmt: skip
    runs = [told(check(story)) for story in stories]
    for number, run in enumerate(runs):
        run["run_id"] = f"r{number}"
    loops = LOOPS
    assert views.troubles(runs, SERVER) == [
        f"r1: looping for 1m: {loops}. Next: {health.logs('run', 0)}",
        f"r2: forming for 10s: {runs[2]['reason']}. Next: Start 2 more nodes: {START.replace('run ', 'r2 ')}",
        "2 runs need nothing; 1 succeeded; 1 failed.",
    ]
    assert views.troubles(runs[:1], SERVER) == ["No run needs anything."]


def test_nodes_are_listed_by_rank_then_standbys_then_gone_nodes() -> None:
    run = running("2:3", *"abc")
    run.disconnects("b")
    run.join("spare")
    rows = {row[0]: row for row in views.nodes_table(told(run)).rows}
    assert [*rows] == ["a", "b", "c", "spare"]
    assert rows["b"][2:4] == ("1", "1") and "disconnected: lost within" in rows["b"][-1]
    run = running("2:3", *"abc")  # if no other node vanishes with it
    run.join("spare")
    run.is_lost("c")
    rows = {row[0]: row for row in views.nodes_table(told(run)).rows}
    assert rows["c"][1:3] == ("gone", "2")


def test_an_excluded_node_reports_the_reason_and_its_leftover_workers() -> None:
    run = told(running("2", *"ab"))
    cordon = Fields(node_id="a", by="admin 10.0.0.1", reason="ECC errors", until=None, drained=True)
    run["nodes"][0] |= {"state": "draining", "cordon": cordon, "drain_left_s": 90.0}
    (row, _) = views.nodes_table(run).rows
    assert row[1] == "draining"
    assert row[-1] == "its workers have 1m30s left; cordoned by admin 10.0.0.1: ECC errors"


def test_a_slow_node_is_not_named_twice_for_any_name() -> None:
    run = told(running("2", "a", "b"))
    sentence = policy_words.slow("who is it", True, 1.3, 2.0, 0.65)
    run["nodes"][0] |= {"node_id": "who is it", "remarks": {"slow": sentence}}
    (row, _) = views.nodes_table(run).rows
    assert row[0] == "who is it" and row[-1].startswith("slow: ") and sentence.endswith(row[-1])


def test_servers_and_the_nodes_that_they_keep_out() -> None:
    cordon = Fields(node_id="n\x1b7", by="admin 10.0.0.1", reason="", until=None, drained=False)
    server = {"address": "a:1", "version": "1", "ready": True, "unhealthy_reason": None, "leads": True, "leader": None}
    server |= {"shards": [], "uptime_s": 61.0, "cordons": [cordon]}
    lines = ["rdzv-server 1 at a:1: ready; up 1m1s", "node n 7: cordoned by admin 10.0.0.1"]
    assert views.server_lines([server]) == lines


def test_status_shows_what_all_restarts_took_with_the_steps_that_they_kept_and_repeated() -> None:
    run = told(check(("1 max_restarts=3", f"join a; 20s; fail a ago_s=0.5; join a; {BACK}")))
    run["restart_costs"] |= {"kept_steps": 15, "repeated_steps": 1}
    assert views.restarts_line(run) == f"{restarts_took(1, 1, run['restart_costs']['cost'], 15, 1)}."
    for name in ("kept_steps", "repeated_steps"):
        del run["restart_costs"][name]  # as an older server
    assert views.restarts_line(run) == f"{restarts_took(1, 1, run['restart_costs']['cost'])}."


def test_a_run_says_what_its_time_went_into() -> None:
    run = {"time_s": {"running": 7_500.0, "forming": 12.0, "restarting": 0.0, "waiting": 0.0, "restarts": {}}}
    assert views.time_line(run) == "Its time: 2h5m running, 12s forming."
    run["time_s"] |= {"training": 7_200.0, "checkpointing": 0.0, "detecting": 60.0, "lost": 240.0, "ettr": 0.9585}
    assert views.time_line(run) == "Its time: 2h training, 1m detecting, 4m lost, 12s forming. ETTR 0.959."
    run["time_s"] |= {"training": None, "ettr": None, "detecting": 600.0, "lost": 0.0}
    assert views.time_line(run) == "Its time: 1h55m running, 10m detecting, 12s forming."
    assert views.time_line(Fields()) == ""


HOSTILE = "r\x1b[2J\x07\N{RIGHT-TO-LEFT OVERRIDE}[red]x[/]\n"


def test_no_text_of_a_run_moves_the_cursor() -> None:
    run = told(check(("2 max_restarts=1", "join a b; fail a")))
    everything = {**run, "run_id": HOSTILE, "reason": HOSTILE}
    everything["nodes"] = [{**node, "node_id": HOSTILE, "addr": HOSTILE} for node in run["nodes"]]
    everything["missing"] = Fields(more_nodes=1, stopping=[HOSTILE], gone=[HOSTILE])
    tables = (views.runs_table([everything]), views.nodes_table(everything), views.restarts_table(everything))
    for table in tables:
        assert all(cell.isprintable() for row in table.rows for cell in row)
        assert all(line.isprintable() for line in output.aligned(table).splitlines())
    found = views.why(everything, SERVER)
    assert found.text.isprintable() and all(step.isprintable() for step in found.next)
    assert views.one_line(everything).isprintable()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_fits_into_its_terminal(width: int) -> None:
    pytest.importorskip("rich")
    run = told(check(("3", "join a; 10s")))
    drawn = output.by_rich(views.runs_table([{**run, "run_id": "[bold]x[/] a-long-run-id"}]), width, False)
    assert all(len(line) <= width for line in drawn.splitlines())
    if width == 200:
        assert "[bold]x[/] a-long-run-id" in drawn, "markup of an id is text"


def test_columns_of_a_pipe_are_aligned() -> None:
    table = views.Table(("A", "LONG", "LAST"), [("aaaa", "b", "c d"), ("a", "bbbbb", "")])
    assert output.aligned(table).splitlines() == ["A     LONG   LAST", "aaaa  b      c d", "a     bbbbb"]


def test_a_run_in_which_nothing_happens_stays_the_same() -> None:
    run = check(("3", "join a; 5s"))
    before = views.without_times(told(run))
    run.passes(3)
    assert views.without_times(told(run)) == before
    run.join("b")
    assert views.without_times(told(run)) != before


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
        (a_server("disk full", leads=True), "rdzv-server at s:29400 cannot decide anything now: disk full."),
        (a_server("no leader", None), "rdzv-server at s:29400 cannot decide anything now: no leader."),
        (a_server("shutting down", "other:29400"), ""),  # another server decides
    ],
    ids=["well", "stuck leader", "no leader", "follower that ends"],
)
def test_if_the_server_cannot_write_why_reports_that_first_and_gives_no_other_advice(
    server: dict[str, Any], says: str
) -> None:
    assert views.unhealthy_reason([server]) == says
    run = told(check(("3", "join a; 10s")))
    found, without = views.why(run, SERVER, unhealthy_reason=says), views.why(run, SERVER)
    assert found.text == f"{says} {without.text}".strip()
    assert (found.next == without.next) is not says.startswith("rdzv-server")
