"""Every endpoint, fuzzed from the document that the server publishes. `HYPOTHESIS_PROFILE=thorough` tries more."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import settings
from rdzv_protocol import paths
from rdzv_protocol.messages import Ack, JoinRequest, LeaveRequest, PollRequest, Reply, Request, Start
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.transport.http import HttpTransport
from tests.support.process_info import Footprint
from tests.support.programs import PATIENCE_S, Server

EXAMPLES = max(500, settings().max_examples * 2)
"""Fewer examples do not reach everything."""
NO_ERROR = r"[-\d]{10} [:\d]{8} ((INFO|WARNING) rdzv-server: |ERROR rdzv-server: run .* round \d+: run failed: )"
"""Beginning of every line of a healthy server. The rest quotes names, which a fuzzer may choose freely."""
ROOM_MB = 32
"""MB that some thousand requests, and the runs that they founded, may leave in memory."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server.listen("--store", "memory", "--retention", "1", is_forked=False)
    yield server
    await server.end()


@pytest.mark.timeout(600)  # some thousand requests
async def test_every_operation_is_answered_as_documented(server: Server, fuzzer_class: type) -> None:
    await serves_a_run(server)
    before = Footprint.of(server.pid)
    fuzzer = await asyncio.to_thread(fuzzer_class, f"http://{server.endpoint}")
    await asyncio.to_thread(fuzzer.run, EXAMPLES)
    seen = fuzzer.statuses
    assert all(seen[operation.path][200] + seen[operation.path][409] for operation in fuzzer.operations), seen
    assert all(seen[operation.path][400] for operation in fuzzer.operations if operation.body), seen
    assert all(sum(counts[status] for counts in seen.values()) for status in (200, 409)), seen

    await serves_a_run(server)
    await forgets(server, before.descriptors)
    assert Footprint.of(server.pid).rss_mb - before.rss_mb < ROOM_MB
    assert [line for line in server.err if not re.match(NO_ERROR, line)] == []


async def serves_a_run(server: Server) -> None:
    """Check that a well-behaved agent is seated and released, and that operators get answers."""
    link = HttpTransport("127.0.0.1", server.port, None)

    async def ask(request: Request) -> Reply | Ack:
        async with asyncio.timeout(PATIENCE_S):
            return await link.exchange(request)

    run = {"run_id": "well-behaved", "agent_id": f"agent-{id(link)}"}
    join = JoinRequest(
        **run, node_id="node", after_round=0, addr=await link.connect(), port=29_500, local_world_size=2,
        settings=RequestedSettings(min_nodes=1, max_nodes=1),
    )  # fmt: skip
    seated = await ask(join)
    assert isinstance(seated, Reply) and isinstance(seated.directive, Start)
    assert await ask(PollRequest(**run, revision=0)) == seated
    assert isinstance(await ask(LeaveRequest(**run, reason="done")), Ack)
    await link.close()
    assert '"run_id":"well-behaved"' in await server.get(paths.STATUS)
    assert await server.get(paths.READYZ) == "ready\n"


async def forgets(server: Server, descriptors: int) -> None:
    """Return when no more descriptors are open than before."""
    async with asyncio.timeout(PATIENCE_S):
        while Footprint.of(server.pid).descriptors > descriptors:  # noqa: ASYNC110 - another process closes them
            await asyncio.sleep(0.05)
