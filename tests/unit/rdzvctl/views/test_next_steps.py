"""Next steps of a person, in each state of a run that a real server reports."""

import pytest
from rdzv_protocol.words.run import correct_agent, read_console, read_output

from rdzv_server.core.events import EXCLUDER, NodeCordoned
from rdzv_server.core.kernel.admission import note_refused
from rdzv_server.core.policies import words as policy_words
from rdzv_server.words import health
from rdzvctl import words as ctl
from rdzvctl.views import explanation, next_steps, state, tables
from tests.support.scenario import running
from tests.support.stories import check
from tests.unit.rdzvctl.views.reported import (
    CORDON,
    LOOP,
    SERVER,
    START,
    UNTOLD,
    cordons_of,
    told,
    uncordon,
)


def uncordon_absent(node_id: str) -> str:
    return ctl.steps.uncordon_absent(node_id, CORDON)


def start(more: int) -> str:
    return ctl.steps.start_more(more, START)


def or_start(more: int) -> str:
    return ctl.steps.or_start_more(more, START)


def to_run_on_all(more: int) -> str:
    return ctl.steps.to_run_on_all(more, START)


@pytest.mark.parametrize(
    ("nodes", "kept_out", "steps"),
    [
        (2, "b", [uncordon("b"), or_start(1)]),
        (2, "bc", [uncordon("b"), or_start(1)]),
        (4, "b", [uncordon("b"), start(2)]),
        (9, "bcdefg", [*map(uncordon, "bcde"), start(2)]),
    ],
    ids=["one missing", "more than are missing", "fewer than are missing", "many"],
)
def test_why_says_which_cordoned_nodes_could_take_part(nodes: int, kept_out: str, steps: list[str]) -> None:
    run = check((str(nodes), "join a"))
    for node_id in kept_out:
        run.handle(NodeCordoned(node_id=node_id, by="admin", reason="its fan"))
        run.join(node_id)
    assert explanation.why(told(run), SERVER).next == steps


@pytest.mark.parametrize(("nodes", "then"), [("2", or_start(1)), ("3", start(1))])
def test_why_says_which_refused_agent_could_be_the_missing_one(nodes: str, then: str) -> None:
    run = check((nodes, "join a"))
    note_refused(run.run, "b", "--nnodes 4 instead of 2")
    assert explanation.why(told(run), SERVER).next == [correct_agent("b", "--nnodes 4 instead of 2"), then]


@pytest.mark.parametrize(
    ("nodes", "happens", "cordoned", "steps"),
    [
        ("2", "join a b; drain b; leave b reason=drained; join a", "b", [
            uncordon_absent("b"), or_start(1)]),
        ("2", "join a b; drain b; leave b reason=drained; join a", "", [
            ctl.steps.start_if_fit("b", "drained"), or_start(1)]),
        ("2", "join a b; leave b reason=SIGINT; join a", "", [
            ctl.steps.start_agent_again("b", "SIGINT"), or_start(1)]),
        ("2", "join a b; leave b reason=SIGINT; join a", "b", [
            uncordon_absent("b"), or_start(1)]),
        ("2", "join a b; lose b; join a", "b", [uncordon_absent("b"), or_start(1)]),
        ("2", "join a b; lose b; join a", "", [ctl.steps.check_lost("b"), start(1)]),
        ("4", "join a b c d; lose b; leave c; leave d reason=SIGINT; join a", "", [
            ctl.steps.check_lost("b"), ctl.steps.start_agents_again("c, d", "SIGINT, SIGTERM"),
            start(1)]),
        ("1:3", "join a b c; 60s; leave b; join a", "", [
            ctl.steps.wait_for("c", 1)]),
    ],
    ids=["drained", "drained, and the cordons are unknown", "left by a signal", "left, and cordoned later",
         "lost, and cordoned later", "lost", "each of several", "not needed"],
)  # fmt: skip
def test_why_says_what_to_do_about_a_node_by_the_reason_why_it_is_gone(
    nodes: str, happens: str, cordoned: str, steps: list[str]
) -> None:
    run = told(check((nodes, happens)))
    assert explanation.why(run, SERVER._replace(cordons=cordons_of(cordoned))).next == steps
    if run["missing"]["more_nodes"]:
        (line,) = explanation.troubles([run], SERVER._replace(cordons=cordons_of(cordoned)))
        assert line.endswith(f" Next: {steps[0]}")


def test_why_says_which_absent_cordoned_nodes_could_fill_free_seats() -> None:
    run = check(("1:4", "join a b c; 60s; leave b; leave c; join a; 60s"))
    start = to_run_on_all(3)
    steps = [on_one(4), uncordon_absent("b"), start]
    assert explanation.why(told(run), SERVER._replace(cordons=cordons_of("bx"))).next == steps
    run.handle(NodeCordoned(node_id="b", by="admin", reason="its fan"))
    run.join("b2", node="b")
    steps = [on_one(4), uncordon("b"), to_run_on_all(2)]
    assert explanation.why(told(run), SERVER._replace(cordons=cordons_of("b"))).next == steps


@pytest.mark.parametrize("program", ["rdzvctl --endpoint b:7", r"rdzvctl --context 'my '"])
def test_a_printed_command_repeats_the_flags_for_the_server(program: str) -> None:
    commands = [read_output("run", 0), health.stacks("run"), policy_words.drain("b"), UNTOLD, uncordon_absent("b")]
    for text in commands:
        sentence, _, command = text.rpartition(": rdzvctl ")
        assert next_steps.with_flags(text, program) == f"{sentence}: {program} {command}"
    more = ctl.runs.more_runs(3, "3 running")
    assert next_steps.with_flags(more, program) == more.replace("rdzvctl", program)
    for text in (start(1), "Check the lost nodes: rdzvctl.", "of my-rdzvctl only"):
        assert next_steps.with_flags(text, program) == text


@pytest.mark.parametrize(
    "story",
    [("1", "join a log_dir=logs; fail a"), ("2", "join a b; 70s"), ("1:2 scale_up=manual", "join a; 30s; join b"),
     ("2 lease_s=10", "join a b; steps 140 a=1.0 b=3.0")],
    ids=["failed", "untold", "manual", "of the server"],
)  # fmt: skip
def test_every_command_of_why_repeats_the_flags_for_the_server(story: tuple[str, str]) -> None:
    run = told(check(story))
    plain = explanation.why(run, SERVER).next
    found = explanation.why(run, SERVER._replace(program="rdzvctl --context lab")).next
    assert found == [step.replace("rdzvctl ", "rdzvctl --context lab ") for step in plain] != plain


ADMIT = ctl.steps.admit("run")


def on_one(of: int) -> str:
    return ctl.steps.uses(1, of)


@pytest.mark.parametrize(
    ("nodes", "standbys", "kept_out", "steps"),
    [
        ("1:2", "", "b", [on_one(2), uncordon("b")]),
        ("1:4", "", "b", [on_one(4), uncordon("b"), to_run_on_all(2)]),
        ("1:3", "", "", [on_one(3), to_run_on_all(2)]),
        ("1:2 scale_up=manual", "c", "b", [on_one(2), ADMIT]),
        ("1:3 scale_up=manual", "c", "b", [on_one(3), ADMIT, uncordon("b")]),
        ("1:9", "", "bcdefg", [on_one(9), *map(uncordon, "bcde"),
                               to_run_on_all(2)]),
        ("1", "c", "b", [UNTOLD]),
        ("1:4 legal_sizes=1,2,4 scale_up=manual", "cd", "", [
            on_one(4), ADMIT, to_run_on_all(1)]),
        ("1:8 legal_sizes=1,4,8 scale_up=manual", "c", "b", [
            on_one(8), uncordon("b"), ctl.steps.to_run_on(4, 1, START),
            to_run_on_all(5)]),
        ("1:8 legal_sizes=1,4,8 scale_up=manual", "c", "", [
            on_one(8), ctl.steps.to_run_on(4, 2, START),
            to_run_on_all(6)]),
    ],
    ids=["cordoned alone", "cordoned and new", "new alone", "a standby is enough", "standby and cordoned", "many",
         "full", "standbys for a legal size", "one short of a legal size", "too few for a legal size"],
)  # fmt: skip
def test_why_says_how_free_seats_of_a_running_round_could_be_filled(
    nodes: str, standbys: str, kept_out: str, steps: list[str]
) -> None:
    run = check((nodes, "join a; 30s"))
    for node_id in kept_out:
        run.handle(NodeCordoned(node_id=node_id, by="admin", reason="its fan"))
        run.join(node_id)
    run.join(*standbys)
    assert explanation.why(told(run), SERVER).next == steps


def test_a_node_excluded_by_the_server_is_shown_as_excluded() -> None:
    run = check(("2", "join a"))
    run.handle(NodeCordoned(node_id="b", by=EXCLUDER, reason="blamed 3 times within 1 d"))
    run.join("b")
    step = ctl.steps.uncordon("b", ctl.servers.cordon("", "", "blamed 3 times within 1 d", excluded=True))
    assert step in explanation.why(told(run), SERVER).next
    assert [row[:2] for row in tables.nodes_table(told(run)).rows] == [("a", "waiting"), ("b", "excluded")]


def test_a_stop_by_an_operator_is_not_shown_as_a_failure() -> None:
    run = told(check(("2 max_restarts=1", "join a b; fail a; join a b; stop")))
    assert explanation.why(run, SERVER).next == [ctl.steps.STOPPED]


def test_a_node_that_is_excluded_is_to_be_uncordoned_before_a_new_attempt() -> None:
    run = told(check(("1", "join a; fail a")))
    steps = explanation.why(run, SERVER._replace(cordons=cordons_of("ab"))).next
    assert steps == [read_console("a"), ctl.steps.uncordon_absent("a", CORDON), ctl.steps.START_AGAIN]


def test_a_run_that_restarts_and_loops_lacks_nodes_besides() -> None:
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b")))
    found = explanation.why(run, SERVER)
    assert found.text.startswith("Looping for ")
    first = [ctl.steps.wait_for("a", 1), ctl.steps.start_agent_again("b", "SIGTERM"), or_start(1)]
    assert found.next == first + run["health"]["next"], "until it has another node, it stands still"
    (line,) = explanation.troubles([run], SERVER)
    assert line.startswith("run: restarting for 0s: ") and "; looping for 0s: " in line
    (row,) = tables.runs_table([run]).rows
    assert row[-1] == f"{run['reason']}; {state.trouble(run)}"


def test_a_run_that_lacks_nodes_says_once_which_ones_it_waits_for() -> None:
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b; join a; 60s")))
    lack, gives_up = run["health"]["sentence"], run["reason"].rpartition("; ")[2]
    assert run["health"]["state"] == "lacks_nodes" and run["reason"] == f"{lack}; {gives_up}"
    found = explanation.why(run, SERVER)
    assert found.text.startswith("Lacks nodes for ") and found.text.lower().count(lack) == 1 and gives_up in found.text
    of_loop = run["health"]["next_of"]["looping"]
    assert found.next == [ctl.steps.start_agent_again("b", "SIGTERM"), or_start(1), *of_loop] and of_loop
    assert set(of_loop) < set(run["health"]["next"])
    (line,) = explanation.troubles([run], SERVER)
    assert line.startswith("run: lacks nodes for 1m: ") and line.count(lack) == 1
    (row,) = tables.runs_table([run]).rows
    assert row[2] == "lacks nodes" and row[-1] == state.trouble(run).removeprefix("lacks nodes ")
    assert row[-1].endswith("; also looping") and state.Wanted(health="trouble").covers(run)


def test_an_older_server_does_not_say_which_steps_are_about_missing_nodes() -> None:
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b; join a; 60s")))
    del run["health"]["next_of"]
    assert explanation.why(run, SERVER).next == [ctl.steps.start_agent_again("b", "SIGTERM"), or_start(1)]


def test_the_output_to_read_is_that_of_the_worker_that_ended_the_run() -> None:
    """The first failure of the run may be of another rank, and long ago."""
    run = told(check(("2 max_restarts=1", "join a b; fail a; join a b; fail b")))
    assert run["first_failure"]["rank"] != run["end_failure"]["rank"]
    assert explanation.why(run, SERVER).next == [read_console("b"), ctl.steps.START_AGAIN]


def test_why_says_to_read_a_log_only_if_the_failed_workers_node_has_files() -> None:
    run = told(check(("2", "join a log_dir=logs; join b; fail b")))
    assert explanation.why(run, SERVER).next == [read_console("b"), ctl.steps.START_AGAIN]
    run["nodes"] = run["nodes"][:1]  # the node of the failure is gone
    assert explanation.why(run, SERVER).next == [read_output("run", 1), ctl.steps.START_AGAIN]
    run = told(check(("2", "join a log_dir=logs; join b; fail a")))
    assert explanation.why(run, SERVER).next == [read_output("run", 0), ctl.steps.START_AGAIN]


def test_the_number_of_lost_nodes_is_shown_if_the_run_does_not_remember_all() -> None:
    names = [f"n{number:03}" for number in range(200)]
    run = running("200", *names)
    for name in names[:199]:
        run.is_lost(name)
    shown = told(run)
    lost = ctl.steps.check_lost(ctl.nodes.listed(["n135", "n136", "n137", "n138"], 195))
    assert lost in explanation.why(shown, SERVER).next
    assert tables.nodes_table(shown).rows[-1][0] == ctl.nodes.more_gone(135)
