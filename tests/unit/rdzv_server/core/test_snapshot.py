"""What a snapshot brings back of what every agent was told."""

from typing import Any

from msgspec.structs import replace
from rdzv_protocol.messages import Stop

from rdzv_server.core import rank_assignment, snapshot
from rdzv_server.core.machine import RunMachine
from rdzv_server.core.run import Seat
from rdzv_server.core.snapshot import AgentSnapshot, RunSnapshot, SeatSnapshot, SnapshotPart
from tests.support.scenario import RETENTION_S, Scenario, running


def restored(run: Scenario, facts: list[SnapshotPart]) -> Scenario:
    """The run that a server makes of the facts."""
    again = Scenario()
    again.machine = RunMachine(run.created, 0.0, RETENTION_S)
    for fact in facts:
        again.machine.replay(fact, run.now)
    again.machine.restart(run.now)
    return again


def told(run: Scenario) -> dict[str, Any]:
    return {name: run.machine.directive_for(name, run.now) for name in run.run.agents}


def two_roles() -> Scenario:
    run = Scenario("3", max_restarts=1)
    run.join("a", role="trainer", local_world_size=2)
    run.join("b", role="reader", local_world_size=3)
    run.join("c", role="trainer")
    return run


def test_participants_of_the_running_round_are_told_the_same_as_before():
    run = two_roles()
    assert told(restored(run, list(snapshot.take(run.run)))) == told(run)


def test_commands_are_compared_with_the_same_agents_as_before():
    run = Scenario("2")
    run.join("b", command="1")
    run.join("a", command="2")
    run.succeeds("b")
    assert restored(run, list(snapshot.take(run.run))).run.command_of == run.run.command_of == "b"


def test_the_next_round_begins_from_there():
    run = two_roles()
    run.fails("b")
    again = restored(run, list(snapshot.take(run.run)))
    assert told(again) == told(run) and isinstance(again.directive("a"), Stop)
    for each in (run, again):
        each.join("a", "b", "c")
    assert told(again) == told(run)


def test_a_snapshot_that_holds_every_directive_in_full():
    """As servers wrote them that made all assignments at once: no terms, and seats without a place in their role."""
    run = two_roles()

    def in_full(fact: SnapshotPart) -> SnapshotPart:
        match fact:
            case RunSnapshot():
                return replace(fact, terms=None)
            case SeatSnapshot(seat=seat):
                place = (seat.agent_id, seat.node_id, seat.group_rank, seat.first_rank, seat.local_world_size)
                return replace(fact, seat=Seat(*place))
            case AgentSnapshot(join=join):
                return replace(fact, start=rank_assignment.start(run.run, run.run.agents[join.agent_id]))
        return fact

    again = restored(run, [in_full(fact) for fact in snapshot.take(run.run)])
    assert told(again) == told(run)
    for each in (run, again):
        each.fails("b")
        each.join("a", "b", "c")
    assert told(again) == told(run)


def test_one_who_asks_again_is_told_the_very_same():
    run = running("2", "a", "b")
    assert run.directive("a") is run.directive("a")
