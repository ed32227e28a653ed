"""Networks that lose, delay and swallow packets. The workers do not use the network, so only our part is measured."""

import asyncio
import os
import signal
import sys
import time

import pytest
from rdzv_protocol import paths

from tests.hosts.cluster import Hosts
from tests.hosts.conftest import Note
from tests.hosts.results import STARTING_S
from tests.support.programs import PATIENCE_S, WORKER, Program
from tests.support.worker_hub import Worker

pytestmark = pytest.mark.hosts

DELAY_S = 0.5
ROUND_TRIP_S = 2 * DELAY_S
LOSSY_S = 10.0
"""Lost packets are sent again after 0.2 s or more, an attempt to connect after 1 s. A first round takes three
exchanges, a restart four, and each may lose a packet in both directions."""

MTU = 1280
ONE_MORE = ("--nnodes", "3", "--max-restarts", "3")


@pytest.fixture
def plain(hosts: Hosts) -> Hosts:
    hosts.script = WORKER
    return hosts


async def a_worker_dies(hosts: Hosts, workers: list[Worker]) -> tuple[list[Worker], float]:
    """Kill a worker. Return the next round's workers, and how long it took until all were there."""
    began = time.monotonic()
    os.kill(workers[-1].pid, signal.SIGKILL)
    again = await hosts.hub.group(len(workers))
    return again, time.monotonic() - began


async def test_a_network_that_loses_30_percent(plain: Hosts, note: Note) -> None:
    plain.switch.lose_three_of_ten()
    began = time.monotonic()
    first = await plain.nodes("abc", *ONE_MORE)
    formed_s = time.monotonic() - began
    second, took_s = await a_worker_dies(plain, first)
    await plain.ends(second, worker_failure=1)
    because = "up to eight packets are sent again, after 0.2 s to 1 s each"
    note("30 % loss: the first round", formed_s, LOSSY_S, because)
    note("30 % loss: a worker dies", took_s, LOSSY_S, because)


async def test_a_network_with_a_delay_of_500_ms(plain: Hosts, note: Note) -> None:
    plain.switch.delay(DELAY_S)
    began = time.monotonic()
    first = await plain.nodes("abc", *ONE_MORE, "--lease", "5")
    formed_s = time.monotonic() - began
    second, took_s = await a_worker_dies(plain, first)
    await plain.ends(second, worker_failure=1)
    note("500 ms delay each way: the first round", formed_s, 3 * ROUND_TRIP_S, "three round trips: ARP, connect, join")
    because = "five round trips: connect, report, stop and its receipt (a poll may be under way), join"
    note("500 ms delay each way: a worker dies", took_s, 5 * ROUND_TRIP_S, because)


async def test_a_black_hole_for_large_packets_does_not_affect_small_messages(plain: Hosts, note: Note) -> None:
    plain.switch.swallow_above(MTU)
    first = await plain.nodes("abc", *ONE_MORE)
    second, took_s = await a_worker_dies(plain, first)
    await plain.ends(second, worker_failure=1)
    fault = f"packets above {MTU} bytes are swallowed: a worker dies"
    note(fault, took_s, 0.0, "a message is usually one small packet")


async def test_a_status_of_several_packets_gets_through_a_black_hole(plain: Hosts) -> None:
    """Other clients than agents do not limit their packets themselves."""
    workers = await plain.nodes("abc", *ONE_MORE)
    plain.switch.swallow_above(MTU)
    url = f"http://{plain.server.endpoint}{paths.STATUS}"
    code = f"import urllib.request as u; print(len(u.urlopen({url!r}, timeout={PATIENCE_S}).read()))"
    client = await plain.network["a"].start(Program, sys.executable, "-c", code)
    assert await client.exit_code() == 0
    assert int(client.out[0]) > 2 * MTU
    await plain.finish(workers)


async def test_a_report_of_several_packets_gets_through_a_black_hole(plain: Hosts, note: Note) -> None:
    plain.switch.swallow_above(MTU)
    first = await plain.nodes("abc", *ONE_MORE)
    for line in range(30):
        await first[2].tell(f"complain {line} {'x' * 300}")
    began = time.monotonic()
    first[2].order_exit(3)
    async with asyncio.timeout(2 * STARTING_S):
        second = await plain.hub.group(3)
    took_s = time.monotonic() - began
    await plain.ends(second, worker_failure=1)
    note("the same after it wrote 9 KB of errors", took_s, 0.0, "our connections send no larger packets")
