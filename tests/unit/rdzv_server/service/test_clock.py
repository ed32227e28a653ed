"""The server's time goes on while the server does."""

from collections.abc import AsyncIterator

import pytest

from rdzv_server.service.clock import BEAT_S, SLACK_S, Clock


class Scripted(Clock):
    """A clock in an event loop whose time the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_s = 1_000.0

    def _loop_s(self) -> float:
        return self.loop_s


@pytest.fixture
async def clock() -> AsyncIterator[Scripted]:
    clock = Scripted()
    clock.start(None)
    yield clock
    clock.stop()


async def test_it_is_the_event_loops(clock):
    assert clock.tick() == clock.now() == 1_000.0
    clock.loop_s += BEAT_S
    assert clock.tick() == 1_000.0 + BEAT_S


async def test_it_goes_on_from_the_life_before():
    clock = Scripted()
    clock.start(7.0)
    clock.loop_s += BEAT_S
    assert clock.tick() == 7.0 + BEAT_S
    clock.stop()


async def test_it_stands_still_while_the_process_hangs(clock):
    clock.loop_s += 3_600.0
    assert clock.tick() == 1_000.0 + BEAT_S
    clock.loop_s += SLACK_S
    assert clock.tick() == 1_000.0 + BEAT_S + SLACK_S, "each hang counts once"


async def test_delays_of_a_busy_server_are_time(clock):
    clock.loop_s += BEAT_S + SLACK_S
    assert clock.tick() == 1_000.0 + BEAT_S + SLACK_S


async def test_it_stands_still_while_a_write_takes_long(clock):
    before = clock.tick()
    with clock.writing():
        clock._beat()
        clock.loop_s += BEAT_S
        clock._beat()
        clock.loop_s += BEAT_S
    assert clock.now() == before


async def test_short_writes_take_time(clock):
    with clock.writing():
        clock.loop_s += SLACK_S
    assert clock.tick() == 1_000.0 + SLACK_S


async def test_a_process_that_hangs_while_it_writes_loses_the_time_once(clock):
    before = clock.tick()
    with clock.writing():
        clock.loop_s += 3_600.0
        clock._beat()
    assert before <= clock.tick() <= before + BEAT_S


async def test_decisions_never_go_back_in_time(clock):
    with clock.writing():
        for _ in range(4):
            clock._beat()
            clock.loop_s += SLACK_S
        latest = clock.tick()
    assert clock.now() < latest == clock.tick()
