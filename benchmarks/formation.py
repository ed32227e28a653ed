"""A round of many nodes, without a network: what the server's core and the encoding of its replies cost."""

import time
from functools import partial

from benchmarks.plan import Plan, interleaved
from benchmarks.results import Row
from protocol.codec import encode
from protocol.messages import JoinRequest, Reply, Start
from protocol.settings import RequestedSettings
from rdzv_server.core.events import NodeJoined
from rdzv_server.core.registry import Registry

NODES = (256, 1_000, 10_000)
REPEAT = 5
RUN_ID = "benchmark"


def measure(plan: Plan) -> list[Row]:
    """Seconds for the round, and microseconds a node: these should not grow with the number of nodes."""
    subjects = {f"{nodes} nodes": partial(_form, nodes) for nodes in NODES}
    samples = interleaved(subjects, min(plan.repeat, REPEAT), warm_up=True)
    rows: list[Row] = []
    for nodes, (name, taken) in zip(NODES, samples.items(), strict=True):
        each = [1e6 * seconds / nodes for seconds in taken]
        rows.append(Row(measurement="round", subject=name, unit="s", samples=taken))
        rows.append(Row(measurement="round, a node", subject=name, unit="µs", samples=each))
    return rows


def _form(nodes: int) -> float:
    joins = [NodeJoined(_join(number, nodes), "10.0.0.1") for number in range(nodes)]
    registry = Registry(retention_s=3_600.0)
    began_s = time.perf_counter()
    for second, joined in enumerate(joins):
        registry.handle(RUN_ID, joined, float(second) / nodes)
    for joined in joins:
        _reply(registry, joined.join.agent_id)
    return time.perf_counter() - began_s


def _join(number: int, nodes: int) -> JoinRequest:
    return JoinRequest(
        run_id=RUN_ID,
        agent_id=f"agent-{number}",
        node_id=f"node-{number}",
        after_round=0,
        addr=f"10.1.{number // 250}.{number % 250 + 1}",
        port=29_500,
        local_world_size=8,
        settings=RequestedSettings(min_nodes=nodes, max_nodes=nodes),
    )


def _reply(registry: Registry, agent_id: str) -> bytes:
    revision, directive = registry.directive_for(RUN_ID, agent_id, 1.0)
    assert isinstance(directive, Start)
    return encode(Reply(epoch="0", revision=revision, lease_s=10.0, directive=directive))
