"""Opening of connections: nothing is read, and no transport is made, before the peer's turn."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from unittest.mock import Mock

import pytest

from rdzv_server.http.pending_connections import PendingConnection

PATIENCE_S = 20.0


class Accepted:
    """An accepted connection, and what happens to it. `number`: its descriptor, if one of the pair has it."""

    def __init__(self, turns: "asyncio.Queue[tuple[str, Callable[[], None]]]", number: int | None = None) -> None:
        self.turns = turns
        self.accepted, self.peer = sorted(socket.socketpair(), key=lambda end: end.fileno() != number)
        self.first: list[bytes] = []
        self.gone = 0
        scheduler = Mock(ask=lambda of, do, **_: turns.put_nowait((of, do)))
        self.opening = PendingConnection(self.accepted, "peer", scheduler, _peek, self.first.append, self._gone)
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
    other = Accepted(accepted.turns, number)
    assert number == other.accepted.fileno()
    other.peer.send(b"G")
    await other.take_turn()
    assert other.first == [b"G"]
    other.peer.close()
    other.accepted.close()


async def test_an_evicted_connection_of_the_same_batch_is_not_read_and_the_others_are() -> None:
    turns: asyncio.Queue[tuple[str, Callable[[], None]]] = asyncio.Queue()
    made = [Accepted(turns) for _ in range(3)]
    read = asyncio.get_running_loop().create_future()
    errors = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    def evict(first: bytes) -> None:  # the first that is read takes the next one's place
        made[1].opening.cancel()

    made[0].opening._ready = evict
    made[2].opening._ready = read.set_result
    for each in made:
        each.peer.send(b"G")
    async with asyncio.timeout(PATIENCE_S):
        while not read.done():
            _, take = await turns.get()
            take()
    assert (made[1].gone, made[1].first) == (1, []) and not errors
    for each in made:
        each.peer.close()
        each.accepted.close()
