"""The agent in a separate thread, for a program with its own workers. The server is simulated."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from rdzv_protocol.messages import LeaveRequest

from node_agent import words
from node_agent.compat.torchrun.agent_thread import AgentThread, Ended
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from tests.unit.node_agent.rig import PlayedServer
from tests.unit.node_agent.story import a_failure, join, start


class Program:
    """A program's agent."""

    def __init__(self) -> None:
        self.server = PlayedServer()
        config = AgentConfig(command=Command(()), join=join())
        self.agent = AgentThread(
            config, self.server.transport, "server:1", lambda: 29_500, logging.getLogger("torchrun")
        )

    def begin(self, directive) -> None:
        asyncio.run_coroutine_threadsafe(self.server.answers(directive), self.agent._loop)


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.agent.stop()


def boom(*args: object) -> None:
    raise RuntimeError("boom")


def test_an_exception_in_its_loop_ends_the_agent_while_workers_run(program, caplog):
    program.begin(start(1))
    assert program.agent.next_round(a_failure()).round == 1
    program.agent._loop.call_soon_threadsafe(boom)
    assert program.agent.round_is_over.wait(10), "the workers must go"
    assert str(program.agent.ending.error) == "boom"
    assert not program.agent.leave("torchrun exits")
    assert program.server.of(LeaveRequest)[0].reason == words.agent.internal_error("RuntimeError", "boom")
    assert "in boom" in caplog.text


def test_an_exception_in_its_loop_ends_the_wait_for_a_round(program):
    program.agent._loop.call_soon_threadsafe(program.agent._loop.call_later, 0.01, boom)
    with pytest.raises(Ended):
        program.agent.next_round(a_failure())
    program.agent.leave("torchrun exits")
