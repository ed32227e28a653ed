"""The network test of two nodes, over loopback: its figures, and that strangers at the port cannot disturb it."""

import asyncio
import socket
from contextlib import suppress

from rdzv_protocol.queries import PAIR_TEST_BYTES, PairTest, PairTested

from node_agent.features.checks import network, words
from node_agent.features.checks.network import MOST_UNAUTHENTICATED, measure
from tests.support.message_search import has_message

NONCE = "0123456789abcdef" * 2
LEAST = 0.1
"""MB/s that loopback reaches on any machine."""


def query(port: int, *, listens: bool, nonce: str = NONCE, limit_s: float = 30.0) -> PairTest:
    peer = "b" if listens else "a"
    known = {"number": 1, "round": 0, "remaining_s": limit_s, "limit_s": limit_s, "addr": "127.0.0.1"}
    return PairTest(listens=listens, peer=peer, port=port, nonce=nonce, **known)


async def both(port: int, least: float = LEAST, **changes) -> tuple[PairTested, PairTested]:
    tests = (measure(query(port, listens=listens, **changes), least) for listens in (True, False))
    listened, connected = await asyncio.gather(*tests)
    return listened, connected


async def test_two_nodes_measure_the_network_between_them_at_the_reserved_port(unused_tcp_port: int) -> None:
    for _ in range(2):  # the port is free again after the test, for the workers and for a second test
        listened, connected = await both(unused_tcp_port)
        assert (listened.problem, connected.problem) == ("", "")
        assert listened.mb_per_s > LEAST and connected.mb_per_s > LEAST
        assert 0 < connected.latency_s < 10 and listened.latency_s == 0
    with socket.create_server(("", unused_tcp_port)) as store:
        assert store.getsockname()[1] == unused_tcp_port


async def test_a_slow_network_is_given_up_when_it_can_no_longer_reach_the_limit(unused_tcp_port: int) -> None:
    listened, connected = await both(unused_tcp_port, least=1e7)
    assert has_message(listened.problem, words.too_little, peer="b", least_mb_per_s=1e7)
    assert connected.problem


async def test_the_other_node_does_not_connect_or_does_not_listen(unused_tcp_port: int) -> None:
    listened = await measure(query(unused_tcp_port, listens=True, limit_s=0.4), LEAST)
    connected = await measure(query(unused_tcp_port, listens=False, limit_s=0.4), LEAST)
    at = f"127.0.0.1:{unused_tcp_port}"
    assert listened.problem == words.no_connection("b", at, 0.2)
    assert connected.problem == words.no_answer("a", at, 0.2)


async def test_a_peer_that_dies_amid_the_test(unused_tcp_port: int) -> None:
    listening = asyncio.create_task(measure(query(unused_tcp_port, listens=True), LEAST))
    reader, writer = await connected_to(unused_tcp_port)
    writer.write(NONCE.encode() + b"\0")
    assert await reader.readexactly(1) == b"\0"
    writer.close()
    answer = await listening
    assert has_message(answer.problem, words.broke, peer="b")


async def connected_to(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect without knowing the nonce, as soon as the port accepts connections."""
    while True:
        with suppress(ConnectionRefusedError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)


async def test_connections_without_the_nonce_are_dropped_and_do_not_delay_the_test(unused_tcp_port: int) -> None:
    listening = asyncio.create_task(measure(query(unused_tcp_port, listens=True), LEAST))
    unauthenticated = [await connected_to(unused_tcp_port) for _ in range(2 * MOST_UNAUTHENTICATED)]
    reader, writer = unauthenticated[-1]
    writer.write(b"x" * len(NONCE))
    assert await reader.read() == b"", "it gets nothing"
    assert (await measure(query(unused_tcp_port, listens=False), LEAST)).problem == ""
    assert (await listening).problem == ""
    for reader, writer in unauthenticated:
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_only_the_first_connection_with_the_nonce_is_taken_and_reads_are_bounded(
    monkeypatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(network, "NONCE_S", 5.0)
    listening = asyncio.create_task(measure(query(unused_tcp_port, listens=True), LEAST))
    reader, writer = await connected_to(unused_tcp_port)
    writer.write(NONCE.encode() + bytes(network.PAIR_TEST_PINGS + PAIR_TEST_BYTES))
    await reader.readexactly(network.PAIR_TEST_PINGS + PAIR_TEST_BYTES)
    late = asyncio.create_task(measure(query(unused_tcp_port, listens=False, limit_s=0.4), LEAST))
    assert has_message((await late).problem, words.no_answer, peer="a")
    writer.write(b"\0")
    assert (await listening).problem == ""
    writer.close()
