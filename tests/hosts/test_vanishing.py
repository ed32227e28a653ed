"""A host that vanishes: switched off forever, without FIN and without a last message."""

import time

import pytest

from rdzv_server.words import completion
from tests.hosts.cluster import Hosts, host_of
from tests.hosts.conftest import Note
from tests.support.cluster import ALL_COME
from tests.support.programs import TORCH_WORKER

pytestmark = pytest.mark.hosts

LEASE_S = 1.5
BY_LEASE = f"lease of {LEASE_S:g} s"
KEEP_ALIVE_S, GRACE_S = 9.0, 1.0


@pytest.mark.parametrize(
    ("fault", "rank", "lease_s", "allowed_s", "because"),
    [
        ("the host of rank 0 vanishes without FIN", 0, LEASE_S, LEASE_S, BY_LEASE),
        (
            *("a host vanishes, and the lease is 60 s", 2, 60.0, KEEP_ALIVE_S + GRACE_S),
            f"TCP keep-alive {KEEP_ALIVE_S:g} s, `--disconnect-grace` {GRACE_S:g} s",
        ),
    ],
    ids=["lease", "keep-alive"],
)
async def test_the_others_continue(
    hosts: Hosts, note: Note, fault: str, rank: int, lease_s: float, allowed_s: float, because: str
) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", *ALL_COME, "--lease", str(lease_s))
    await first[0].tell("steps 15")
    began = time.monotonic()
    await hosts.vanish(host_of(first[rank]))
    second = await hosts.hub.group(2)
    took_s = time.monotonic() - began
    note(fault, took_s, allowed_s, because, await hosts.ends(second, node_lost=1))


async def test_a_spare_takes_its_place(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("ab", "--nnodes", "2", "--lease", str(LEASE_S))
    await (await hosts.node("c", "--nnodes", "2")).line(completion.standby_full(1, 2))
    await first[0].tell("steps 15")
    began = time.monotonic()
    await hosts.vanish(host_of(first[1]))
    second = await hosts.hub.group(2)
    took_s = time.monotonic() - began
    assert {host_of(worker) for worker in second} == {host_of(first[0]), "c"}
    steps = await hosts.ends(second, node_lost=1)
    note("a host vanishes and a spare takes its place", took_s, LEASE_S, BY_LEASE, steps)


@pytest.mark.torch
async def test_workers_with_torch_that_wait_for_it_are_stopped(hosts: Hosts, note: Note) -> None:
    hosts.script = TORCH_WORKER
    first = await hosts.nodes("ab", "--nnodes", "1:2", *ALL_COME, "--lease", str(LEASE_S))
    began = time.monotonic()
    await hosts.vanish(host_of(first[0]))
    await first[1].gone()
    stopped_s = time.monotonic() - began
    await hosts.ends(await hosts.hub.group(1), node_lost=1)
    note("a host vanishes, with torch and gloo: the others are stopped", stopped_s, LEASE_S, BY_LEASE)
