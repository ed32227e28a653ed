"""A host that vanishes: switched off, with no FIN and no last word, for ever."""

import time

import pytest

from tests.hosts.cluster import CHECKPOINT_EVERY, Hosts, host_of
from tests.hosts.conftest import Note
from tests.hosts.results import Recovery
from tests.support.programs import TORCH_WORKER

pytestmark = pytest.mark.hosts

LEASE_S = 1.5
KEEP_ALIVE_S, GRACE_S = 9.0, 1.0


async def test_the_others_go_on_when_its_lease_ends(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", "--lease", str(LEASE_S))
    await first[0].tell("steps 15")
    began = time.monotonic()
    await hosts.vanish(host_of(first[0]))
    second = await hosts.hub.group(2)
    took_s = time.monotonic() - began
    await hosts.finish(second)
    assert await hosts.restarts() == {"node_lost": 1}
    (steps_again,) = hosts.lost_steps()
    assert steps_again < CHECKPOINT_EVERY
    note(
        Recovery(
            fault="the host of rank 0 vanishes without FIN",
            took_s=took_s,
            allowed_s=LEASE_S,
            because=f"lease of {LEASE_S:g} s",
            steps_again=steps_again,
        )
    )


async def test_a_spare_takes_its_place(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("ab", "--nnodes", "2", "--lease", str(LEASE_S))
    await (await hosts.node("c", "--nnodes", "2")).line("standing by: round 1 has its 2 nodes")
    await first[0].tell("steps 15")
    began = time.monotonic()
    await hosts.vanish(host_of(first[1]))
    second = await hosts.hub.group(2)
    took_s = time.monotonic() - began
    assert {host_of(worker) for worker in second} == {host_of(first[0]), "c"}
    await hosts.finish(second)
    assert await hosts.restarts() == {"node_lost": 1}
    (steps_again,) = hosts.lost_steps()
    assert steps_again < CHECKPOINT_EVERY
    note(
        Recovery(
            fault="a host vanishes and a spare takes its place",
            took_s=took_s,
            allowed_s=LEASE_S,
            because=f"lease of {LEASE_S:g} s",
            steps_again=steps_again,
        )
    )


async def test_with_a_long_lease_tcp_finds_it(hosts: Hosts, note: Note) -> None:
    first = await hosts.nodes("abc", "--nnodes", "2:3", "--lease", "60")
    await first[0].tell("steps 15")
    began = time.monotonic()
    await hosts.vanish(host_of(first[2]))
    second = await hosts.hub.group(2)
    took_s = time.monotonic() - began
    await hosts.finish(second)
    assert await hosts.restarts() == {"node_lost": 1}
    (steps_again,) = hosts.lost_steps()
    assert steps_again < CHECKPOINT_EVERY
    note(
        Recovery(
            fault="a host vanishes, and the lease is 60 s",
            took_s=took_s,
            allowed_s=KEEP_ALIVE_S + GRACE_S,
            because=f"TCP keep-alive {KEEP_ALIVE_S:g} s, `--disconnect-grace` {GRACE_S:g} s",
            steps_again=steps_again,
        )
    )


@pytest.mark.torch
async def test_workers_with_torch_that_wait_for_it_are_stopped(hosts: Hosts, note: Note) -> None:
    pytest.importorskip("torch")
    hosts.script = TORCH_WORKER
    first = await hosts.nodes("ab", "--nnodes", "1:2", "--lease", str(LEASE_S))
    began = time.monotonic()
    await hosts.vanish(host_of(first[0]))
    await first[1].gone()
    stopped_s = time.monotonic() - began
    second = await hosts.hub.group(1)
    await hosts.finish(second)
    assert await hosts.restarts() == {"node_lost": 1}
    note(
        Recovery(
            fault="a host vanishes, with torch and gloo: the others are stopped",
            took_s=stopped_s,
            allowed_s=LEASE_S,
            because=f"lease of {LEASE_S:g} s",
        )
    )
