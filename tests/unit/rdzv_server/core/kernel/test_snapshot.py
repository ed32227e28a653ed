"""Snapshots restore every agent's directive."""

from typing import Any

from rdzv_protocol.messages import Stop

from tests.support.scenario import Scenario


def restored(run: Scenario) -> Scenario:
    """Return the run restored from the snapshot, for comparison with the original."""
    again = Scenario()
    again.created, again.machine, again.now = run.created, run.machine, run.now
    again.restarts_from_a_snapshot()
    return again


def told(run: Scenario) -> dict[str, Any]:
    return {name: run.machine.directive_for(name, run.now) for name in run.run.agents}


def two_roles() -> Scenario:
    run = Scenario("3", max_restarts=1)
    run.join("a", role="trainer", local_world_size=2)
    run.join("b", role="reader", local_world_size=3)
    run.join("c", role="trainer")
    return run


def test_participants_of_the_running_round_keep_their_directive():
    run = two_roles()
    assert told(restored(run)) == told(run)


def test_commands_are_compared_with_the_same_agents_as_before():
    run = Scenario("2")
    run.join("b", command="1")
    run.join("a", command="2")
    run.succeeds("b")
    assert restored(run).run.command_of == run.run.command_of == "b"


def test_the_next_round_begins_from_there():
    run = two_roles()
    run.fails("b")
    again = restored(run)
    assert told(again) == told(run) and isinstance(again.directive("a"), Stop)
    for each in (run, again):
        each.join("a", "b", "c")
    assert told(again) == told(run)


def test_stored_restarts_and_failures_stay_bounded():
    run = Scenario("1", max_restarts=1_000)
    run.join("a")
    for _ in range(100):
        run.fails("a")
        run = restored(run)
        run.join("a")
    assert len(run.run.ledger) == len(run.run.failures) == 64
