"""An error in the core of one run sets the run apart; the others continue."""

import asyncio

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, ServerUnavailable
from rdzv_protocol.messages import Finish, Start, Stop, Wait

from rdzv_server.core.effects import EmitEvent
from rdzv_server.core.events import (
    AgentDisconnected,
    LeaseRenewed,
    NodeJoined,
    NodeLost,
    RunForgotten,
    RunStopped,
    WorkersFailed,
)
from rdzv_server.core.kernel import admission, snapshot
from rdzv_server.core.kernel import machine as machine_module
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.runs import new_attempts
from rdzv_server.core.runs.registry import Registry
from rdzv_server.core.views import run_view
from rdzv_server.storage import compaction
from rdzv_server.storage.base import MemoryStore, StoreBroken
from rdzv_server.words import service as words
from rdzv_server.words import storage as storage_words
from tests.support.message_search import pattern
from tests.support.scenario import a_failure, a_join, settings_of
from tests.unit.rdzv_server.service.driven_server import PATIENCE_S, Server, StartServer


def breaks(monkeypatch, kind: type) -> None:
    """Make the core raise an error in the middle of handling an event of this kind, in the run `poison`."""
    rule = machine_module._RULES[kind]

    def raise_half_way(machine, fact, now):
        rule.apply(machine, fact, now)
        if machine.run.run_id == "poison":
            raise AssertionError("a contradiction")

    monkeypatch.setitem(machine_module._RULES, kind, replace(rule, apply=raise_half_way))


async def join_run(server: Server, run_id: str, *names: str) -> None:
    for name in names:
        join = a_join(name, settings=settings_of("2", max_restarts=3), explicit_run_id=True, run_id=run_id)
        await server.driver.submit(run_id, NodeJoined(join, "10.0.0.9"))


def told(server: Server, run_id: str, name: str):
    return server.registry.machine_of(run_id, name).directive_for(name, server.driver.now())[1]


async def two_runs(server: Server) -> None:
    await join_run(server, "poison", "a", "b")
    await join_run(server, "other", "a", "b")


async def poisoned_store(started: StartServer) -> MemoryStore:
    """Records of two runs, one of which has a failure that a broken core cannot replay."""
    store = MemoryStore()
    server = await started(store)
    await two_runs(server)
    await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    await server.driver.stop()
    return store


async def test_an_error_in_one_run_sets_it_apart_and_the_others_notice_nothing(server, monkeypatch):
    await two_runs(server)
    breaks(monkeypatch, WorkersFailed)
    for _ in range(2):  # its agent tries again
        with pytest.raises(ServerUnavailable, match="set apart after an error inside rdzv-server"):
            await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "poison", "a"), Start), "as was written: no stop"
    await server.driver.submit("poison", LeaseRenewed("a"))
    server.driver.notify("poison", AgentDisconnected("b"))
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "other", "b"), Stop)
    assert server.registry.runs_apart == ["poison"] and server.registry.next_deadline() is not None
    poison = server.registry.attempts_of("poison")[0]
    assert run_view.phase(poison) == "unhealthy" and "a contradiction" in run_view.reason(poison, 0.0)
    assert not poison.departures
    events = await server.store.read_events("poison", 1, 0, 100)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "warning"


async def test_an_agent_without_a_directive_in_the_records_waits(server, monkeypatch):
    breaks(monkeypatch, NodeJoined)
    await join_run(server, "poison", "a")
    machine = server.registry.machine_of("poison", "a")
    assert not machine.has_news("a", 0) and isinstance(told(server, "poison", "a"), Wait)


async def test_a_deadline_that_raises_sets_its_run_apart(server, monkeypatch):
    await join_run(server, "poison", "a", "b")
    breaks(monkeypatch, NodeLost)
    server.driver.notify("poison", AgentDisconnected("b"))
    await server.driver.submit("poison", LeaseRenewed("a"))
    server.registry.pass_time(server.driver.now() + 1_000.0)
    assert server.registry.runs_apart == ["poison"]


async def test_a_snapshot_that_raises_sets_its_run_apart(server, monkeypatch):
    monkeypatch.setattr(compaction, "BEYOND", 3)
    monkeypatch.setattr(compaction, "FACTOR", 0)
    take = snapshot.take
    monkeypatch.setattr(snapshot, "take", lambda run: 1 / 0 if run.run_id == "poison" else take(run))
    await two_runs(server)
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "other", "b"), Stop) and isinstance(told(server, "poison", "a"), Start)
    assert (await server.store.read_events("poison", 1, 0, 100))[-1].kind == "warning"


@pytest.mark.parametrize("broken", ["restart", "next_deadline"])
async def test_a_run_whose_core_raises_when_the_server_starts_is_set_apart(started, monkeypatch, broken):
    store = MemoryStore()
    first = await started(store)
    await two_runs(first)
    await first.driver.stop()
    whole = getattr(machine_module.RunMachine, broken)

    def raise_in_one_run(machine, *args):
        return 1 / 0 if machine.run.run_id == "poison" else whole(machine, *args)

    monkeypatch.setattr(machine_module.RunMachine, broken, raise_in_one_run)
    second = await started(store)
    assert second.registry.runs_apart == ["poison"]
    assert isinstance(told(second, "poison", "a"), Start) and isinstance(told(second, "other", "a"), Start)


async def test_a_join_that_crashes_its_run_sets_the_run_apart(server, monkeypatch):
    await two_runs(server)
    monkeypatch.setattr(new_attempts, "starts_new_attempt", lambda *_: 1 / 0)
    await join_run(server, "poison", "c")
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "poison", "c"), Wait) and isinstance(told(server, "poison", "a"), Start)


async def test_an_error_after_trouble_of_the_server_sets_its_run_apart(server):
    await two_runs(server)
    server.registry.machine_of("poison", "a").run.leases.resume = lambda *_: 1 / 0
    server.registry.resume(server.driver.now(), HoldUp(still_s=1.0))
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert server.registry.runs_apart == ["poison"]
    assert isinstance(told(server, "other", "b"), Stop) and isinstance(told(server, "poison", "a"), Start)


async def test_a_join_that_crashes_the_creation_of_its_run_is_refused_and_other_runs_continue(
    server, monkeypatch, caplog
):
    await join_run(server, "other", "a", "b")
    whole = admission.settings_of
    monkeypatch.setattr(admission, "settings_of", lambda join: 1 / 0 if join.run_id == "poison" else whole(join))
    for _ in range(2):  # its agent tries again
        with pytest.raises(ServerUnavailable, match="run poison cannot be created after an error inside rdzv-server"):
            await join_run(server, "poison", "a")
    assert "ZeroDivisionError" in caplog.text and [run.run_id for run in server.driver.runs()] == ["other"]
    await server.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(server, "other", "b"), Stop)


async def test_a_fixed_server_continues_a_run_that_was_set_apart(started, monkeypatch):
    store = MemoryStore()
    first = await started(store)
    await two_runs(first)
    with monkeypatch.context() as broken:
        breaks(broken, WorkersFailed)
        with pytest.raises(ServerUnavailable):
            await first.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    await first.driver.stop()
    second = await started(store)
    assert second.registry.runs_apart == []
    await second.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(told(second, "poison", "b"), Stop)


async def test_a_replay_that_raises_sets_its_run_apart(started, monkeypatch):
    store = await poisoned_store(started)
    breaks(monkeypatch, WorkersFailed)
    second = await started(store)
    assert second.registry.runs_apart == ["poison"]
    assert isinstance(told(second, "poison", "a"), Start), "as before the fact that raises"
    assert len(await store.read_records("poison", 1)) > 3, "they are kept"
    await second.driver.submit("other", WorkersFailed("a", 1, a_failure("a")))


async def test_a_run_that_is_set_apart_can_be_stopped_also_for_the_next_server(started, monkeypatch):
    store = await poisoned_store(started)
    breaks(monkeypatch, WorkersFailed)
    for _ in range(2):
        server = await started(store)
        await server.driver.act("poison", RunStopped("enough", "an operator", "request"))
        assert isinstance(told(server, "poison", "a"), Finish) and server.registry.runs_apart == []
        await server.driver.stop()


async def test_a_run_that_is_set_apart_can_be_forgotten(server, monkeypatch):
    await two_runs(server)
    breaks(monkeypatch, WorkersFailed)
    with pytest.raises(ServerUnavailable):
        await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    machine = server.registry.machine_of("poison", "a")
    await server.driver.act("poison", RunForgotten("", "an operator", "request", run_id="poison"))
    assert [run.run_id for run in server.driver.runs()] == ["other"]
    with pytest.raises(AgentFenced):
        machine.directive_for("a", 0.0)


async def test_an_observer_that_raises_over_one_runs_events_gets_those_of_the_others(server, caplog):
    seen = []

    def odd_observer(effect):
        if isinstance(effect, EmitEvent):
            if effect.event.run_id == "poison":
                raise KeyError("odd")
            seen.append(effect.event)

    server.driver.observers.add(odd_observer)
    await asyncio.gather(two_runs(server), join_run(server, "third", "c", "d"))  # events of several runs in a batch
    written = {run_id: await server.store.read_events(run_id, 1, 0, 100) for run_id in ("poison", "other", "third")}
    assert {run_id: [event for event in seen if event.run_id == run_id] for run_id in written} == {
        **written,
        "poison": [],
    }
    assert server.driver.observers.failed_runs == ["poison"]
    assert server.driver.measurements.event_errors == len(written["poison"])
    logged = [record.getMessage() for record in caplog.records if "odd_observer missed" in record.getMessage()]
    assert len(logged) == 1 and "KeyError: 'odd'" in logged[0], "only the first error is logged"


async def test_a_run_that_is_forgotten_is_no_longer_named_for_its_event_errors(server, monkeypatch):
    server.driver.observers.add(lambda effect: effect.no_such_name)
    await two_runs(server)
    assert server.driver.observers.failed_runs == ["poison", "other"]
    breaks(monkeypatch, WorkersFailed)
    with pytest.raises(ServerUnavailable):
        await server.driver.submit("poison", WorkersFailed("a", 1, a_failure("a")))
    await server.driver.act("poison", RunForgotten("", "an operator", "request", run_id="poison"))
    assert server.driver.observers.failed_runs == ["other"]


async def test_after_an_error_of_all_runs_every_request_is_refused_at_once(started, monkeypatch):
    server = await started(MemoryStore())
    monkeypatch.setattr(Registry, "pass_time", lambda *_: 1 / 0)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match=pattern(words.cannot_continue, kind="ZeroDivisionError")):
                await server.join("a")
        with pytest.raises(ZeroDivisionError):
            await server.driver.crashed()


async def test_a_run_without_the_record_of_its_creation_is_named_as_damage_of_the_store(started):
    store = MemoryStore()
    server = await started(store)
    await two_runs(server)
    await server.driver.stop()
    del store._records["other", 1][0]
    with pytest.raises(StoreBroken) as raised:
        await started(store)
    assert str(raised.value) == storage_words.no_creation("other", 1)
