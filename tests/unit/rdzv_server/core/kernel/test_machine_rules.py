"""Rules of all kinds of events: a check has no side effect, in any state of the run and for any sender.

Nor has the question of what is due, at any time.
"""

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

import pytest
from rdzv_protocol.errors import ProtocolError

from rdzv_server.core import events
from rdzv_server.core.kernel.machine import _RULES
from rdzv_server.core.kernel.operations import RunResized, RunRestarted
from rdzv_server.core.policies.hangs.examination import StacksAsked
from rdzv_server.core.policies.hangs.suspicions import HangSuspected
from tests.support.scenario import SERVER_ADDR, Scenario, a_failure, a_join, snapshot
from tests.support.stories import play

STATES = {
    "one waits": ("2", {}, "join a"),
    "agents with a node rank wait": ("3", {}, "join a node_rank=0; join b node_rank=1"),
    "a round runs, and one stands by": ("2", {}, "join a b spare"),
    "all were silent": ("2:3", {"lease_s": 20.0}, "join a b; form; 15s"),
    "one is disconnected": ("2", {"lease_s": 60.0}, "join a b spare; disconnect a"),
    "the server has restarted": ("2:3", {"max_restarts": 3}, "join a b; form; restart"),
    "a round ends": ("2", {"max_restarts": 3}, "join a b; fail a"),
    "one has finished": ("2", {}, "join a b; succeed a"),
    "one leaves": ("2", {"notice_timeout_s": 60.0}, "join a b spare; announce a"),
    "one is drained": ("1:2", {"max_restarts": 3}, "join a b; drain a"),
    "a hang is suspected": ("2", {"max_restarts": 3}, "join a b; suspect a 0"),
    "the run has ended": ("1", {}, "join a; succeed a"),
}


def everything(run: Scenario) -> Any:
    """Return everything that a check could change: the run, its leases, and the other state of its machine."""
    leases = {name: _plain(value) for name, value in vars(run.run.leases).items() if name != "all_closings"}
    others = ("run", "policies", "_hooks", "history")
    own = {name: copy(value) for name, value in vars(run.machine).items() if name not in others}
    return snapshot(run.run), leases, own, dict(run.machine.history.by_node)


def _plain(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else copy(value)


def asked_of(run: Scenario) -> Iterator[events.Event]:
    """Yield events of every kind, from the run's agents and from others."""
    for name in (*run.run.agents, "stranger"):
        agent, seat = run.run.agents.get(name), run.run.seat_of(name)
        of_round = agent.round if agent else 1
        known = agent.join if agent else a_join(name)
        yield events.NodeJoined(known, SERVER_ADDR)
        yield events.NodeJoined(a_join(name, node=known.node_id, after_round=of_round), SERVER_ADDR)
        yield events.NodeJoined(a_join(f"new {name}", node=known.node_id), SERVER_ADDR)
        yield events.NodeJoined(a_join(f"ranked {name}", node_rank=known.node_rank or 0), SERVER_ADDR)
        yield events.NodeLeft(name, "SIGTERM")
        yield events.LeaveAnnounced(name, "SIGTERM", 20.0, 30.0)
        yield events.WorkersFailed(name, of_round, a_failure(known.node_id, rank=seat.first_rank if seat else 0))
        yield events.WorkersSucceeded(name, of_round)
        yield HangSuspected(name, of_round, "progress", "it hangs", (seat.first_rank if seat else 0,), 0.0, None)
        yield events.NodeCordoned(node_id=known.node_id)
        yield events.NodeUncordoned(node_id=known.node_id)
        yield events.NodeDrained(node_id=known.node_id, deadline_s=1.0)
        yield events.LogAsked("token", seat.first_rank if seat else 9, "stdout", lines=10, offset=None, within_s=5.0)
        yield events.DescriptionAsked("token", known.node_id, within_s=5.0)
    yield events.RunStopped()
    yield RunRestarted()
    yield RunResized(min_nodes=1, max_nodes=2)
    yield events.ArrivalsAdmitted()
    yield events.RunForgotten(run_id=run.run.run_id)
    yield events.RunSuperseded()
    yield events.RunDeserted()
    yield events.EventsDropped(1)
    yield events.TimePassed()
    yield StacksAsked(token="token", rank=None, reason="", by="admin", within_s=5.0)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_check_of_a_rule_has_no_side_effect(state: tuple[str, dict[str, Any], str]) -> None:
    nodes, settings, steps = state
    run = Scenario(nodes, **settings)
    play(run, steps)
    machine, checked = run.machine, set()
    for event in asked_of(run):
        owner, rule = machine._rule_for(event)
        assert rule.check, f"nothing is checked of {event}"
        before = everything(run)
        with suppress(ProtocolError):
            rule.check(owner, event, run.now)
        assert everything(run) == before, f"the check of {event} has changed something"
        checked.add(type(event))
    rules = {**_RULES, **{kind: rule for kind, (_, rule) in machine._hooks.rules.items()}}
    assert checked == {kind for kind, rule in rules.items() if rule.check}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_asking_what_is_due_changes_nothing(state: tuple[str, dict[str, Any], str]) -> None:
    nodes, settings, steps = state
    run = Scenario(nodes, **settings)
    play(run, steps)
    began_at = run.now
    for later_s in (0.0, 1.0, 5.0, 30.0, 600.0, 100_000.0):
        before = everything(run)
        due = run.machine._due(began_at + later_s)
        assert run.machine._due(began_at + later_s) == due and everything(run) == before
