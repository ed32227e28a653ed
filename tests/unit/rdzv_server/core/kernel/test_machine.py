"""A run from start to end: growing, succeeding, ending, and restoring it from its records."""

import pytest
from rdzv_protocol.messages import Finish

from rdzv_server.core.effects import EmitEvent, ForgetRun, Record, WakeAgents
from rdzv_server.words import completion, runs
from tests.support.scenario import RETENTION_S, Scenario, running, snapshot
from tests.support.stories import check, stories


@stories({
    # growing
    "an arrival is admitted after a short window": (
        "2:4 scale_up_window_s=0.1", "join a b; form; join c", {"start": "a b"},
        "0.1s", {"stop": "a b", "reason a": completion.admitting(1, "c")}, "join a b", {"ranks": "a b c"},
    ),
    "arrivals within the window share one restart": (
        "2:5 scale_up_window_s=0.1", "join a b; form; join c; 0.06s; join d; 0.05s",
        {"reason a": completion.admitting(2, "c, d")}, "join a b", {"ledger": "node_arrived"},
    ),
    "there is no window once the run is full": ("2:3 scale_up_window_s=60", "join a b; form; join c", {"stop": "a b"}),
    "an arrival that leaves again restarts no node": ("2:4", "join a b; form; join c; leave c; 100s", {"start": "a b"}),
    "a cooldown keeps a young round going": (
        "2:3 scale_up=cooldown scale_up_cooldown_s=300", "join a b; form; join c; 299.9s", {"start": "a b"},
        "0.1s", {"stop": "a b"},
    ),
    "after the cooldown arrivals share a window that begins with the first": (
        "1:9 scale_up=cooldown scale_up_cooldown_s=300 scale_up_window_s=10",
        "join a; form; 400s; join b; 4s; join c; 4s; join d; 4s", {"reason a": completion.admitting(3, "b, c, d")},
    ),
    "with manual scale-up a running round is left alone": (
        "2:3 scale_up=manual", "join a b; form; join c; 10000s", {"start": "a b"},
    ),
    "with manual scale-up an arrival gets a seat in the next round": (
        "2:3 scale_up=manual max_restarts=1", "join a b; form; join c; fail a; join a b", {"ranks": "a b c"},
    ),
    "no node is admitted once workers have finished": (
        "2:3", "join a b; form; succeed a; join c; 100s", {"start": "a b"},
    ),
    "an arrival in its window is not admitted when workers finish": (
        "2:4", "join a b; form; join c; succeed a; 100s", {"start": "a b"},
    ),
    # succeeding
    "a run succeeds when every node has, and the early one waits": (
        "2", "join a b; succeed a", {"stage": "running", "start": "a b"},
        "succeed b", {"stage": "succeeded", "woken": "a b", "reason a": runs.succeeded(2)},
    ),
    "success is counted once a node": ("2", "join a b; succeed a a", {"stage": "running"}),
    "a failure restarts those that had finished": (
        "2 max_restarts=1", "join a b; succeed a; fail b", {"stop": "a b"},
        "join a b; succeed b", {"stage": "running"},  # a's success was in the previous round
        "succeed a", {"stage": "succeeded"},
    ),
    "a success that comes after the stop does not count": (
        "2 max_restarts=1", "join a b; fail a; succeed b", {"stop": "a b"}, "join a b; succeed a", {"stage": "running"},
    ),
    "a failure after a success of the same round is ignored": (
        "2 max_restarts=1", "join a b; succeed a; ignored fail a", {"start": "a b"},
    ),
})  # fmt: skip
def test_a_run_goes_through_its_states(story):
    check(story)


# An end is final.


def ended(*, succeeded):
    run = running("2", "a", "b", lease_s=20)
    run.join("spare")
    if succeeded:
        run.succeeds("a", "b")
    else:
        run.fails("a")
    assert run.stage.is_end
    return run


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize(
    "happens",
    [
        lambda run: run.fails("b"),
        lambda run: run.succeeds("b"),
        lambda run: run.leaves("b"),
        lambda run: run.renews("b"),
        lambda run: run.disconnects("b"),
        lambda run: run.join("b", after_round=1),
        lambda run: run.join("spare", after_round=0),
        lambda run: (run.renews("b"), run.disconnects("b")),
        lambda run: run.passes(RETENTION_S - 1),
    ],
    ids=["failure", "success", "leave", "heard", "disconnect", "rejoin", "join", "blip", "time"],
)
def test_an_end_is_final(succeeded, happens):
    run = ended(succeeded=succeeded)
    before = snapshot(run.run)
    happens(run)
    assert snapshot(run.run) == before
    assert run.told(Finish) == {"a", "b", "spare"}


def test_an_ended_run_is_forgotten_after_the_retention_time():
    run = ended(succeeded=True)
    run.passes(RETENTION_S - 1)
    assert ForgetRun("run", 1) not in run.effects
    run.passes(1)
    assert run.effects == [ForgetRun("run", 1)]


# Information for the shell.


def test_events_are_recorded_before_agents_are_woken():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    kinds = [type(effect) for effect in run.effects]
    assert kinds[0] is Record
    assert kinds.index(Record) < kinds.index(WakeAgents)
    assert EmitEvent in kinds


def test_signs_of_life_are_not_recorded():
    run = running("2", "a", "b")
    recorded = len(run.records)
    run.renews("a")
    run.disconnects("a")
    run.renews("a")
    assert len(run.records) == recorded


def test_every_change_of_a_directive_has_a_newer_revision():
    run = Scenario("2", max_restarts=1)
    run.join("a")
    seen = [run.machine.directive_for("a", run.now)[0]]
    run.join("b")
    seen.append(run.machine.directive_for("a", run.now)[0])
    run.fails("b")
    seen.append(run.machine.directive_for("a", run.now)[0])
    assert seen == sorted(set(seen))


def test_the_next_deadline_is_the_soonest_of_all():
    run = Scenario("2:3", lease_s=20, last_call_timeout_s=30, join_timeout_s=600)
    assert run.machine.next_deadline() == 600
    run.join("a", "b")
    assert run.machine.next_deadline() == 20
    run.passes(19)
    run.renews("a", "b")
    assert run.machine.next_deadline() == 30
    run.disconnects("a")
    assert run.machine.next_deadline() == 20
    assert running("1", "a", lease_s=20).machine.next_deadline() == 20, "a full round waits for leases alone"
