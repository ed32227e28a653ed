"""The server's event loop takes turns, and knows whether it keeps up."""

import asyncio
import selectors
import socket

import pytest

from rdzv_server.clock import SLACK_S, Clock
from rdzv_server.fair_loop import PORTION, FairLoop, Sweeps, fair_loop

SOCKETS = 1_000


@pytest.fixture
def sweeps() -> Sweeps:
    return Sweeps(100.0)


def test_a_loop_that_waits_for_something_to_do_keeps_up(sweeps):
    sweeps.portion(100.0, 3_600.0, 1, SOCKETS)
    assert sweeps.held_up_s(3_600.0 + SLACK_S) == 0


def test_what_one_portion_takes_beyond_the_slack_holds_up(sweeps):
    sweeps.portion(100.0, 100.0, 1, SOCKETS)
    assert sweeps.held_up_s(105.0) == pytest.approx(5.0 - SLACK_S), "also before it is over"
    sweeps.portion(105.0, 200.0, 1, SOCKETS)
    assert sweeps.held_up_s(200.0) == pytest.approx(5.0 - SLACK_S)


def test_full_portions_count_together_until_every_socket_has_been_read(sweeps):
    portions = -(-SOCKETS // PORTION)
    for number in range(1, 2 * portions + 1):
        now = 100.0 + 0.1 * number
        sweeps.portion(now, now, PORTION, SOCKETS)
    assert sweeps.held_up_s(now) == pytest.approx(2 * (0.1 * portions - SLACK_S))


def test_a_portion_that_is_not_full_ends_a_sweep(sweeps):
    for second in range(100, 200):
        sweeps.portion(second, second, PORTION, SOCKETS)
        sweeps.portion(second + 0.2, second + 0.9, PORTION - 1, SOCKETS)
    assert sweeps.held_up_s(200.0) == 0


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll")
def test_others_get_their_turn_after_a_portion():
    read, read_in_a_turn = [], []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(3 * PORTION)]
        for ours, theirs in pairs:
            theirs.send(b"x")
            loop.add_reader(ours, lambda ours=ours: read.append(ours.recv(1)))
        while len(read) < len(pairs):
            before = len(read)
            await asyncio.sleep(0)
            read_in_a_turn.append(len(read) - before)
        for ours, theirs in pairs:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()

    with asyncio.Runner(loop_factory=fair_loop) as runner:
        assert isinstance(runner.get_loop(), FairLoop)
        runner.run(main())
    assert max(read_in_a_turn) <= PORTION


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll")
def test_the_servers_time_does_not_count_what_its_loop_is_behind(monkeypatch):
    """Else the leases of nodes that have spoken, and are not yet heard, would end."""

    async def main() -> float:
        clock = Clock()
        clock.start(None)
        before = clock.tick()
        sweeps = asyncio.get_running_loop()._portions.sweeps
        monkeypatch.setattr(sweeps, "_began", sweeps._began - 60.0)
        took_s = clock.tick() - before
        clock.stop()
        return took_s

    with asyncio.Runner(loop_factory=fair_loop) as runner:
        assert runner.run(main()) <= 0
