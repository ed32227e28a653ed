"""The server's clock always continues. The server notices times in which it could not hear."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.effects import Record
from rdzv_server.core.events import Incarnation, JoinTimedOut, LeaseRenewed, NodeJoined, RunCreated
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.kernel.machine import WALL_CLOCK_SLACK_S
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service import clock as clock_module
from rdzv_server.service.clock import BEAT_S, SLACK_S, Clock, starved_s
from tests.support.scenario import RUN_ID, SERVER_ADDR, WALL_AT, a_join, settings_of


class Scripted(Clock):
    """A clock in an event loop whose time the test sets."""

    def __init__(self) -> None:
        self.loop_s, self.wall_ahead_s = 1_000.0, WALL_AT
        super().__init__(lambda: self.loop_s + self.wall_ahead_s)

    def _loop_s(self) -> float:
        return self.loop_s


@pytest.fixture
async def clock() -> AsyncIterator[Scripted]:
    clock = Scripted()
    clock.start([])
    yield clock
    clock.stop()


async def test_the_services_clock_is_the_event_loops(clock):
    assert clock.now() == 1_000.0
    clock.loop_s += BEAT_S
    assert clock.now() == 1_000.0 + BEAT_S


# Held up.


async def test_a_process_that_hangs_is_held_up_once(clock):
    clock.loop_s += 3_600.0
    assert clock.now() == 1_000.0 + 3_600.0, "time continues"
    assert clock.held_up() == HoldUp(3_600.0 - BEAT_S, 3_600.0 - BEAT_S)
    clock.loop_s += SLACK_S
    assert clock.held_up() is None


async def test_a_hang_found_by_the_heartbeat_is_reported(clock):
    noticed = []
    clock.noticed = lambda: noticed.append(True)
    clock.loop_s += BEAT_S
    clock._beat()
    assert not noticed
    clock.loop_s += BEAT_S + 7.0
    clock._beat()
    assert noticed and clock.held_up() == HoldUp(7.0, 7.0)


@pytest.mark.parametrize(
    ("late_s", "waited_s", "still_s"),
    [(0.0, 1.5, 1.5), (0.0, SLACK_S, 0.0), (7.0, 7.25, 7.0), (7.0, 8.5, 8.5), (0.0, 0.0, 0.0), (0.0, 1.9, 1.5)],
    ids=["starved", "a little", "the same time twice", "late and starved", "neither", "starved all the time"],
)
async def test_a_process_that_waits_for_a_processor_is_held_up_for_as_long(
    clock, monkeypatch, late_s, waited_s, still_s
):
    """A machine may be busy with other programs, such as rank 0's: its server hears agents late."""
    monkeypatch.setattr(clock_module, "starved_s", lambda: clock._starved_s + waited_s)
    clock.loop_s += BEAT_S + late_s
    clock._beat()
    held_up = clock.held_up() or HoldUp()
    assert (held_up.still_s, held_up.silent_s) == pytest.approx((still_s, still_s))


def test_a_thread_that_has_to_wait_for_a_processor_knows_for_how_long() -> None:
    before, cpus = starved_s(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            while starved_s() < before + 0.2:
                sum(range(10_000))
        finally:
            for other in others:
                other.kill()
                other.wait()
    finally:
        os.sched_setaffinity(0, cpus)


async def test_delays_of_a_busy_server_are_not_a_hang(clock):
    for _ in range(100):
        clock.loop_s += BEAT_S + SLACK_S
        assert clock.held_up() is None
        clock._beat()


@pytest.mark.parametrize(("took_s", "held_up"), [(SLACK_S, None), (3.0, HoldUp(0.0, 3.0))])
async def test_a_write_that_takes_long_keeps_agents_waiting_but_does_not_stop_time(clock, took_s, held_up):
    for each_s in (took_s, 0.1):
        with clock.writing():
            clock.loop_s += each_s
            clock._beat_at = clock.loop_s + BEAT_S
    assert clock.held_up() == held_up


async def test_a_server_that_was_not_there_has_answered_no_agent_for_any_time(clock):
    clock.answered_nobody()
    assert clock.held_up() == HoldUp(0.0, float("inf"))
    assert clock.held_up() is None


# The wall clock.


async def test_the_wall_clock_is_reported_at_first_and_when_it_was_set(clock):
    assert clock.wall_clock_set() == 1_000.0 + WALL_AT
    clock.loop_s += 3_600.0
    clock.wall_ahead_s += WALL_CLOCK_SLACK_S
    assert clock.wall_clock_set() is None
    clock.wall_ahead_s -= 3_600.0
    assert clock.wall_clock_set() == clock.loop_s + clock.wall_ahead_s
    assert clock.wall_clock_set() is None


# Restarts of the server.

LAST = Record(RUN_ID, 1, 110.0, JoinTimedOut())


def created(boot_id: str, offset_s: float) -> Record:
    settings = RunSettings(min_nodes=1, max_nodes=1)
    return Record(RUN_ID, 1, 100.0, RunCreated(RUN_ID, 1, True, settings, WALL_AT, Incarnation(boot_id, offset_s)))


@pytest.mark.parametrize(
    ("first", "monotonic_s", "wall_s", "now"),
    [
        (created("this", 40.0), 90.0, WALL_AT, 130.0),
        (created("this", 40.0), 90.0, WALL_AT + 3_600, 130.0),
        (created("this", 40.0), 60.0, WALL_AT, 110.0),
        (created("another", 40.0), 5.0, WALL_AT + 25.0, 125.0),
        (created("another", 40.0), 5.0, WALL_AT - 3_600, 110.0),
    ],
    ids=["same boot", "wall clock jumped", "never back", "after a reboot", "reboot with a wrong clock"],
)
def test_time_continues_between_two_server_processes(first, monotonic_s, wall_s, now):
    incarnation = clock_module._incarnation([first, LAST], "this", monotonic_s, wall_s)
    assert monotonic_s + incarnation.offset_s == pytest.approx(now)


def test_the_first_server_process_uses_its_machines_clock():
    assert clock_module._incarnation([], "this", 90.0, WALL_AT) == Incarnation("this", 0.0)


@pytest.mark.parametrize("crashes_every_s", [3.0, 7.0, 15.0])
def test_however_often_the_server_crashes_a_join_times_out_in_time(crashes_every_s):
    """One agent is back after each restart. The other one never joins."""
    registry, records, loop_s, next_crash = Registry(60.0), [], 50.0, 50.0 + crashes_every_s
    registry.restart(loop_s, Incarnation("this"))
    settings = settings_of("2", join_timeout_s=20.0, lease_s=10.0)

    def note(effects):
        records.extend(effect for effect in effects if isinstance(effect, Record))

    note(registry.handle(RUN_ID, NodeJoined(a_join("a", settings=settings), SERVER_ADDR), loop_s)[1])
    while registry.runs()[0].stage is Stage.FORMING:
        loop_s += 0.5
        incarnation = clock_module._incarnation(records, "this", loop_s, WALL_AT)
        if loop_s >= next_crash:
            registry, next_crash = Registry(60.0), loop_s + crashes_every_s
            for record in records:
                registry.replay(record)
            registry.restart(loop_s + incarnation.offset_s, incarnation)
        note(registry.pass_time(loop_s + incarnation.offset_s))
        note(registry.handle(RUN_ID, LeaseRenewed("a"), loop_s + incarnation.offset_s)[1])
    assert loop_s == 70.0
