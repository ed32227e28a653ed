"""The server's time goes on, whatever happens to the server; what it could not hear is noticed."""

from collections.abc import AsyncIterator

import pytest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.effects import Record
from rdzv_server.core.events import JoinTimedOut, LeaseRenewed, Life, NodeJoined, RunCreated
from rdzv_server.core.machine import WALL_CLOCK_SLACK_S
from rdzv_server.core.registry import Registry
from rdzv_server.core.run import Stage
from rdzv_server.service import clock as clock_module
from rdzv_server.service.clock import BEAT_S, SLACK_S, Clock
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


async def test_it_is_the_event_loops(clock):
    assert clock.now() == 1_000.0
    clock.loop_s += BEAT_S
    assert clock.now() == 1_000.0 + BEAT_S


# Held up.


async def test_a_process_that_hangs_is_held_up_once(clock):
    clock.loop_s += 3_600.0
    assert clock.now() == 1_000.0 + 3_600.0, "time goes on"
    assert clock.was_held_up()
    clock.loop_s += SLACK_S
    assert not clock.was_held_up()


async def test_a_hang_that_the_beat_finds_is_not_forgotten(clock):
    clock.loop_s += 3_600.0
    clock._beat()
    assert clock.was_held_up()


async def test_delays_of_a_busy_server_are_no_hang(clock):
    clock.loop_s += BEAT_S + SLACK_S
    assert not clock.was_held_up()


@pytest.mark.parametrize(("took_s", "is_long"), [(SLACK_S, False), (2 * SLACK_S, True)])
async def test_a_write_that_takes_long_holds_it_up(clock, took_s, is_long):
    with clock.writing():
        clock.loop_s += took_s
    assert clock.was_held_up() is is_long


# The wall clock.


async def test_the_wall_clock_is_told_at_first_and_when_it_was_set(clock):
    assert clock.wall_clock_set() == 1_000.0 + WALL_AT
    clock.loop_s += 3_600.0
    clock.wall_ahead_s += WALL_CLOCK_SLACK_S
    assert clock.wall_clock_set() is None
    clock.wall_ahead_s -= 3_600.0
    assert clock.wall_clock_set() == clock.loop_s + clock.wall_ahead_s
    assert clock.wall_clock_set() is None


# Lives.

LAST = Record(RUN_ID, 1, 110.0, JoinTimedOut())


def created(boot_id: str, offset_s: float = 0.0, wall_at: float = WALL_AT) -> Record:
    settings = RunSettings(min_nodes=1, max_nodes=1)
    return Record(RUN_ID, 1, 100.0, RunCreated(RUN_ID, 1, True, settings, wall_at, Life(boot_id, offset_s)))


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
def test_time_goes_on_between_two_lives(first, monotonic_s, wall_s, now):
    life = clock_module._life([first, LAST], "this", monotonic_s, wall_s)
    assert monotonic_s + life.offset_s == pytest.approx(now)


def test_a_first_life_has_the_time_of_its_machine():
    assert clock_module._life([], "this", 90.0, WALL_AT) == Life("this", 0.0)


@pytest.mark.parametrize("crashes_every_s", [3.0, 7.0, 15.0])
def test_however_often_the_server_crashes_a_join_times_out_in_time(crashes_every_s):
    """One agent is there again after each restart; the other one never comes."""
    registry, records, loop_s, next_crash = Registry(60.0), [], 50.0, 50.0 + crashes_every_s
    registry.restart(loop_s, Life("this"))
    settings = settings_of("2", join_timeout_s=20.0, lease_s=10.0)

    def note(effects):
        records.extend(effect for effect in effects if isinstance(effect, Record))

    note(registry.handle(RUN_ID, NodeJoined(a_join("a", settings=settings), SERVER_ADDR), loop_s)[1])
    while registry.runs()[0].stage is Stage.FORMING:
        loop_s += 0.5
        life = clock_module._life(records, "this", loop_s, WALL_AT)
        if loop_s >= next_crash:
            registry, next_crash = Registry(60.0), loop_s + crashes_every_s
            for record in records:
                registry.replay(record)
            registry.restart(loop_s + life.offset_s, life)
        note(registry.pass_time(loop_s + life.offset_s))
        note(registry.handle(RUN_ID, LeaseRenewed("a"), loop_s + life.offset_s)[1])
    assert loop_s == 70.0
