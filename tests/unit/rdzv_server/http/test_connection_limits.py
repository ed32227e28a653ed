"""Memory for peers is bounded: for each, and for all together. The oldest gives way."""

import pytest

from rdzv_server.http.connection_limits import EACH_BYTES, HeldMemory


@pytest.fixture
def freed() -> list[str]:
    return []


@pytest.fixture
def held(freed: list[str]) -> HeldMemory[str]:
    return HeldMemory(10 * EACH_BYTES, freed.append)


def test_the_oldest_of_a_peer_gives_way_once_the_peer_has_half(held: HeldMemory[str], freed: list[str]) -> None:
    held.add("other", "x", 0)
    for name in "abcde":
        held.add("one", name, 0)
    assert freed == []
    held.add("one", "f", 0)
    assert freed == ["a"]


def test_the_oldest_of_all_gives_way_once_the_peers_together_have_too_much(
    held: HeldMemory[str], freed: list[str]
) -> None:
    for number in range(11):
        held.add(f"peer {number}", f"{number}", 0)
    assert freed == ["0"]


def test_a_growing_request_is_counted_once_with_all_its_bytes(held: HeldMemory[str], freed: list[str]) -> None:
    for _ in range(4):
        held.add("one", "a", EACH_BYTES)
    assert freed == []
    held.add("one", "a", 1)
    assert freed == ["a"], "also if nothing else is held"
    held.remove("a")
    held.add("one", "b", 4 * EACH_BYTES)
    assert freed == ["a"]


def test_released_memory_does_not_count(held: HeldMemory[str], freed: list[str]) -> None:
    for number in range(100):
        held.add("one", f"{number}", EACH_BYTES)
        held.remove(f"{number}")
    assert freed == []
