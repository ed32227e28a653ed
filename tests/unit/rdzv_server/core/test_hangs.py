"""Hangs: from what agents suspect to a failure with a name, and what the policy makes of it."""

from itertools import pairwise
from typing import Any

import pytest
from rdzv_protocol.errors import MalformedMessage, StaleRound, TooManyRequests
from rdzv_protocol.evidence import Evidence, ProcessState, StackGroup
from rdzv_protocol.messages import Finish, Progress
from rdzv_protocol.queries import Examine, Refused

from rdzv_server.core import final_report, status_view
from rdzv_server.core.events import HangSuspected, LeaseRenewed, QueryAnswered
from rdzv_server.core.examination import EXAMINED_WITHIN_S
from rdzv_server.core.hangs import MOST_SOURCES, SETTLE_S
from rdzv_server.core.run import Cause, Stage
from tests.support.scenario import Scenario, durable, running

REASON = "no progress for 20 s at step 7 (limit 10 s)"


def suspects(run: Scenario, agent_id: str, *ranks: int, source: str = "progress", **changes: Any) -> None:
    run.handle(HangSuspected(**({"agent_id": agent_id, "round": run.run.round, "source": source, "reason": REASON,
                                 "ranks": ranks} | changes)))  # fmt: skip


def asked(run: Scenario) -> list[tuple[str, Examine]]:
    every = [(name, each) for name in run.run.agents for each in run.run.queries.of(name, run.now)]
    return [(name, each) for name, each in every if isinstance(each, Examine)]


def judged(run: Scenario, states: dict[str, ProcessState] | None = None) -> None:
    """All agents answer, with the states of their workers if they are given, and the hang is judged."""
    for name, query in asked(run):
        seat = run.run.seat_of(name)
        assert seat
        group = StackGroup(ranks=(seat.first_rank,), state=states[name]) if states else None
        answer = Evidence(groups=(group,)) if group else Refused(reason="no stacks")
        run.handle(QueryAnswered(name, query.number, answer))
    run.passes(SETTLE_S)


ALIVE, STOPPED = ProcessState.ALIVE, ProcessState.STOPPED


def test_the_evidence_names_the_rank_and_stands_in_the_failure() -> None:
    run = running("3", "a", "b", "c", max_restarts=1)
    suspects(run, "a", 0)
    assert [query.reason for _, query in asked(run)] == [REASON] * 3
    judged(run, {"a": ALIVE, "b": STOPPED, "c": ALIVE})
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "b"
    failure = run.run.first_of_round.failure
    assert (failure.node_id, failure.rank, failure.local_rank) == ("b", 1, 0)
    assert failure.cause.startswith(f"hang: {REASON}; ranks 0 and 2 ") and "; rank 1 " in failure.cause
    assert asked(run) == [] and run.run.examined is None


def test_a_node_that_does_not_answer_holds_the_judgement_up_until_its_deadline() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1)
    run.passes(EXAMINED_WITHIN_S - 0.1)
    assert run.stage is Stage.RUNNING
    run.passes(0.1)
    assert run.stage is Stage.FORMING and run.run.first_of_round and run.run.first_of_round.agent_id == "b"


def test_a_restart_of_the_server_begins_the_examination_anew() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1)
    run.restarts()
    assert asked(run) == [], "a replay asks nobody"
    run.renews("a", "b")
    assert len(asked(run)) == 2
    judged(run, {"a": STOPPED, "b": ALIVE})
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "a"


@pytest.mark.parametrize("end", ["taken back", "a failure"])
def test_a_hang_that_is_over_ends_its_examination(end: str) -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1)
    if end == "taken back":
        suspects(run, "b")
    else:
        run.fails("a")
        run.passes(EXAMINED_WITHIN_S)
    assert asked(run) == [] and run.run.examined is None


def test_one_agent_suspects_by_so_many_sources_and_no_more() -> None:
    run = running("1", "a", on_hang="report")
    for number in range(MOST_SOURCES):
        suspects(run, "a", 0, source=f"log rule {number}")
    with pytest.raises(TooManyRequests, match="by 16 sources already"):
        suspects(run, "a", 0, source="one more")
    suspects(run, "a", source="log rule 0")
    suspects(run, "a", 0, source="one more")


def test_an_agent_that_suspects_and_takes_it_back_has_the_nodes_examined_ever_more_rarely() -> None:
    run = running("2", "a", "b", max_restarts=1)
    began = []
    for _ in range(1_000):
        suspects(run, "b", 1)
        began += [run.now] if asked(run) else []
        suspects(run, "b")
        assert asked(run) == []
        run.passes(1.0)
    pauses = [later - earlier for earlier, later in pairwise(began)]
    assert pauses[:4] == [1.0, 60.0, 120.0, 300.0] and set(pauses[4:]) == {300.0}, "the second may be a hang"


def test_a_hang_after_wrong_alarms_is_examined_once_the_pause_is_over() -> None:
    run = running("2", "a", "b", max_restarts=1)
    for _ in range(2):
        suspects(run, "b", 1)
        suspects(run, "b")
    suspects(run, "a", 0)
    run.passes(60.0 - 0.1)
    assert asked(run) == [] and run.stage is Stage.RUNNING
    run.passes(0.1)
    assert len(asked(run)) == 2
    judged(run, {"a": ALIVE, "b": STOPPED})
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "b", "by the evidence"
    run.join("a", "b")
    suspects(run, "a", 0)
    assert len(asked(run)) == 2, "in a new round at once"


def kinds(run: Scenario) -> list[str]:
    return [event.kind for event in run.events if event.kind.startswith(("hang", "round_opened", "run_failed"))]


def test_a_hang_costs_a_charged_restart_of_its_own_cause() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1)
    assert run.stage is Stage.RUNNING and kinds(run) == ["hang_suspected"], "others may know more"
    judged(run)
    assert run.stage is Stage.FORMING and kinds(run) == ["hang_suspected", "hang_found", "round_opened"]
    (found,) = [event for event in run.events if event.kind == "hang_found"]
    assert found.failure and (found.failure.node_id, found.failure.rank) == ("b", 1)
    assert found.reason == f"worker rank 1 on node b failed: hang: {REASON}"
    run.join("a", "b")
    assert run.ledger() == [("hang", True)] and run.assignment("a").restart_count == 1
    assert run.run.hang is None


def test_the_budget_is_that_of_failures_unless_hangs_have_one_of_their_own() -> None:
    run = running("1", "a", max_restarts=0)
    suspects(run, "a", 0)
    judged(run)
    assert run.run.end_reason == f"worker rank 0 on node a failed: hang: {REASON}; no restarts left: 0 of 0 used"
    finish = run.directive("a")
    assert isinstance(finish, Finish) and finish.failure and finish.failure.cause == f"hang: {REASON}"
    run = running("1", "a", max_restarts=1, max_hang_restarts=1)
    for _ in range(2):
        suspects(run, "a", 0)
        judged(run)
        run.join("a") if run.stage is Stage.FORMING else None
    assert run.stage is Stage.FAILED and run.run.end_reason.endswith("no restarts after hangs left: 1 of 1 used")
    run = running("1", "a", max_restarts=1, max_hang_restarts=1)
    suspects(run, "a", 0)
    judged(run)
    run.join("a")
    run.fails("a")
    assert run.stage is Stage.FORMING, "the hang has cost no restart of the failures' budget"


def test_a_run_may_fail_over_a_hang_or_only_tell_of_it() -> None:
    run = running("1", "a", max_restarts=5, on_hang="fail")
    suspects(run, "a", 0)
    judged(run)
    assert run.stage is Stage.FAILED and run.run.end_reason.endswith("; --on-hang fail")
    assert final_report.finish(run.run).failure is not None
    run = running("1", "a", on_hang="report")
    suspects(run, "a", 0)
    run.passes(100.0)
    suspects(run, "a", 0, source="silence")
    run.passes(100.0)
    assert run.stage is Stage.RUNNING and kinds(run) == ["hang_suspected", "hang_found"], "once"
    hang = status_view.view(run.run, run.now).hang
    assert hang and hang.reported and hang.nodes == ["a"] and hang.reason == REASON
    run.succeeds("a")
    assert run.stage is Stage.SUCCEEDED


def test_after_a_report_the_next_hang_of_the_round_is_told_again() -> None:
    run = running("1", "a", on_hang="report")
    for _ in range(2):
        suspects(run, "a", 0)
        judged(run)
        suspects(run, "a")
        assert run.run.hang is None
    assert kinds(run) == ["hang_suspected", "hang_found"] * 2


@pytest.mark.parametrize("leaves", [False, True])
def test_workers_that_finish_are_no_longer_suspected(leaves: bool) -> None:
    run = running("2", "a", "b")
    suspects(run, "b", 1)
    run.succeeds("b")
    if leaves:
        run.leaves("b")
    run.passes(SETTLE_S)
    assert run.stage is Stage.RUNNING and run.run.hang is None and kinds(run) == ["hang_suspected"]


def test_nodes_whose_workers_have_finished_do_not_break_the_silence_of_the_others() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "a", 0, source="silence")
    assert kinds(run) == []
    run.succeeds("b")
    assert kinds(run) == ["hang_suspected"]
    judged(run)
    assert kinds(run) == ["hang_suspected", "hang_found", "round_opened"]


def test_workers_that_go_on_in_time_are_let_alone() -> None:
    run = running("2", "a", "b")
    suspects(run, "b", 1)
    run.passes(SETTLE_S / 2)
    suspects(run, "b")
    run.passes(100.0)
    assert run.stage is Stage.RUNNING and kinds(run) == ["hang_suspected"]


def test_silence_counts_when_every_node_is_silent() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1, source="silence")
    run.passes(100.0)
    assert kinds(run) == [], "workers of one node may have nothing to write"
    suspects(run, "a", 0, source="silence")
    judged(run)
    assert run.stage is Stage.FORMING


@pytest.mark.parametrize(
    ("suspected", "steps", "blamed"),
    [
        ([("a", 0, "progress"), ("b", 1, "progress")], {}, "a"),
        ([("a", 0, "progress"), ("b", 1, "progress")], {"a": 8, "b": 7}, "b"),
        ([("a", 0, "progress"), ("b", 1, "uninterruptible")], {"a": 7, "b": 7}, "b"),
        ([("a", 0, "progress"), ("b", 1, "log rule NaN")], {"a": 7, "b": 7}, "b"),
    ],
    ids=["the first", "the lowest step", "uninterruptible", "a fault in its log"],
)
def test_whom_the_others_wait_for_is_blamed(
    suspected: list[tuple[str, int, str]], steps: dict[str, int], blamed: str
) -> None:
    run = running("2", "a", "b", max_restarts=1)
    for agent_id, step in steps.items():
        run.handle(LeaseRenewed(agent_id, Progress(round=1, lowest_step=step)))
    for agent_id, rank, source in suspected:
        suspects(run, agent_id, rank, source=source)
    judged(run)
    assert run.run.first_of_round and run.run.first_of_round.agent_id == blamed


def test_of_several_ranks_that_the_evidence_blames_the_suspected_one_is_named() -> None:
    run = running("4", "a", "b", "c", "d", max_restarts=1)
    suspects(run, "c", 2)
    judged(run, {"a": ALIVE, "b": STOPPED, "c": STOPPED, "d": ALIVE})
    assert run.run.first_of_round and run.run.first_of_round.agent_id == "c"


def test_a_node_that_is_lost_explains_the_hang() -> None:
    run = running("1:2", "a", "b", max_restarts=1)
    suspects(run, "a", 0)
    judged(run)
    run.is_lost("b")
    run.join("a")
    assert run.ledger() == [("node_lost", False)]


def test_a_suspicion_of_another_round_or_of_another_nodes_ranks_is_refused() -> None:
    run = running("2", "a", "b", max_restarts=1)
    with pytest.raises(StaleRound):
        suspects(run, "a", 0, round=9)
    with pytest.raises(MalformedMessage, match="rank 1 is none of node a's, 0 to 0"):
        suspects(run, "a", 1)
    run.fails("a")
    with pytest.raises(StaleRound):
        suspects(run, "b", 1, round=1)
    assert run.run.hang is None


def test_a_suspicion_outlives_the_server() -> None:
    run = running("2", "a", "b", max_restarts=1)
    suspects(run, "b", 1)
    assert durable(run.run)["hang"] is not None
    run.restarts()
    run.renews("a", "b")
    judged(run)
    run.join("a", "b")
    assert [cause for cause, _ in run.ledger()] == [Cause.HANG.value]
