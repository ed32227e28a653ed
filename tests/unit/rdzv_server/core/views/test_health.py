"""Health of a run: each state begins with its reason, says what to do, and ends with its reason."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from rdzv_protocol.states import HEALTH
from rdzv_protocol.text import ranks
from rdzv_protocol.words.run import correct_agent, read_console, read_output

from rdzv_server.core.effects import Record
from rdzv_server.core.events import NodeCordoned
from rdzv_server.core.kernel.admission import note_refused
from rdzv_server.core.kernel.failed_rounds import steady_s
from rdzv_server.core.kernel.finishing import WARNED_AFTER_S
from rdzv_server.core.kernel.policy import Finding
from rdzv_server.core.kernel.progress import ONCE_STANDSTILL_S, UNKNOWN_STANDSTILL_S
from rdzv_server.core.kernel.run import Undecided
from rdzv_server.core.kernel.silent_runs import MOST_S
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.policies.hangs.hang_policy import SETTLE_S, Hangs
from rdzv_server.core.policies.network_check import words as network_words
from rdzv_server.core.policies.stragglers import LOOKS
from rdzv_server.core.runs.set_apart import SetApart, set_apart
from rdzv_server.core.views import health, run_view, status_view, watch_view
from rdzv_server.core.views.health import MOST_RESTARTS, OFTEN_WITHIN_S
from rdzv_server.http.metrics import RUN_HEALTH, Survey
from rdzv_server.words import completion, finishing
from rdzv_server.words import health as words
from tests.support.scenario import HUNG, RUN_ID, Scenario, running
from tests.support.stories import check, play

LEASE_S = 10.0
LONG = (LOOKS + 1) * LEASE_S
Change = Callable[[Scenario], None]


def told(run: Scenario) -> list[Finding]:
    return health.findings(run.run, run.now)


def states(run: Scenario) -> list[str]:
    return [found.state for found in told(run)]


def fails_again(run: Scenario, times: int = 1, **failure: str) -> None:
    for _ in range(times):
        run.passes(1.0)
        run.fails("a", **failure)
        run.join(*list(run.run.stopping))


def hung(on_hang: str = "report") -> Scenario:
    run = running("1", "a", on_hang=on_hang)
    run.passes(60.0)
    run.suspects("a", 0, silent_s=20.0)
    run.judges()
    return run


def unreachable() -> Scenario:
    knows = "queries=('pair_test',) secret=s"
    return check(("2 max_restarts=3", f"join a b {knows}; test bad=b", {"start": "a b"}))


def silent() -> Scenario:
    run = running("2", "a", "b", lease_s=LEASE_S)
    run.passes(LEASE_S)
    return run


def lacks_nodes() -> Scenario:
    run = running("2", "a", "b", max_restarts=9)
    run.passes(30.0)
    run.leaves("b")
    run.join("a")
    run.passes(health.LACKS_NODES_S)
    return run


def undecided() -> Scenario:
    run = running("2", "a", "b")
    run.passes(30.0)
    run.run.undecided = lambda: Undecided("the disk is full", 12.0)
    return run


def overdue() -> Scenario:
    run = running("2", "a", "b")
    run.succeeds("a")
    run.passes(WARNED_AFTER_S)
    return run


def looping(rounds: int = 3, **failure: str) -> Scenario:
    run = running("2", "a", "b", max_restarts=99)
    fails_again(run, rounds, **failure)
    return run


def loses(run: Scenario, nodes: str) -> None:
    """Each node is lost, and its agent starts again a second later."""
    for node in nodes:
        run.passes(1.0)
        (agent,) = run.run.agents_of(node)
        run.is_lost(agent.agent_id)
        run.join(*list(run.run.stopping))
        run.passes(1.0)
        run.join(f"{node}{run.now}", node=node)
        run.passes(5.0)
        run.join(*list(run.run.stopping))


def losing_nodes(nodes: str = "bbbbb", size: str = "2") -> Scenario:
    run = running(size, *"abc"[: int(size[-1])], last_call_timeout_s=0.5)
    loses(run, nodes)
    return run


def stalled(age_s: float = 60.1, step_s: float = 0.2) -> Scenario:
    run = running("2", "a", "b")
    run.passes(age_s)
    for name in "ab":
        run.tells(name, highest_step=7, step_s=step_s, age_s=age_s)
    return run


def stalled_at_start(for_s: float = 1_801.0, step_s: float = 0.2) -> Scenario:
    """Return a run whose workers report nothing in their second round, though they did in the first."""
    run = running("2", "a", "b", max_restarts=9)
    run.tells("a", highest_step=7, step_s=step_s)
    run.fails("a")
    run.join("a", "b")
    run.passes(for_s)
    run.renews("a", "b")
    return run


def console_held() -> Scenario:
    run = running("2", "a", "b")
    run.renews("a", console_held_s=12.0)
    return run


def script_ended() -> Scenario:
    run = running("2", "a", "b")
    run.ended("a", "0")
    return run


def stalled_early(
    for_s: float = 7_201.0, *, first_after_s: float = 5.0, earlier_step_s: float | None = None, **progress: Any
) -> Scenario:
    """Return a run whose workers report progress once, `first_after_s` seconds after their start.

    `earlier_step_s`: seconds that a step took in the round before; None if there was none.
    """
    run = running("1", "a", max_restarts=9)
    if earlier_step_s is not None:
        run.tells("a", highest_step=7, step_s=earlier_step_s)
        run.fails("a")
        run.join("a")
    run.passes(first_after_s + run.run.started_at - run.now)
    run.tells("a", **progress)
    run.passes(for_s)
    run.tells("a", **progress, age_s=for_s)
    return run


def without_steps(for_s: float = 1_801.0, step_s: float = 0.2) -> Scenario:
    """Return a run whose workers report progress all the time, but the same step."""
    run = running("1", "a")
    for step in 18, 19:
        run.tells("a", highest_step=step, step_s=step_s)
    run.passes(for_s)
    run.tells("a", highest_step=19, step_s=step_s)
    return run


def slow() -> Scenario:
    run = running("2", "a", "b", lease_s=LEASE_S)
    run.steps(LONG, a=1.0, b=3.0)
    return run


def last_restart_spent() -> Scenario:
    run = running("2", "a", "b", max_restarts=1, restart_window_s=100.0)
    fails_again(run)
    return run


def unstable(times: int = MOST_RESTARTS + 1) -> Scenario:
    """A worker fails every minute. The run gets further each time."""
    run = running("1", "a", max_restarts=1_000, restart_backoff_s=0.0)
    for step in range(1, times + 1):
        run.passes(59.0)
        run.tells("a", highest_step=step, step_s=1.0)
        fails_again(run)
    return run


def loses_often(names: str, nodes: str = "2:3") -> Scenario:
    """A node leaves every minute. The run gets further each time."""
    run = running(nodes, "a", "b", "c", last_call_timeout_s=0.5)
    for step, name in enumerate(names, 1):
        run.passes(59.0)
        run.tells("a", highest_step=step, step_s=1.0)
        loses(run, name)
    return run


def below_size() -> Scenario:
    return running("2:4", "a", "b")


def unhealthy() -> Scenario:
    run = running("2", "a", "b")
    run.passes(30.0)
    set_apart(run.machine, ValueError("boom"))
    assert isinstance(run.machine, SetApart)
    run.machine.rebuild([Record(RUN_ID, 1, 0.0, run.created), *run.records], 0, run.now)
    return run


BLAMED = hang_words.reported("a", 0, hang_words.hang(HUNG), "", singled_out=True)
BEGINS: dict[str, tuple[Callable[[], Scenario], str, float, tuple[str, ...]]] = {
    "undecided": (undecided, words.undecided("the disk is full"), 12.0, (words.MEND_SERVER,)),
    "hung": (
        hung, hang_words.hung(BLAMED, hang_words.ONLY_REPORTED), 40.0,
        (words.stacks(RUN_ID), words.restart(RUN_ID)),
    ),
    "unreachable": (
        unreachable, network_words.unreachable("a", "b", "0.3 MB/s, fewer than 10", 0), 0.0,
        (network_words.MEND_LINK, network_words.restart_tests_network(RUN_ID)),
    ),
    "lacks_nodes": (
        lacks_nodes, completion.too_few(1, 1, 2, "a", gone="b"), 30.0,
        (words.start_nodes(1, RUN_ID), words.stop(RUN_ID)),
    ),
    "silent": (
        silent, completion.no_agent_heard(MOST_S), 0.0, (words.LOOK_AT_NODES, words.START_AGENTS, words.stop(RUN_ID)),
    ),
    "overdue": (
        overdue, finishing.finishing(ranks([0]), finishing.on_node(ranks([1]), "b")), 0.0,
        (words.stacks(RUN_ID), words.stop(RUN_ID)),
    ),
    "looping": (
        looping, words.looping(3, "exit code 1", words.worker_at(0, "a"), tells_steps=False), 1.0,
        (read_console("a"), words.events(RUN_ID), words.stop_and_mend(RUN_ID)),
    ),
    "stalled": (stalled, words.stalled(60.0, 0.2, 7), 0.0, (words.stacks(RUN_ID), words.restart(RUN_ID))),
    "unstable": (
        unstable,
        words.unstable(MOST_RESTARTS, OFTEN_WITHIN_S, "worker_failure", unstable().run.ledger[-1].reason), 360.0,
        (read_console("a"), words.history(RUN_ID)),
    ),
    "last_restart_spent": (
        last_restart_spent, words.last_restart_spent(1, 100.0), 1.0, (words.events(RUN_ID),),
    ),
    "below_size": (below_size, words.below_size(2, 4), 5.0, (words.why(RUN_ID),)),
}  # fmt: skip
OVER: dict[str, tuple[Callable[[], Scenario], Change]] = {
    "hung": (hung, lambda run: run.suspects("a")),
    "hung, as its round ends": (hung, lambda run: run.is_restarted()),
    "lacks_nodes": (lacks_nodes, lambda run: run.join("c")),
    "undecided": (undecided, lambda run: setattr(run.run, "undecided", lambda: None)),
    "unreachable": (unreachable, lambda run: run.is_lost("b")),
    "silent": (silent, lambda run: (run.renews("a", "b"), run.passes(1.0))[-1]),
    "overdue": (overdue, lambda run: run.is_restarted()),
    "looping, at a higher step": (looping, lambda run: run.tells("a", highest_step=1)),
    "looping, at a later checkpoint": (looping, lambda run: run.tells("a", checkpoint_step=1)),
    "looping, as the round lasts": (looping, lambda run: run.passes(steady_s(run.run))),
    "looping, at a higher step than before departures": (losing_nodes, lambda run: run.tells("a", highest_step=1)),
    "looping, as the round after departures lasts": (losing_nodes, lambda run: run.passes(steady_s(run.run))),
    "looping, as it fails otherwise": (looping, lambda run: fails_again(run, cause="signal 9 (SIGKILL)")),
    "stalled": (stalled, lambda run: run.tells("a", highest_step=8, step_s=0.2)),
    "stalled, at a second step": (stalled_early, lambda run: run.tells("a", highest_step=2, step_s=0.2)),
    "stalled, at a new step": (without_steps, lambda run: run.tells("a", highest_step=20, step_s=0.2)),
    "stalled, as its round ends": (stalled, lambda run: run.is_restarted()),
    "stalled, as a script continues": (script_ended, lambda run: run.renews("a")),
    "stalled, as a console takes output again": (console_held, lambda run: run.renews("a")),
    "slow": (slow, lambda run: run.steps(LONG, a=1.0, b=1.0)),
    "unstable": (unstable, lambda run: run.passes(OFTEN_WITHIN_S - 300.0)),
    "unstable, as it loops": (unstable, lambda run: fails_again(run, 3)),
    "last_restart_spent": (last_restart_spent, lambda run: run.passes(100.0)),
    "below_size": (below_size, lambda run: run.is_resized("2")),
    "unhealthy": (unhealthy, lambda run: run.is_stopped()),
}


@pytest.mark.parametrize("state", BEGINS)
def test_a_state_says_what_is_wrong_since_when_and_what_to_do(state: str) -> None:
    story, sentence, since, steps = BEGINS[state]
    (found,) = told(story())
    assert found == Finding(found.state, sentence, since, steps, is_trouble=state != "below_size")
    assert found.state == state


def test_a_run_whose_training_loops_ended_long_ago_is_overdue() -> None:
    run = running("2", "a", "b")
    run.tells("a", highest_step=9, step_s=1.0, is_over=True)
    run.passes(WARNED_AFTER_S + 1.0)
    run.tells("a", highest_step=9, step_s=1.0, age_s=WARNED_AFTER_S + 1.0, is_over=True)
    assert told(run) == [
        Finding("overdue", words.loops_over(WARNED_AFTER_S), 0.0, (words.stacks(RUN_ID), words.stop(RUN_ID)))
    ]
    run.tells("b", highest_step=9, step_s=1.0)
    assert states(run) == [], "node b is still in its loop"
    run.is_restarted()
    assert states(run) == []


def test_a_run_without_any_agent_lacks_nodes_soon() -> None:
    run = running("2", "a", "b")
    run.leaves("a")
    run.leaves("b")
    run.passes(health.NO_AGENTS_S - 0.1)
    assert states(run) == []
    run.passes(0.1)
    assert states(run) == ["lacks_nodes"]
    run.join("c")
    assert states(run) == []


def test_a_slow_run_names_its_slowest_node() -> None:
    run = slow()
    (found,) = told(run)
    (straggler,) = (event.reason for event in run.events if event.kind == "straggler_found")
    assert (found.state, found.sentence, found.next) == ("slow", straggler, (policy_words.replace("b"),))
    run.join("spare")
    assert told(run)[0].next == (policy_words.drain("b"),)


def marks(run: Scenario) -> dict[str, str]:
    return {name: remark for name in run.run.agents if (remark := run_view.node_remarks(run.run, name).get("hung"))}


def three(**settings: Any) -> Scenario:
    """Return a run of three nodes, of which the first one is suspected."""
    run = running("3", "a", "b", "c", on_hang="report", **settings)
    run.suspects("a", 0)
    return run


def test_the_nodes_whose_workers_may_hang_are_marked_until_a_verdict_names_one() -> None:
    run = three()
    run.suspects("c", 2)
    may_hang = {name: hang_words.may_hang((rank,), name, HUNG) for name, rank in {"a": 0, "c": 2}.items()}
    assert marks(run) == may_hang
    assert told(run)[0].sentence == hang_words.hung(may_hang["a"], hang_words.ONLY_REPORTED)
    run.judges(b="STOPPED")
    (verdict,) = run.reasons("hang_found")
    assert marks(run) == {"b": verdict}
    assert told(run)[0].sentence == hang_words.hung(verdict, hang_words.ONLY_REPORTED)
    run.suspects("b", 1)
    assert marks(run) == {"b": verdict}, "a later suspicion does not hide it"


def test_a_verdict_outlives_the_server_and_ends_with_the_suspicions() -> None:
    run = three()
    run.judges(b="STOPPED")
    (verdict,) = run.reasons("hang_found")
    for restart in (run.restarts, run.restarts_from_a_snapshot):
        restart()
        shown = status_view.view(run.run, run.now).hang
        assert shown and (shown.verdict, shown.node, shown.rank) == (verdict, "b", 1)
    run.suspects("a")
    assert states(run) == [] and marks(run) == {}
    run.suspects("c", 2)
    shown = status_view.view(run.run, run.now).hang
    assert shown and (shown.verdict, shown.node, shown.rank) == ("", None, None)
    assert marks(run) == {"c": hang_words.may_hang((2,), "c", HUNG)}


@pytest.mark.parametrize("ill", [hung, stalled])
def test_a_restart_is_not_recommended_before_there_are_nodes_for_it(ill: Callable[[], Scenario]) -> None:
    run = ill()
    restarts = len(run.run.running)
    for node_id in sorted(agent.node_id for agent in run.run.running.values()):
        run.handle(NodeCordoned(node_id=node_id, by="admin"))
    (found, *_) = told(run)
    assert found.next == (words.stacks(RUN_ID), words.restart(RUN_ID, min(restarts, run.run.settings.min_nodes)))


def test_a_verdict_about_workers_that_have_finished_since_is_withdrawn() -> None:
    run = three()
    run.judges(b="STOPPED")
    run.succeeds("b")
    assert marks(run) == {"a": hang_words.may_hang((0,), "a", HUNG)}


def test_if_no_rank_is_singled_out_sentence_and_marks_name_none() -> None:
    run = three()
    run.judges()
    (found,) = run.reasons("hang_found")
    verdict = hang_words.of_unknown_rank(found)
    assert told(run)[0].sentence == hang_words.hung(verdict, hang_words.ONLY_REPORTED)
    shown = status_view.view(run.run, run.now).hang
    assert shown and (shown.verdict, shown.node, shown.rank) == (verdict, None, None)
    assert marks(run) == {}


def test_a_withheld_hang_names_its_rank_and_the_limit() -> None:
    run = running("1", "a", max_restarts=9)
    for _ in range(4):
        run.suspects("a", 0, limit_s=10.0)
        run.judges()
        run.join(*list(run.run.stopping))
    (found, *_) = told(run)
    assert found.sentence == hang_words.hung(BLAMED, Hangs.run_remark(run.run, run.now)) and marks(run) == {"a": BLAMED}


def test_if_all_nodes_are_suspected_no_node_is_marked() -> None:
    run = three()
    run.suspects("b", 1)
    run.suspects("c", 2)
    assert states(run) == ["hung"] and marks(run) == {}


def test_silence_of_all_nodes_marks_no_node() -> None:
    run = running("2", "a", "b", on_hang="report")
    for rank, name in enumerate("ab"):
        run.suspects(name, rank, source="silence")
    assert states(run) == ["hung"] and marks(run) == {}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("a", words.none_connected(["a"], 0)), ("ab", words.none_connected(["a", "b"], 0)),
        ("abcde", words.none_connected(["a", "b", "c"], 2)),
    ],
)  # fmt: skip
def test_a_run_without_any_connection_names_its_first_nodes(names: str, said: str) -> None:
    run = running(str(len(names)), *names)
    for name in names:
        run.disconnects(name)
    assert [each.sentence for each in told(run) if each.state == "silent"] == [said]


def test_a_run_that_is_set_apart_is_unhealthy_since_then() -> None:
    found, *_ = told(unhealthy())
    assert (found.state, found.since, found.next[0]) == ("unhealthy", 30.0, words.REPORT_ERROR)


@pytest.mark.parametrize("ends", OVER)
def test_a_state_ends_when_its_reason_ends(ends: str) -> None:
    story, change = OVER[ends]
    run, state = story(), ends.partition(",")[0]
    assert state in states(run)
    change(run)
    assert state not in states(run)


def test_every_state_is_tested() -> None:
    tested = {each.partition(",")[0] for each in OVER}
    assert tested | {"ok"} == set(HEALTH) and len(health.RULES) == len(tested) + 2, "three rules find `stalled`"


@pytest.mark.parametrize(
    "story",
    [
        "join a", "join a b", "join a b; tell a highest_step=7 step_s=0.2 age_s=59.0",
        "join a b; tell a highest_step=7 step_s=60.0 age_s=1100.0", "join a b; tell a highest_step=7 age_s=1799.0",
        "join a b; fail a; join a b; 1s; fail a; join a b", "join a b; suspect a 0; suspect a", "join a b; succeed a",
        "join a b; tell a step_s=0.2 age_s=90.0; succeed b", "join a b c; leave c", "join a b; fail a; join a b; 1s; "
        "fail a exit_code=3; join a b; fail a; join a b",
    ],
)  # fmt: skip
def test_an_ordinary_run_is_well(story: str) -> None:
    run = Scenario("2", max_restarts=9)
    play(run, story)
    assert states(run) == []


def test_a_run_that_has_ended_has_no_health() -> None:
    run = looping()
    run.is_stopped()
    assert told(run) == [] and status_view.view(run.run, run.now).health is None
    assert "health" not in watch_view.summary(run.run, run.now, lambda at: at)


def test_a_loop_names_the_log_of_a_worker_that_has_files() -> None:
    run = looping()
    assert told(run)[0].next[0] == read_console("a")
    agent = run.run.agents["a"]
    agent.join = replace(agent.join, log_dir="logs")
    assert told(run)[0].next[0] == read_output(RUN_ID, 0)


def test_failures_are_the_same_but_for_numbers() -> None:
    assert states(looping(error="RuntimeError: rank 3 at 0x7f00")) == ["looping"]
    run = looping(2, error="OSError: port 29500 is in use")
    fails_again(run, error="OSError: port 29501 is in use")
    assert states(run) == ["looping"] and "29501" in told(run)[0].sentence


def test_a_loop_is_counted_beyond_the_kept_events_and_across_restarts_of_the_server() -> None:
    run = running("2", "a", "b", max_restarts=999)
    fails_again(run, 99)
    run.restarts_from_a_snapshot()
    assert (told(run)[0].sentence, told(run)[0].since) == (
        words.looping(99, "exit code 1", words.worker_at(0, "a"), tells_steps=False), 1.0
    )  # fmt: skip


def test_the_round_that_has_just_failed_counts() -> None:
    run = looping(2)
    run.fails("a")
    assert states(run) == ["looping"], "before the next round completes"


def test_a_lost_node_in_between_ends_a_loop_only_if_the_run_got_further() -> None:
    run = running("1:2", "a", "b", max_restarts=99)
    fails_again(run, 2)
    run.is_lost("b")
    run.join("a")
    run.ends_last_call()
    fails_again(run)
    assert "looping" in states(run)


def test_a_standstill_with_a_verdict_is_shown_as_a_hang_not_as_a_stall() -> None:
    run = stalled()
    run.suspects("a", 0)
    run.passes(SETTLE_S)
    assert states(run)[0] == "hung" and "stalled" not in states(run)


def test_a_notice_to_the_workers_does_not_hide_a_standstill() -> None:
    """The round ends by itself, so next steps do not restart workers that may save."""
    run = stalled()
    run.announces("a", notice_s=600.0, stop_s=630.0)
    (found,) = told(run)
    assert (found.state, found.since, found.next) == ("stalled", 0.0, (words.stacks(RUN_ID),))
    run.tells("a", highest_step=8, step_s=0.2)
    assert states(run) == []
    run.passes(60.1)
    run.tells("a", highest_step=8, step_s=0.2, age_s=60.1)
    assert states(run) == ["stalled"], "it began after the notice"
    run.is_stopped()
    assert states(run) == []


def test_a_notice_does_not_hide_that_all_loops_have_ended_long_ago() -> None:
    run = running("2", "a", "b")
    run.passes(WARNED_AFTER_S + 1.0)
    run.tells("a", highest_step=9, step_s=1.0, age_s=WARNED_AFTER_S + 1.0, is_over=True)
    run.announces("b", notice_s=600.0, stop_s=630.0)
    assert states(run) == ["overdue"]


def test_a_round_without_the_progress_of_earlier_rounds_is_stalled() -> None:
    assert "stalled" not in states(stalled_at_start(1_799.0))
    run = stalled_at_start()
    (found,) = (found for found in told(run) if found.state == "stalled")
    assert (found.sentence, found.since) == (words.stalled_start(health.STALLED_START_S), run.run.started_at)
    run.tells("b", highest_step=8)
    assert "stalled" not in states(run)
    an_epoch_s = 3_000.0
    assert "stalled" not in states(stalled_at_start(19 * an_epoch_s, an_epoch_s))
    assert "stalled" in states(stalled_at_start(21 * an_epoch_s, an_epoch_s))


@pytest.mark.parametrize("reported", [{"highest_step": 1}, {"checkpoint_step": 1}, {}], ids=str)
def test_a_run_whose_workers_report_progress_only_once_is_stalled(reported: dict[str, Any]) -> None:
    run = stalled_early(**reported)
    sentence = words.stalled_early(ONCE_STANDSTILL_S, reported.get("highest_step"))
    assert told(run) == [Finding("stalled", sentence, 5.0, (words.stacks(RUN_ID), words.restart(RUN_ID)))]
    assert states(stalled_early(7_199.0, **reported)) == []


def test_workers_that_report_once_in_a_round_are_compared_with_the_pace_of_an_earlier_round() -> None:
    run = stalled_early(1_801.0, earlier_step_s=0.2, highest_step=7)
    sentence = words.stalled_early(UNKNOWN_STANDSTILL_S, 7)
    assert [each.sentence for each in told(run) if each.state == "stalled"] == [sentence]
    assert "stalled" not in states(stalled_early(1_799.0, earlier_step_s=0.2, highest_step=7))
    an_epoch_s = 3_000.0
    assert "stalled" not in states(stalled_early(19 * an_epoch_s, earlier_step_s=an_epoch_s, highest_step=7))
    assert "stalled" in states(stalled_early(21 * an_epoch_s, earlier_step_s=an_epoch_s, highest_step=7))


def test_workers_with_a_slow_first_step_may_have_a_slow_second_one() -> None:
    assert states(stalled_early(19 * 600.0, first_after_s=600.0, highest_step=1)) == []
    assert states(stalled_early(21 * 600.0, first_after_s=600.0, highest_step=1)) == ["stalled"]


def test_a_run_whose_workers_report_the_same_step_for_a_long_time_is_stalled() -> None:
    run = without_steps()
    steps = words.stacks(RUN_ID), words.restart(RUN_ID)
    assert told(run) == [Finding("stalled", words.without_steps(UNKNOWN_STANDSTILL_S, 19), run.run.started_at, steps)]
    assert states(without_steps(1_799.0)) == states(without_steps(1_900.0, step_s=100.0)) == []


def test_workers_that_do_not_count_steps_or_save_checkpoints_are_not_stalled() -> None:
    run = running("1", "a")
    for passed_s in 0.0, 2_000.0:
        run.passes(passed_s)
        run.tells("a", highest_step=19, step_s=0.2)
    assert states(run) == [], "the script may count no steps"
    run = without_steps()
    run.tells("a", highest_step=19, checkpoint_step=19, step_s=0.2)
    assert states(run) == []


def test_a_run_whose_nodes_leave_repeatedly_is_looping() -> None:
    run = losing_nodes()
    sentence = words.losing_nodes(5, "b", 5, tells_steps=False)
    steps = words.losses(RUN_ID, "b"), words.stop_and_mend(RUN_ID)
    assert told(run) == [Finding("looping", sentence, run.run.departures[0].at, steps)]
    run.restarts_from_a_snapshot()
    assert told(run)[0].sentence == sentence
    (agent,) = run.run.agents_of("b")
    run.leaves(agent.agent_id)
    assert told(run)[0].next[0] == words.history(RUN_ID), "it says why it leaves"
    assert states(losing_nodes("bbbb")) == []


def test_a_loop_names_the_node_that_leaves_repeatedly_if_there_is_one() -> None:
    found = told(losing_nodes("bbbbc", "1:3"))[0]
    assert (found.sentence, found.next[0]) == (words.losing_nodes(5, "b", 4, tells_steps=False), words.keep_out("b"))
    found = told(losing_nodes("bcbca", "1:3"))[0]
    assert (found.sentence, found.next[0]) == (words.losing_nodes(5, "", 2, tells_steps=False), words.history(RUN_ID))


def test_departures_of_a_run_that_makes_progress_are_not_a_loop() -> None:
    run = running("2", "a", "b", last_call_timeout_s=0.5)
    for step in range(1, 6):
        run.tells("a", highest_step=step)
        loses(run, "b")
    assert states(run) == []


def test_a_run_that_restarts_often_is_unstable_since_the_restart_with_which_that_began() -> None:
    assert states(unstable(MOST_RESTARTS)) == []
    run = unstable(3 * MOST_RESTARTS)
    assert [(each.state, each.since) for each in told(run)] == [("unstable", 360.0)]
    run.restarts_from_a_snapshot()
    assert states(run) == ["unstable"]


def test_an_unstable_run_names_the_node_that_leaves_repeatedly_if_the_run_can_do_without_it() -> None:
    (found,) = told(loses_often("bcbcbc", "1:3"))
    assert (found.state, found.next) == ("unstable", (words.keep_out("b"), words.history(RUN_ID)))
    (found,) = told(loses_often("cccccc", "3"))
    assert found.next == (words.history(RUN_ID),)


def test_an_operators_action_is_not_a_departure() -> None:
    run = losing_nodes("bbbb")
    run.is_restarted()
    run.join(*list(run.run.stopping))
    assert states(run) == []
    loses(run, "b")
    assert states(run) == ["looping"]


def test_a_node_that_stands_still_by_its_own_pace_is_named() -> None:
    run = running("2", "a", "b")
    run.passes(60.1)
    run.tells("a", lowest_step=7, step_s=0.2, age_s=60.1)
    run.tells("b", lowest_step=90, step_s=0.2, age_s=60.1)
    run.tells("b", lowest_step=91, step_s=0.2)
    assert told(run) == [], "node a may have continued since then, too"
    run.passes(1.0)
    run.tells("a", lowest_step=7, step_s=0.2, age_s=61.1)
    run.tells("b", lowest_step=96, step_s=0.2)
    (found,) = told(run)
    assert (found.state, found.sentence) == ("stalled", words.stalled(60.0, 0.2, 7, "a"))
    run.tells("a", lowest_step=8, step_s=0.2)
    assert told(run) == []
    run.passes(100.0)
    run.tells("b", lowest_step=91, step_s=6.0, age_s=100.0)
    run.tells("a", lowest_step=9, step_s=0.2)
    assert told(run) == [], "node b is slow"


def test_workers_whose_loop_is_over_are_not_stalled() -> None:
    run = running("2", "a", "b")
    run.passes(60.1)
    for name in "ab":
        run.tells(name, highest_step=7, step_s=0.2, age_s=60.1, is_over=True)
    assert states(run) == []
    run.tells("b", highest_step=7, step_s=0.2, age_s=60.1)
    assert states(run) == ["stalled"], "node b still steps, and stands still"


def test_small_differences_of_a_sign_s_time_move_nothing() -> None:
    run = stalled()
    since = told(run)[0].since
    run.passes(5.0)
    run.tells("a", highest_step=7, step_s=0.2, age_s=64.9)
    assert told(run)[0].since == since


@pytest.mark.parametrize(
    ("story", "lacks"),
    [
        ("join a; 59.9s", False), ("join a; 60s", True),  # also a run that waits for its first nodes
        ("join a b; fail a; join a; 100s", False),  # node b still stops its workers
        ("join a b; fail a; join a; leave b; 60s", True), ("join a b; leave a; leave b; 60s", True),
        ("join a b; lose b; join a; 50s; join c; lose c; join a; 59s", False),  # another round has opened
    ],
)  # fmt: skip
def test_a_run_lacks_nodes_if_others_must_come_for_longer_than_a_restart_takes(story: str, lacks: bool) -> None:
    run = Scenario("2", max_restarts=9)
    play(run, story)
    assert ("lacks_nodes" in states(run)) == lacks


def test_a_cordoned_node_that_has_joined_could_be_the_missing_one() -> None:
    run = check(("2", "join a; cordon b; join b; 60s"))
    (found,) = told(run)
    assert found.next == (words.uncordon("b"), words.start_nodes(1, RUN_ID), words.stop(RUN_ID))


def test_the_command_of_a_refused_agent_could_be_corrected() -> None:
    run = check(("2", "join a; 60s"))
    note_refused(run.run, "b", "--nnodes 3 instead of 2")
    (found,) = told(run)
    correct = correct_agent("b", "--nnodes 3 instead of 2")
    assert found.next == (correct, words.start_nodes(1, RUN_ID), words.stop(RUN_ID))


def test_a_loop_does_not_hide_that_the_run_waits_for_nodes() -> None:
    run = looping()
    run.is_lost("b")
    run.join("a")
    run.passes(health.LACKS_NODES_S)
    assert states(run) == ["lacks_nodes", "looping"]


def test_a_run_that_is_set_apart_while_it_lacks_nodes_is_unhealthy() -> None:
    run = lacks_nodes()
    run.run.set_apart, run.run.set_apart_at = "boom", run.now
    assert states(run) == ["unhealthy"]


def test_the_worst_comes_first_and_the_others_are_named() -> None:
    run = last_restart_spent()
    run.passes(60.1)
    run.tells("b", highest_step=7, step_s=0.2, age_s=60.1)
    assert states(run) == ["stalled", "last_restart_spent"]
    shown = status_view.view(run.run, run.now).health
    assert shown and (shown.state, shown.others, shown.is_trouble) == ("stalled", ["last_restart_spent"], True)
    assert shown.age_s == pytest.approx(60.1)
    assert shown.next == [words.stacks(RUN_ID), words.restart(RUN_ID), words.events(RUN_ID)], "the worst state's first"
    watched = watch_view.summary(run.run, run.now, lambda at: at)["health"]
    assert watched == {
        "state": shown.state, "sentence": shown.sentence, "since": pytest.approx(run.now - shown.age_s),
        "next": shown.next, "others": ["last_restart_spent"], "is_trouble": True,
        "commands": [f"rdzvctl {action} {RUN_ID}" for action in ("stacks", "restart", "events")],
    }  # fmt: skip
    samples = Survey().samples_of(run.run, run.now, is_listed=True)
    assert [each.labels[1] for each in samples if each.metric is RUN_HEALTH] == states(run)


@pytest.mark.parametrize("story", [undecided, lacks_nodes, stalled, looping, unstable, last_restart_spent])
def test_each_step_ends_with_its_command(story: Callable[[], Scenario]) -> None:
    run = story()
    shown = watch_view.summary(run.run, run.now, lambda at: at)["health"]
    ends = [step.partition(": rdzvctl ") for step in shown["next"]]
    assert shown["commands"] == [f"rdzvctl {command}" if colon else "" for _, colon, command in ends]


def test_a_healthy_run_is_ok_in_status_and_metrics_and_sends_nothing_to_watchers() -> None:
    run = running("2", "a", "b")
    assert to_builtins(status_view.view(run.run, run.now).health) == {
        "state": "ok", "sentence": words.OK, "age_s": 0.0, "next": [], "others": [], "is_trouble": False,
        "next_of": {},
    }  # fmt: skip
    assert "health" not in watch_view.summary(run.run, run.now, lambda at: at)
    samples = Survey().samples_of(run.run, run.now, is_listed=True)
    assert [each.labels[1] for each in samples if each.metric is RUN_HEALTH] == ["ok"]


def test_a_run_id_is_quoted_in_commands() -> None:
    run = stalled()
    run.run.run_id = "my run\x1b"
    assert told(run)[0].next[0] == words.stacks("'my run '")
