"""Rounds that finish: the state while some workers have exited 0 and others still run, and the warning."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest
from rdzv_protocol.messages import FinishedWorkers
from rdzv_protocol.text import ranks

from rdzv_server.core.events import LeaseRenewed
from rdzv_server.core.kernel import final_report, finishing, restart_budget
from rdzv_server.core.kernel.finishing import WARNED_AFTER_S
from rdzv_server.core.kernel.run import FinishedSign, Stage
from rdzv_server.core.views import run_view, status_view, watch_view
from rdzv_server.words import failures
from rdzv_server.words import finishing as words
from tests.support.scenario import Scenario, running

T = TypeVar("T")
MINUTES_5 = words.still_run(ranks([0]), 5, words.on_node(ranks([1]), "b"))


def with_workers(each: int, nodes: str, *names: str, **settings: Any) -> Scenario:
    """Return a run whose nodes run `each` workers."""
    run = Scenario(nodes, **settings)
    run.join(*names, local_world_size=each)
    return run


def polls(run: Scenario, name: str, *ranks: int, ago_s: float = 0.0, round: int = 1) -> None:
    run.handle(LeaseRenewed(name, None, FinishedWorkers(round=round, ranks=ranks, ago_s=ago_s)))


def warnings(run: Scenario) -> list[str]:
    return [event.reason for event in run.events if event.kind == "warning"]


def found(run: Scenario) -> status_view.FinishingStatus | None:
    return status_view.view(run.run, run.now).finishing


def test_a_round_in_which_all_run_does_not_finish() -> None:
    run = running("2", "a", "b")
    polls(run, "a")
    assert found(run) is None and run_view.phase(run.run) == "running" and finishing.deadline(run.run) is None


def test_a_node_that_finished_and_one_that_still_runs_are_named_at_once() -> None:
    run = running("2", "a", "b")
    run.succeeds("a")
    run.passes(60.0)
    status = found(run)
    assert status and (status.age_s, status.warned) == (60.0, False)
    assert run_view.reason(run.run, run.now).endswith(words.finishing(ranks([0]), words.on_node(ranks([1]), "b")))
    assert watch_view.summary(run.run, run.now, lambda at: at)["finished_at"] == 0.0


def test_a_warning_comes_once_when_others_run_long_after() -> None:
    run = running("2", "a", "b")
    run.succeeds("a")
    run.passes(WARNED_AFTER_S - 1)
    assert not warnings(run)
    run.passes(1)
    assert warnings(run) == [MINUTES_5] and run.run.still_running == MINUTES_5
    status = found(run)
    assert status and status.warned
    run.passes(10 * WARNED_AFTER_S)
    assert warnings(run) == [MINUTES_5] and run.run.stage is Stage.RUNNING


def test_a_node_that_finishes_later_restarts_the_timeout() -> None:
    run = running("3", "a", "b", "c")
    run.succeeds("a")
    run.passes(WARNED_AFTER_S)
    run.succeeds("b")
    assert not run.run.still_running
    run.passes(WARNED_AFTER_S)
    assert warnings(run)[1:] == [words.still_run(ranks([0, 1]), 5, words.on_node(ranks([2]), "c"))]


def test_workers_that_finished_on_a_node_that_still_runs_are_a_sign_with_the_same_consequence() -> None:
    run = with_workers(4, "1", "a")
    polls(run, "a", 0, 2, ago_s=30.0)
    assert run_view.phase(run.run) == "finishing"
    run.passes(WARNED_AFTER_S - 30.0)
    still = words.on_node(ranks([1, 3]), "a")
    assert warnings(run) == [words.still_run(ranks([0, 2]), 5, still)]


def test_a_repeated_report_changes_nothing_and_that_of_another_worker_the_time() -> None:
    run = with_workers(3, "1", "a")
    polls(run, "a", 0)
    run.passes(100.0)
    polls(run, "a", 0, ago_s=90.0)
    assert finishing.finished_at(run.run) == 0.0
    polls(run, "a", 0, 1)
    assert finishing.finished_at(run.run) == 100.0


def test_the_latest_of_several_nodes_counts_in_any_order_of_their_reports() -> None:
    run = with_workers(2, "4", "a", "b", "c", "d")
    run.passes(100.0)
    for name, ago_s in (("a", 30.0), ("b", 10.0), ("c", 60.0), ("d", 20.0)):
        polls(run, name, 2 * "abcd".index(name), ago_s=ago_s)
        assert finishing.finished_at(run.run) == 100.0 - min(30.0, ago_s if name == "a" else 10.0)
    assert len(run.run.finished) == 4


class Counted(dict[str, FinishedSign]):
    """Signs of all nodes. Counts those that are read one after another."""

    read = 0

    def count(self, entries: Iterable[T]) -> Iterator[T]:
        for entry in entries:
            self.read += 1
            yield entry

    def __iter__(self) -> Iterator[str]:
        return self.count(super().__iter__())

    def __reversed__(self) -> Iterator[str]:
        return self.count(super().__reversed__())

    def keys(self) -> Any:
        return CountedView(self, super().keys())

    def values(self) -> Any:
        return CountedView(self, super().values())

    def items(self) -> Any:
        return CountedView(self, super().items())


class CountedView:
    def __init__(self, signs: Counted, view: Any) -> None:
        self.signs, self.view = signs, view

    def __iter__(self) -> Iterator[Any]:
        return self.signs.count(self.view)

    def __reversed__(self) -> Iterator[Any]:
        return self.signs.count(reversed(self.view))


def signs_read(nodes: int) -> int:
    """Return how many signs the server reads for one report, when each node has reported a worker that finished."""
    run = with_workers(2, f"{nodes}", *(f"n{at}" for at in range(nodes)))
    run.passes(100.0)
    for at in range(nodes):
        polls(run, f"n{at}", 2 * at, ago_s=float(at % 7))
    run.run.finished = signs = Counted(run.run.finished)
    report = FinishedWorkers(round=1, ranks=(15,), ago_s=0.0)
    run.machine.handle(LeaseRenewed("n7", None, report), run.now)  # without `validate`, which reads all signs
    assert run.run.finished["n7"].ranks == report.ranks
    return signs.read


def test_a_report_takes_the_same_time_in_a_run_of_many_nodes() -> None:
    """All nodes of a run report at its end, most of them with several workers that have finished."""
    assert 0 < signs_read(200) == signs_read(20)


@pytest.mark.parametrize(
    ("ranks", "round"), [((0,), 7), ((5,), 1), ((0, 1), 1)], ids=["other round", "foreign rank", "all of them"]
)
def test_signs_that_do_not_fit_the_round_are_ignored(ranks: tuple[int, ...], round: int) -> None:
    run = with_workers(2, "1", "a")
    polls(run, "a", *ranks, round=round)
    assert found(run) is None


@pytest.mark.parametrize("is_own", [False, True], ids=["other-node", "own-node"])
def test_the_report_about_a_lost_peer_names_the_worker_that_exited_0_before(is_own: bool) -> None:
    run = with_workers(2, "2", "a", "b", max_restarts=1)
    if is_own:
        polls(run, "a", 1)
    else:
        run.succeeds("b")
    run.fails("a", consequence=True, hint="see others")
    finished = ranks([1] if is_own else [2, 3])
    assert run.run.failures[-1].failure.hint == failures.exited_before(finished)


def test_the_final_report_names_the_worker_that_exited_0_while_the_run_waited_for_the_cause() -> None:
    """Its exit is reported later than the failure: an exit code of 0 is held for a moment."""
    run = with_workers(2, "2", "a", "b")
    run.fails("a", consequence=True, hint="see others")
    run.succeeds("b")
    run.passes(restart_budget.CAUSE_WINDOW_S)
    report = final_report.finish(run.run)
    root = run.run.first_of_round
    hint = failures.exited_meanwhile(ranks([2, 3]))
    assert report.failure and root
    assert (report.failure.hint, root.failure.hint, run.run.failures[-1].failure.hint) == (hint,) * 3
    assert run.run.first_failure == root


def test_a_failure_of_its_own_that_may_follow_from_a_lost_node_is_not_explained_by_a_worker_that_exits_0() -> None:
    """After its restart, the server has not heard the other node yet."""
    run = with_workers(2, "2", "a", "b")
    run.restarts()
    run.fails("a", hint="use less memory")
    assert run.run.verdict_at is not None
    run.succeeds("b")
    assert run.run.failures[-1].failure.hint == "use less memory"


def test_a_failure_of_its_own_is_not_explained_by_a_worker_that_exited_0() -> None:
    run = with_workers(2, "2", "a", "b", max_restarts=1)
    run.succeeds("b")
    run.fails("a", hint="use less memory")
    assert run.run.failures[-1].failure.hint == "use less memory"


def test_the_next_round_knows_nothing_of_it() -> None:
    run = with_workers(2, "2", "a", "b", max_restarts=1)
    run.succeeds("a")
    polls(run, "b", 2)
    run.passes(WARNED_AFTER_S)
    run.fails("b")
    assert (run.run.still_running, run.run.finished, run.machine.run.stage) == ("", {}, Stage.FORMING)
    run.join("a", "b")
    assert found(run) is None


def test_a_restarted_server_keeps_the_warning_without_repeating_it() -> None:
    run = running("2", "a", "b")
    run.succeeds("a")
    run.passes(WARNED_AFTER_S)
    run.restarts()
    run.passes(WARNED_AFTER_S)
    assert run.run.still_running == MINUTES_5 and warnings(run) == [MINUTES_5]


def test_the_sentence_about_a_large_run_is_short() -> None:
    names = [f"n{number}" for number in range(64)]
    run = with_workers(8, "64", *names)
    run.succeeds(*names[:50])
    assert (view := finishing.view(run.run))
    assert view.finished == words.workers_of(50, 64)
    named = [words.on_node(ranks(range(8 * at, 8 * at + 8)), f"n{at}") for at in range(50, 54)]
    assert view.still_running == words.on_nodes(named, 10)
