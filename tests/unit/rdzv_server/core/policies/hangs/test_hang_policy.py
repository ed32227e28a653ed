"""Hangs: from agents' suspicions to a failure with a named rank, and the policy's consequences."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from rdzv_protocol.errors import TooManyRequests
from rdzv_protocol.evidence import Evidence, Frame, LastError, StackGroup
from rdzv_protocol.words.run import worker_failed

from rdzv_server.core.events import QueryAnswered
from rdzv_server.core.kernel import final_report
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.examination import EXAMINED_WITHIN_S
from rdzv_server.core.policies.hangs.hang_policy import MOST_SOURCES, SETTLE_S, Hangs
from rdzv_server.core.views import run_view, status_view
from rdzv_server.words import failures
from tests.support.message_search import pattern
from tests.support.scenario import HUNG, Scenario, running
from tests.support.stories import check, stories

HANG = worker_failed("a", 0, words.hang(HUNG), "")
ONLY_B = "30s; suspect b 1 silent_s=20; tell a lowest_step=7 age_s=1"
"""The workers of node b stand still, and those of node a continue."""
SILENT_A = "suspect a 0 source=silence limit_s=20"
OF_NO_RANK = worker_failed("", 0, words.hang(HUNG), "", singled_out=False)


@stories({
    # which suspicions are believed
    "silence counts when every node is silent": (  # workers of one node may have nothing to write
        "2 max_restarts=1", "join a b; suspect b 1 source=silence; 100s", {"kinds hang": ""},
        "suspect a 0 source=silence; judge", {"stage": "forming"},
    ),
    "nodes that report no progress are not suspected while others report some": (  # many scripts do so on rank 0 only
        "2 max_restarts=1", "join a b; 30s; tell a highest_step=9 step_s=1; suspect b 1 is_untold=True; 100s",
        {"kinds hang": "", "kinds warning": "warning"},
        "restart_from_snapshot; renew a b; 100s; suspect b; suspect b 1 is_untold=True; 100s",
        {"kinds hang": "", "kinds warning": "warning"},
        "suspect a 0; judge", {"stage": "forming", "blamed": "a"},
    ),
    "nor if the others report the first later, before it is judged": (
        "2 max_restarts=1", "join a b; 60s; suspect b 1 is_untold=True; 1s; tell a highest_step=0; 100s",
        {"kinds hang": "hang_suspected", "stage": "running"},
    ),
    "in a round of which no node reports any, they are": (
        "2 max_restarts=2",
        "join a b; 30s; tell a highest_step=9 step_s=1; fail a; rejoin; 60s; suspect b 1 is_untold=True; judge",
        {"stage": "forming"},
    ),
    "nodes whose workers have finished do not break the silence of the others": (
        "2 max_restarts=1", f"join a b; 30s; {SILENT_A}; 5s; succeed b; 19.9s", {"kinds hang": ""},
        "0.2s", {"kinds hang": "hang_suspected"}, "judge", {"kinds hang": "hang_suspected hang_found", "blamed": "a"},
    ),
    "nor if the others become silent later": (
        "2 max_restarts=1", f"join a b; 5s; succeed b; 100s; {SILENT_A}; judge",
        {"kinds hang": "hang_suspected hang_found"},
    ),
    "the last of them counts": (
        "3", f"join a b c; 30s; {SILENT_A}; succeed b; 15s; succeed c; 19.9s", {"kinds hang": ""},
        "0.2s", {"kinds hang": "hang_suspected"},
    ),
    "also if all were silent before": (
        "2", f"join a b; 30s; {SILENT_A}; suspect b 1 source=silence limit_s=20; 1s; succeed b; 19.9s",
        {"kinds hang": "hang_suspected"}, "0.2s", {"kinds hang": "hang_suspected hang_suspected"},
    ),
    "and after a restart of the server": (
        "2", f"join a b; 30s; {SILENT_A}; succeed b; 10s; restart_from_snapshot; renew a; 9.9s", {"kinds hang": ""},
        "0.2s", {"kinds hang": "hang_suspected"},
    ),
    "they may write again or finish before": (
        "3", f"join a b c; 30s; {SILENT_A}; suspect b 1 source=silence limit_s=20; succeed c; 10s", {"kinds hang": ""},
        "suspect a source=silence; succeed b; 100s; succeed a", {"stage": "succeeded", "kinds hang": ""},
    ),
    "their silence does not delay the judgement of other suspicions": (
        "2", f"join a b; 30s; {SILENT_A}; succeed b; suspect a 0; judge",
        {"kinds hang": "hang_suspected hang_found"},
    ),
    "nor is it judged while workers have a notice": (
        "1:2", f"join a b; 30s; {SILENT_A}; succeed b; announce a; 21s", {"kinds hang": ""},
    ),
    "workers that continue in time are left alone": (
        "2", f"join a b; suspect b 1; {SETTLE_S / 2}s; suspect b; 100s",
        {"stage": "running", "kinds hang": "hang_suspected"},
    ),
    "workers that finish are no longer suspected": (
        "2", f"join a b; suspect b 1; succeed b; {SETTLE_S}s", {"stage": "running", "kinds hang": "hang_suspected"},
    ),
    "nor are those that have finished and left": (
        "2", f"join a b; suspect b 1; succeed b; leave b; {SETTLE_S}s",
        {"stage": "running", "kinds hang": "hang_suspected"},
    ),
    "a suspicion of another round is refused": (
        "2 max_restarts=1", "join a b; refused suspect a 0 round=9", {"refused": "StaleRound"},
        "fail a; refused suspect b 1 round=1", {"refused": "StaleRound"},
    ),
    "so is one of another node's ranks": (
        "2", "join a b; refused suspect a 1",
        {"refused": "MalformedMessage", "refusal": failures.foreign_rank(1, "a", 0, 0)},
    ),
    # blame
    "the first who suspects": ("2 max_restarts=1", "join a b; suspect a 0; suspect b 1; judge", {"blamed": "a"}),
    "the lowest step": (
        "2 max_restarts=1", "join a b; tell a lowest_step=8; tell b lowest_step=7; suspect a 0; suspect b 1; judge",
        {"blamed": "b"},
    ),
    "whose stacks say so": (
        "3 max_restarts=1", "join a b c; suspect a 0; judge b=STOPPED", {"blamed": "b", "examined": ""},
    ),
    "of several whom the stacks blame the suspected one": (
        "4 max_restarts=1", "join a b c d; suspect c 2; judge b=STOPPED c=STOPPED", {"blamed": "c"},
    ),
    "no rank is named if several are suspected and nothing tells them apart": (
        "2 max_restarts=1", "join a b; suspect a 0; suspect b 1; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "a rank is named if the others continue": (
        "2 max_restarts=1", f"join a b; {ONLY_B}; judge",
        {"told hang_found": worker_failed("b", 1, words.hang(HUNG), ""), "counted": "b"},
    ),
    "no rank is named if the others stand still as well, and are not suspected yet": (
        "2 max_restarts=1", "join a b; 30s; suspect b 1 silent_s=20; tell a lowest_step=7 age_s=19; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "nor if it is not known whether they continue": (
        "2 max_restarts=1", "join a b; 30s; suspect b 1 silent_s=20; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "or if its step is the lowest": (
        "2 max_restarts=1", "join a b; tell a lowest_step=8; tell b lowest_step=7; suspect a 0; suspect b 1; judge",
        {"told hang_found": worker_failed("b", 1, words.hang(HUNG), ""), "counted": "b"},
    ),
    "no rank is named if its step was reported before it stood still": (
        "2 max_restarts=1", "join a b; tell b lowest_step=5; tell a lowest_step=7; 9s; suspect a 0 silent_s=5; "
        "suspect b 1 silent_s=5; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "a rank is named if its step was reported while it stood still": (
        "2 max_restarts=1", "join a b; tell a lowest_step=7; 9s; tell b lowest_step=5; suspect a 0 silent_s=5; "
        "suspect b 1 silent_s=5; judge",
        {"told hang_found": worker_failed("b", 1, words.hang(HUNG), ""), "counted": "b"},
    ),
    "no rank is named if the steps are equal": (
        "2 max_restarts=1", "join a b; tell a lowest_step=7; tell b lowest_step=7; suspect a 0; suspect b 1; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "nor if the step of one node is not known": (
        "2 max_restarts=1", "join a b; tell b lowest_step=7; suspect a 0; suspect b 1; judge",
        {"told hang_found": OF_NO_RANK, "counted": ""},
    ),
    "a rank is named if its source is sure": (
        "2 max_restarts=1", "join a b; suspect a 0; suspect b 1 source=timer; judge", {"counted": "b"},
    ),
    "no rank is named if several of one node are suspected and their stacks are alike": (
        "1 max_restarts=1", "join a local_world_size=2; suspect a 0 1; judge a=ALIVE", {"counted": ""},
    ),
    # consequences
    "a hang costs a charged restart of its own cause": (
        "2 max_restarts=1", f"join a b; {ONLY_B}", {"stage": "running", "kinds hang": "hang_suspected"},
        "judge", {"kinds hang": "hang_suspected hang_found", "stop": "a b",
                  "reason a": f"worker rank 1 on node b failed: {words.hang(HUNG)}"},
        "join a b", {"ledger": "hang!"},
    ),
    "the budget is that of failures": (
        "1", "join a; suspect a 0; judge", {"end": failures.ends_run(HANG, failures.no_restarts_left(0, None))},
    ),
    "unless hangs have one of their own": (
        "1 max_restarts=1 max_hang_restarts=1", "join a; suspect a 0; judge; join a; suspect a 0; judge",
        {"end": failures.ends_run(HANG, failures.no_hang_restarts_left(1, 1))},
    ),
    "which costs no restart of the failures' budget": (
        "1 max_restarts=1 max_hang_restarts=1", "join a; suspect a 0; judge; join a; fail a", {"stage": "forming"},
    ),
    "a run may fail over a hang": (
        "1 max_restarts=5 on_hang=fail", "join a; suspect a 0; judge", {"end": f"{HANG}; --on-hang fail"},
    ),
    "after a report the server reports the next hang of the round again": (
        "1 on_hang=report", "join a; suspect a 0; judge; suspect a; suspect a 0; judge; suspect a",
        {"kinds hang": "hang_suspected hang_found hang_suspected hang_found", "stage": "running"},
    ),
    "a report names the rank, and no failure": (
        "2 on_hang=report", f"join a b; {ONLY_B}; judge",
        {"told hang_found": words.reported("b", 1, words.hang(HUNG), "", singled_out=True), "counted": ""},
    ),
    "a report names no rank if nothing tells the suspects apart": (
        "2 on_hang=report", "join a b; suspect a 0; suspect b 1; judge", {"told hang_found": words.hang(HUNG)},
    ),
    "a node that is lost explains the hang": (
        "1:2 max_restarts=1", "join a b; suspect a 0; judge; lose b; join a", {"ledger": "node_lost"},
    ),
    # a notice: workers may save, wait or exit
    "workers that have a notice are not judged": (
        "1:2 max_restarts=0", "join a b; announce b; acknowledge b; suspect a 0; suspect b 1; 23.9s",
        {"stage": "running", "kinds hang": "", "examined": ""}, "0.1s", {"drain": "b"},
        "leave b; join a", {"ledger": "node_left"},
    ),
    "nor is their silence": (
        "1:2 max_restarts=0", "join a b; announce b; suspect a 0 source=silence; suspect b 1 source=silence; 23.9s",
        {"stage": "running", "kinds hang": "", "examined": ""},
    ),
    "nor those of a node that is drained": (
        "1:2 max_restarts=0 notice_timeout_s=20", "join a b; drain b deadline_s=300; suspect a 0; 19.9s",
        {"stage": "running", "kinds hang": ""}, "0.1s", {"drain": "b"},
    ),
    "nor those of a run in which a node has arrived": (
        "1:2 max_restarts=0 scale_up=on-notice", "join a; form; join b; suspect a 0; 59.9s",
        {"stage": "running", "kinds hang": ""}, "0.1s; join a b", {"ledger": "node_arrived"},
    ),
    "nor those who hung before the notice": (
        "1:2 max_restarts=0", "join a b; suspect b 1", {"examined": "a b"}, "announce b; 23.9s",
        {"stage": "running", "kinds hang": "hang_suspected", "examined": ""}, "0.1s", {"drain": "b"},
    ),
    "also if the server restarts meanwhile": (
        "1:2 max_restarts=0", "join a b; announce b; suspect a 0; restart; renew a b; 20s",
        {"stage": "running", "examined": ""},
    ),
    "after the notice hangs are judged again": (
        "1:2 max_restarts=1", "join a b; announce b; suspect a 0; 24s; leave b; join a; suspect a 0; judge; join a",
        {"ledger": "node_left hang!"},
    ),
    # the examination
    "a node that does not answer holds the judgement up until its deadline": (
        "2 max_restarts=1", f"join a b; suspect b 1; {EXAMINED_WITHIN_S - 0.1}s", {"stage": "running"},
        "0.1s", {"stage": "forming", "blamed": "b"},
    ),
    "it ends when the suspicion is taken back": ("2", "join a b; suspect b 1; suspect b", {"examined": ""}),
    "and when a failure ends the round": (
        "2 max_restarts=1", f"join a b; suspect b 1; fail a; {EXAMINED_WITHIN_S}s", {"examined": ""},
    ),
    "a restarted server begins it again, and asks no agent while it replays": (
        "2 max_restarts=1", "join a b; suspect b 1", {"examined": "a b"}, "restart", {"examined": ""},
        "renew a b", {"examined": "a b"}, "judge a=STOPPED", {"blamed": "a"}, "join a b", {"ledger": "hang!"},
    ),
})  # fmt: skip
def test_a_hang(story):
    check(story)


def test_the_evidence_names_the_rank_and_is_in_the_failure() -> None:
    run = running("3", "a", "b", "c", max_restarts=1)
    run.suspects("a", 0)
    assert [query.reason for query in run.examined().values()] == [HUNG] * 3
    run.judges(b="STOPPED")
    failure = run.run.first_of_round.failure
    assert (failure.node_id, failure.rank, failure.local_rank) == ("b", 1, 0)
    assert failure.cause.startswith(words.hang(HUNG, "ranks 0 and 2 ")) and "; rank 1 " in failure.cause
    (found,) = [event for event in run.events if event.kind == "hang_found"]
    assert found.failure and (found.failure.node_id, found.failure.rank) == ("b", 1)


def test_the_exception_of_a_script_that_has_ended_is_the_failures() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("b", 1)
    traceback = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "ValueError: boom")
    for name, query in run.examined().items():
        rank = run.run.seats[name].first_rank
        errors = (LastError(rank=0, error="ValueError: boom", traceback=traceback, is_uncaught=True),)
        group = StackGroup(ranks=(rank,))
        run.handle(QueryAnswered(name, query.number, Evidence(groups=(group,), errors=() if rank else errors)))
    run.passes(SETTLE_S)
    failure = run.run.first_of_round.failure
    assert (failure.node_id, failure.rank, failure.error, failure.traceback) == ("a", 0, "ValueError: boom", traceback)
    assert failure.sentence.endswith(f"{words.blame([0], words.HAS_RAISED)}: ValueError: boom")


@pytest.mark.parametrize(
    "frames", [(), (Frame(function="load", file="data.py", line=31),)], ids=["no stack", "a stack"]
)
def test_the_failure_says_why_no_stack_could_be_read(frames: tuple[Frame, ...]) -> None:
    run = running("1", "a", max_restarts=1)
    run.tells("a")
    run.suspects("a", 0)
    ((name, query),) = run.examined().items()
    group = StackGroup(ranks=(0,), frames=frames)
    evidence = Evidence(groups=(group,), folder="/logs/evidence_1", problems=("py-spy is not installed",))
    run.handle(QueryAnswered(name, query.number, evidence))
    run.passes(SETTLE_S)
    where = words.evidence_in("/logs/evidence_1", "a")
    assert run.run.first_of_round.failure.hint == (where if frames else f"{where}; py-spy is not installed")


@pytest.mark.parametrize(("told", "says"), [({}, False), ({"highest_step": 7}, False), (None, True)])
def test_a_script_that_has_never_reported_progress_may_not_do_so(told: dict[str, int] | None, says: bool) -> None:
    run = running("1", "a", max_restarts=1)
    if told is not None:
        run.tells("a", **told)
    run.suspects("a", 0)
    run.judges()
    assert (words.NEVER_TOLD in run.run.failures[-1].failure.hint) is says


@pytest.mark.parametrize("restart", [Scenario.restarts, Scenario.restarts_from_a_snapshot, lambda run: None])
def test_a_worker_that_reports_the_end_of_all_work_ends_the_log_rules_of_all_nodes(
    restart: Callable[[Scenario], None],
) -> None:
    """In this round, also after the server was restarted. It takes back that lines are overdue, and nothing else."""
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("b", 1, source="log rule 1: step", limit_s=60.0, number=1)
    run.ends_rules("a")
    restart(run)
    run.judges()
    assert run.run.round == 1 and Hangs.of(run.run).hang is None
    for limit_s in (60.0, None):
        run.suspects("b", 1, source="log rule 2: NaN", limit_s=limit_s, number=2)
    run.judges()
    assert run.run.round == 1
    run.suspects("b", 1, number=3)
    run.judges()
    assert run.run.stage is Stage.FORMING, "another source still counts"
    run.join("a", "b")
    run.suspects("b", 1, source="log rule 1: step", limit_s=60.0, number=4)
    assert (hang := Hangs.of(run.run).hang) and hang.is_believed, "the next round has work again"


def test_a_fault_that_a_line_reported_before_the_end_of_all_work_still_counts() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("b", 1, source="log rule 2: NaN", number=7)
    run.suspects("a", 0, source="log rule 1: step", limit_s=60.0, number=2)
    run.ends_rules("a", number=1)
    assert list(Hangs.of(run.run).hang.suspicions) == ["log rule 2: NaN\nb"], "one request may overtake another"
    run.suspects("a", 0, source="timer", number=2)
    assert len(Hangs.of(run.run).hang.suspicions) == 1, "a late copy counts for nothing, also after that"
    run.judges()
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "b"


def test_the_number_of_sources_of_suspicion_of_one_agent_is_bounded() -> None:
    run = running("1", "a", on_hang="report")
    for number in range(MOST_SOURCES):
        run.suspects("a", 0, source=f"log rule {number}")
    with pytest.raises(TooManyRequests, match=pattern(words.too_many_sources, node_id="a", most=MOST_SOURCES)):
        run.suspects("a", 0, source="one more")
    run.suspects("a", source="log rule 0")
    run.suspects("a", 0, source="one more")


def test_an_agent_that_retracts_its_suspicions_causes_fewer_and_fewer_examinations() -> None:
    run = running("2", "a", "b", max_restarts=1)
    began = []
    for _ in range(1_000):
        run.suspects("b", 1)
        began += [run.now] if run.examined() else []
        run.suspects("b")
        assert not run.examined()
        run.passes(1.0)
    pauses = [later - earlier for earlier, later in pairwise(began)]
    assert pauses[:4] == [1.0, 60.0, 120.0, 300.0] and set(pauses[4:]) == {300.0}, "the second may be a hang"


def test_a_late_copy_of_a_suspicion_changes_nothing() -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("b", 1, number=1)
    run.suspects("b", number=2)
    run.restarts()
    run.passes(1.0)
    run.suspects("b", 1, number=1)
    assert Hangs.of(run.run).hang is None
    assert run.run.leases.renewed_at["b"] == run.now - 1.0, "it is no sign of life"
    run.suspects("b", 1, number=3)
    assert Hangs.of(run.run).hang is not None
    run.suspects("b", number=2)
    assert Hangs.of(run.run).hang is not None, "a late copy does not take a later suspicion back"


def test_a_hang_after_wrong_alarms_is_examined_once_the_pause_is_over() -> None:
    run = running("2", "a", "b", max_restarts=1)
    for _ in range(2):
        run.suspects("b", 1)
        run.suspects("b")
    run.suspects("a", 0)
    run.passes(60.0 - 0.1)
    assert not run.examined() and run.stage is Stage.RUNNING
    run.passes(0.1)
    assert len(run.examined()) == 2
    run.judges(b="STOPPED")
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "b", "by the evidence"
    run.join("a", "b")
    run.suspects("a", 0)
    assert len(run.examined()) == 2, "in a new round at once"


def test_a_run_can_only_report_a_hang() -> None:
    run = check(("1 on_hang=report", "join a; suspect a 0; 100s; suspect a 0 source=silence; 100s", {
        "stage": "running", "kinds hang": "hang_suspected hang_found",
    }))  # fmt: skip
    hang = status_view.view(run.run, run.now).hang
    assert hang and hang.reported and hang.nodes == ["a"] and hang.reason == HUNG
    run.succeeds("a")
    assert run.stage is Stage.SUCCEEDED


def test_the_report_of_a_run_that_failed_over_a_hang_names_it() -> None:
    run = check(("1 on_hang=fail", "join a; suspect a 0; judge"))
    report = final_report.finish(run.run)
    assert report.failure and report.failure.cause == words.hang(HUNG)


@pytest.mark.parametrize("source", ["uninterruptible", "timer", "log rule NaN"])
def test_a_source_about_the_worker_itself_is_preferred(source: str) -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("a", 0)
    run.suspects("b", 1, source=source)
    run.judges()
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "b"


@pytest.mark.parametrize("restart", [Scenario.restarts, Scenario.restarts_from_a_snapshot])
def test_a_restarted_server_still_counts_sources_and_silent_nodes(restart: Callable[[Scenario], None]) -> None:
    run = running("2", "a", "b", max_restarts=1)
    run.suspects("b", 1, source="silence")
    for number in range(MOST_SOURCES):
        run.suspects("a", 0, source=f"log rule {number}")
    restart(run)
    with pytest.raises(TooManyRequests):
        run.suspects("a", 0, source="silence")
    for number in range(MOST_SOURCES):
        run.suspects("a", source=f"log rule {number}")
    assert (hang := Hangs.of(run.run).hang) and not hang.is_believed
    run.suspects("a", 0, source="silence")
    assert Hangs.of(run.run).hang.is_believed


def test_a_run_says_which_nodes_lack_a_source_of_hangs_that_others_have() -> None:
    run = Scenario("2:3", max_restarts=9)
    run.join("a", watches=("silence", "log rule"))
    run.join("b", "c", watches=("silence",))
    assert run_view.run_remarks(run.run, run.now) == [words.log_rules_unwatched("b", 1)]
    run.fails("a")
    run.join("a", watches=("silence", "log rule"))
    run.join("b", "c", watches=())
    both = [words.silence_unwatched("b", 1), words.log_rules_unwatched("b", 1)]
    run.restarts_from_a_snapshot()
    assert run_view.run_remarks(run.run, run.now) == ["; ".join(both)]
    told = [event.reason for event in run.events if event.kind == "warning"]
    assert told == [words.log_rules_unwatched("b", 1), words.silence_unwatched("b", 1)], "each once"


@pytest.mark.parametrize("watches", [(None, ("silence",)), ((), ()), (("silence",), ("silence",))])
def test_nodes_with_the_same_sources_and_older_agents_lack_none(watches: tuple[tuple[str, ...] | None, ...]) -> None:
    run = Scenario("2")
    run.join("a", watches=watches[0])
    run.join("b", watches=watches[1])
    assert run_view.run_remarks(run.run, run.now) == []
