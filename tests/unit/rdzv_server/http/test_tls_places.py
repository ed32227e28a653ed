"""Places of TLS connections: few at a time, half of them for one peer. Peers take turns, and stale ones give way."""

import asyncio
from functools import partial

import pytest

from rdzv_server.http.tls import Places

PATIENCE_S = 20.0
NEVER_S = 1_000.0


class Asked:
    """Requested places, and the names of the peers that have got one."""

    def __init__(self, most: int) -> None:
        self.places = Places[str](most, NEVER_S, lambda _: None)
        self.given: list[str] = []

    def enter(self, peer: str, *names: str) -> None:
        for name in names:
            self.places.enter(peer, name, partial(self.given.append, name))


async def test_one_peer_has_half_and_others_do_not_wait_for_it() -> None:
    asked = Asked(4)
    asked.enter("one", "a", "b", "c")
    asked.enter("other", "x", "y")
    assert asked.given == ["a", "b", "x", "y"]
    asked.places.leave("other", "x")
    assert "c" not in asked.given, "the place is not for a peer that has its half"
    asked.places.leave("one", "a")
    assert asked.given[-1] == "c"


async def test_peers_that_wait_take_turns() -> None:
    asked = Asked(4)
    asked.enter("one", "a", "b")
    asked.enter("other", "x", "y")
    asked.enter("crowd", "1", "2")
    asked.enter("late", "z")
    asked.places.leave("one", "a")
    asked.places.leave("other", "x")
    assert asked.given[4:] == ["1", "z"]


async def test_a_handshake_that_ends_while_it_waits_frees_its_place() -> None:
    asked = Asked(2)
    asked.enter("one", "a", "gone", "last")
    asked.places.leave("one", "gone")
    asked.places.leave("one", "a")
    assert asked.given == ["a", "last"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_stale_handshake_is_closed_if_another_waits(waits: bool) -> None:
    evicted: list[str] = []

    def evict(name: str) -> None:
        evicted.append(name)
        places.leave("one", name)

    places = Places[str](2, 0.05, evict)
    places.enter("one", "a", lambda: None)
    given = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S):
        if waits:
            places.enter("one", "b", given.set)
            await given.wait()
        else:
            await asyncio.sleep(0.3)
    assert evicted == (["a"] if waits else [])
