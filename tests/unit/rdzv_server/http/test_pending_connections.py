"""Opening of connections: nothing is read, and no transport is made, before the peer's turn."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from unittest.mock import Mock

import pytest

from rdzv_server.http.pending_connections import PendingConnection, SilentPeers

PATIENCE_S = 20.0


class Accepted:
    """An accepted connection, and what happens to it."""

    def __init__(self, turns: "asyncio.Queue[tuple[str, Callable[[], None]]]") -> None:
        self.turns = turns
        self.peer, self.accepted = socket.socketpair()
        self.first: list[bytes] = []
        self.gone = 0
        self.silent = SilentPeers(Mock(ask=lambda of, do, **_: turns.put_nowait((of, do))))
        self.opening = PendingConnection(self.accepted, "peer", self.silent, _peek, self.first.append, self._gone)
        self.opening.begin()

    def _gone(self) -> None:
        self.gone += 1

    async def take_turn(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            of, take = await self.turns.get()
        assert of == "new peer", "beside the requests of the peer's open connections"
        take()


def _peek(accepted: socket.socket) -> bytes:
    return accepted.recv(1, socket.MSG_PEEK)


@pytest.fixture
async def accepted() -> AsyncIterator[Accepted]:
    accepted = Accepted(asyncio.Queue())
    yield accepted
    accepted.silent.close()
    accepted.peer.close()
    accepted.accepted.close()


async def test_a_connection_waits_for_its_first_byte_and_then_for_its_turn(accepted: Accepted) -> None:
    accepted.peer.send(b"GET /")
    assert not accepted.first
    await accepted.take_turn()
    assert accepted.first == [b"G"]
    assert accepted.accepted.recv(5) == b"GET /", "nothing has been read"
    assert not accepted.gone


async def test_a_peer_that_leaves_without_a_byte_is_gone(accepted: Accepted) -> None:
    accepted.peer.close()
    await accepted.take_turn()
    assert (accepted.gone, accepted.first, accepted.accepted.fileno()) == (1, [], -1)


async def test_a_connection_cancelled_while_it_waits_is_removed_at_once(accepted: Accepted) -> None:
    accepted.peer.send(b"GET /")
    async with asyncio.timeout(PATIENCE_S):
        _, take = await accepted.turns.get()
    accepted.opening.cancel()
    assert (accepted.gone, accepted.accepted.fileno()) == (1, -1)
    take()
    assert (accepted.gone, accepted.first) == (1, [])


async def test_a_connection_cancelled_before_its_task_begins_is_removed(accepted: Accepted) -> None:
    """Its time limit may end in the turn of the event loop in which it got its own turn."""
    began = False

    async def connect() -> None:
        nonlocal began
        began = True

    accepted.peer.send(b"GET /")
    await accepted.take_turn()
    accepted.opening.run(connect())
    accepted.opening.cancel()
    assert accepted.opening.task
    await asyncio.wait({accepted.opening.task}, timeout=PATIENCE_S)
    await asyncio.sleep(0)  # for what follows a task's end
    assert (began, accepted.gone, accepted.accepted.fileno()) == (False, 1, -1)


async def test_cancelling_a_silent_connection_frees_its_descriptor(
    accepted: Accepted,
) -> None:
    number = accepted.accepted.fileno()
    accepted.opening.cancel()
    assert (accepted.gone, accepted.accepted.fileno()) == (1, -1)
    other = Accepted(accepted.turns)
    assert number in (other.peer.fileno(), other.accepted.fileno())
    other.peer.send(b"G")
    await other.take_turn()
    assert other.first == [b"G"]
    other.silent.close()
    other.peer.close()
    other.accepted.close()


async def test_an_evicted_connection_of_the_same_batch_is_not_read_and_the_others_are() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    silent, heard = SilentPeers(Mock()), list[int]()
    everyone_else, errors = asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    def hear(number: int) -> None:
        if not heard:  # the first that is heard takes the next one's place
            silent.forget(pairs[(number + 1) % 3][1])
        heard.append(number)
        if len(heard) == 2:
            everyone_else.set()

    for number, (peer, accepted) in enumerate(pairs):
        silent.wait(accepted, lambda number=number: hear(number))
        peer.send(b"G")
    async with asyncio.timeout(PATIENCE_S):
        await everyone_else.wait()
    assert (heard[0] + 1) % 3 not in heard and not errors
    silent.close()
    for end in (end for pair in pairs for end in pair):
        end.close()
