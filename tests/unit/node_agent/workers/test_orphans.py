"""What workers leave behind is ended, with the agent alive and after its sudden death; nothing else is."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.workers.orphans import MARK
from tests.support.process_info import is_running, process_ended

PATIENCE_S = 10.0

AGENT = """
import asyncio, os, sys
from node_agent.workers.orphans import MARK, Orphans, children
from node_agent.workers.process import CommandProcess
from node_agent.workers.temp_dir import TempDir

DAEMON = "setsid sh -c 'echo $$; exec sleep 1000 >&- 2>&- <&-' & exit 0"

def say(line):
    os.write(1, f"{line}\\n".encode())  # in one piece: the daemon writes there, too

async def main():
    mine = f"agent-{os.getpid()}"  # other tests run beside this one
    orphans, scratch = Orphans(mine), TempDir()
    orphans.guard(os.environ, scratch.folder)
    own = CommandProcess(("sh", "-c", "exec sleep 1000 >&- 2>&- <&-"), {**os.environ, MARK: mine}, 1, 2)
    worker = CommandProcess(("sh", "-c", DAEMON), {**os.environ, MARK: sys.argv[1] or mine}, 1, 2)
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(worker.fileno(), gone.set)
    await gone.wait()
    loop.remove_reader(worker.fileno())
    say(f"worker {worker.reap()} own {own.pid}")
    while order := await asyncio.to_thread(sys.stdin.readline):
        if order.strip() == "end":
            say(f"ended {orphans.end()}")
        elif order.strip() == "children":
            say(f"children {len(children())}")
        elif order.strip() == "folder":
            os.makedirs(folder := scratch.path("attempt_0"))
            say(folder)
        elif order.strip() == "close":
            orphans.close()
            say("closed")

asyncio.run(main())
"""


class Agent:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.daemon = self.own = 0

    @classmethod
    async def start(cls, mark: str = "") -> "Agent":
        agent = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", AGENT, mark, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        )
        for _ in range(2):
            words = (await agent.line()).split()
            if words[0] == "worker":
                agent.own = int(words[3])
            else:
                agent.daemon = int(words[0])
        return agent

    async def line(self) -> str:
        assert self.process.stdout
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stdout.readline()).decode().strip()

    async def told(self, order: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{order}\n".encode())
        return await self.line()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await process_ended(pid).wait()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    agent = await Agent.start()
    yield agent
    await agent.kill()
    await gone(agent.daemon)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_daemon_of_a_worker_that_is_gone_is_found_and_ended(agent):
    assert parent(agent.daemon) == agent.process.pid, "it was adopted"
    assert await agent.told("end") == "ended 1"
    await gone(agent.daemon)
    assert is_running(agent.own), "what somebody looks after is left alone"


async def test_an_adopted_process_that_ends_leaves_no_zombie(agent):
    before = int((await agent.told("children")).split()[1])
    os.kill(agent.daemon, signal.SIGKILL)
    await gone(agent.daemon)
    async with asyncio.timeout(PATIENCE_S):
        while int((await agent.told("children")).split()[1]) != before - 1:
            pass


async def test_after_the_agents_sudden_death_the_guardian_ends_them(agent):
    agent.process.kill()
    await gone(agent.daemon)
    await gone(agent.own)


async def test_after_the_agents_sudden_death_its_temporary_folder_is_gone(agent):
    folder = Path(await agent.told("folder")).parent
    agent.process.kill()
    async with asyncio.timeout(PATIENCE_S):
        while folder.exists():  # noqa: ASYNC110 - nobody tells when it is removed
            await asyncio.sleep(0.01)


async def test_an_agent_that_ends_well_dismisses_its_guardian():
    agent = await Agent.start("somebody else's")
    assert await agent.told("close") == "closed"
    await agent.kill()
    assert is_running(agent.daemon)
    os.kill(agent.daemon, signal.SIGKILL)
    await gone(agent.own)


async def test_what_does_not_carry_the_mark_is_left_alone():
    agent = await Agent.start("somebody else's")
    assert await agent.told("end") == "ended 0"
    await agent.kill()
    await gone(agent.own)  # by the guardian
    assert is_running(agent.daemon)
    os.kill(agent.daemon, signal.SIGKILL)


def test_the_mark_is_an_environment_variable_of_ours():
    assert MARK == "NODE_AGENT_ID"


def test_without_a_descriptor_left_nobody_is_found() -> None:
    lines = (
        "import resource",
        "from node_agent.workers.orphans import children",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "assert children() == set()",
    )
    subprocess.run((sys.executable, "-c", "\n".join(lines)), check=True, timeout=60)
