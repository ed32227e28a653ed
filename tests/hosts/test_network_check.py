"""The server's test pairs find a node with a bad link, which is then excluded: real agents on separate hosts."""

import json
import re
import sys

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent.features.checks import words as check_words
from rdzv_server.core.policies.network_check import words
from tests.hosts.cluster import Hosts
from tests.hosts.network import DEVICE
from tests.hosts.switch import Switch
from tests.support.message_search import pattern
from tests.support.programs import WORKER, Program

pytestmark = pytest.mark.hosts

FAULTS = {
    "a cable that loses 30 %": Switch.spoil,
    "a firewall that lets nothing but the server through": lambda switch, host: [
        switch.cut(other, host) for other in "abc" if other != host
    ],
}
JUMBO = 9_000
"""Bytes of the largest packet. The switch is a Python program, so with small packets a good link may be too slow."""
FLAGS = ("--nnodes", "2:3", "--run-id", "r", "--check", "network=2", "--last-call-timeout", "12", "--lease", "60")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_node_with_a_bad_link_is_named_and_the_others_continue(hosts: Hosts, fault) -> None:
    hosts.script = WORKER
    fault(hosts.switch, "b")
    for name in "abc":
        hosts.network[name].namespace.configure(f"link set {DEVICE} mtu {JUMBO}")
        await hosts.node(name, *FLAGS)
    workers = await hosts.hub.group(2)
    bad = hosts.agents.pop("b")
    assert await bad.exit_code() == ExitCode.NODE_UNFIT
    said = pattern(words.unfit, node_id="b")
    assert any(re.search(f"error: {said}", line) for line in bad.err), bad.err
    events = json.loads(await hosts.server.get("/v1/runs/r/events"))["events"]
    (unfit,) = [event for event in events if event["kind"] == "node_unfit"]
    assert unfit["node_id"] == "b" and re.match(said, unfit["reason"])
    assert not [event for event in events if event["kind"] == "warning"]
    hosts.switch.heal()
    await hosts.finish(workers)


async def test_why_names_the_port_that_a_firewall_drops(hosts: Hosts) -> None:
    """Two nodes reach the server and not each other: the run starts, and its workers cannot meet."""
    hosts.script = WORKER
    for source, target in ("ab", "ba"):
        hosts.switch.cut(source, target)
    for name in "ab":
        await hosts.node(name, "--nnodes", "2", "--run-id", "r", "--check", "network", "--lease", "60")
    workers = await hosts.hub.group(2)
    command = (sys.executable, "-m", "rdzvctl", "--endpoint", hosts.server.endpoint, "why", "r")
    why = await hosts.network["s"].start(Program, *command, env={"COLUMNS": "1000"})
    assert await why.exit_code() == 0, why.err
    (run,) = (await hosts.server.status())["runs"]
    (link,) = run["broken_links"]
    assert set(link["nodes"]) == {"a", "b"}
    listens = next(node for node in run["nodes"] if f"{node['addr']}:{node['port']}" in link["problem"])
    said = check_words.no_answer(listens["node_id"], f"{listens['addr']}:{listens['port']}", 4.0)
    assert any(said in line for line in why.out), why.out
    assert any(line == f"Next: {words.MEND_LINK}" for line in why.out), why.out
    hosts.switch.heal()
    await hosts.finish(workers)
