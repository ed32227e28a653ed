"""A node with a bad link is found by the pairs that the server makes, and kept out: real agents on their own hosts."""

import json

import pytest
from rdzv_protocol.exit_codes import ExitCode

from tests.hosts.cluster import Hosts
from tests.hosts.switch import Switch
from tests.support.programs import WORKER

pytestmark = pytest.mark.hosts

FAULTS = {
    "a cable that loses 30 %": Switch.spoil,
    "a firewall that lets nothing but the server through": lambda switch, host: [
        switch.cut(other, host) for other in "abc" if other != host
    ],
}
FLAGS = ("--nnodes", "2:3", "--run-id", "r", "--check", "network=2", "--last-call-timeout", "12", "--lease", "60")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_node_with_a_bad_link_is_named_and_the_others_go_on(hosts: Hosts, fault) -> None:
    hosts.script = WORKER
    fault(hosts.switch, "b")
    for name in "abc":
        await hosts.node(name, *FLAGS)
    workers = await hosts.hub.group(2)
    bad = hosts.agents.pop("b")
    assert await bad.exit_code() == ExitCode.NODE_UNFIT
    said = "node b is unfit: its network test failed with node "
    assert any(f"error: {said}" in line for line in bad.err), bad.err
    events = json.loads(await hosts.server.get("/v1/runs/r/events"))["events"]
    (unfit,) = [event for event in events if event["kind"] == "node_unfit"]
    assert unfit["node_id"] == "b" and unfit["reason"].startswith(said)
    assert not [event for event in events if event["kind"] == "warning"]
    hosts.switch.heal()
    await hosts.finish(workers)
