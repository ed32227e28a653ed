"""Link between an agent and its supervisor."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import json
from rdzv_protocol.messages import JoinRequest, LeaveRequest, Start

from node_agent.features.supervised import Part, Supervised
from node_agent.features.supervised.feature import Supervised as Link
from tests.support.pipes import drain, fill
from tests.support.process_info import until
from tests.unit.node_agent.rig import rig
from tests.unit.node_agent.story import start, stop


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a link: the supervisor's and the agent's."""
    ours, agents = socket.socketpair()
    with ours, agents:
        ours.setblocking(False)
        yield ours, agents


def round_of_one(number: int) -> Start:
    """Return a round of one worker."""
    return start(number, local_world_size=1, group_rank=0, first_rank=0)


async def test_an_agent_does_not_wait_for_its_supervisor_and_sends_its_part_when_there_is_room(ends):
    """The supervisor reads nothing as long as the agent lives."""
    ours, agents = ends
    fill(agents.fileno(), b"earlier\n")
    async with rig(features=(Supervised(link=agents.fileno()),)) as agent:
        await agent.feature(Link).open()
        await agent.server.answers(round_of_one(1))
        await until(lambda: agent.pids)
        assert set(drain(ours.fileno()).splitlines()) == {b"earlier"}
        await agent.server.answers(stop(1))
        again = await agent.server.hears(JoinRequest, 2)
        await agent.server.answers(round_of_one(2))
        await until(lambda: agent.pids)
        *_, told = drain(ours.fileno()).splitlines()
        assert json.decode(told, type=Part) == Part(0, again.agent_id, again.secret)


async def test_an_agent_leaves_on_a_forwarded_signal(ends):
    ours, agents = ends
    async with rig(features=(Supervised(link=agents.fileno()),)) as agent:
        await agent.feature(Link).open()
        await agent.server.answers(round_of_one(1))
        await until(lambda: agent.pids)
        ours.send(bytes([signal.SIGTERM]))
        assert (await agent.server.hears(LeaveRequest)).reason == "SIGTERM"


async def test_a_supervisor_that_is_killed_before_it_reads_is_only_gone(ends):
    """Its end of the socket is then reset, because the agent's last message was not read."""
    ours, agents = ends
    loop, heard, failed = asyncio.get_running_loop(), list[str](), list[Any]()
    loop.set_exception_handler(lambda loop, context: failed.append(context))
    kernel: Any = SimpleNamespace(forwarded=heard.append)
    await Link(kernel, Supervised(link=agents.fileno())).open()
    agents.send(b"a part")
    ours.close()
    for _ in range(3):  # passes of the loop, which reads in the second one
        await asyncio.sleep(0)
    assert not loop.remove_reader(agents), "it does not listen any more"
    assert not failed
    assert not heard
