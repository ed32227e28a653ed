"""Images of deploy/docker, built with a real engine: hardened containers that are killed, and rejoin their run."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from rdzv_server.words import auth
from tests.containers.held_workers import HeldWorkers
from tests.support.container_engine import BASE, ContainerEngine
from tests.support.message_search import pattern
from tests.support.outages import LOST, REACHED
from tests.support.programs import Program

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
AGENT = ("--nnodes", "1:2", "--max-restarts", "3", "--last-call-timeout", "600", "--endpoint", "127.0.0.1:29400")


class Run:
    """A server and two nodes: containers that share a folder, and a network with only loopback."""

    def __init__(self, engine: ContainerEngine, folder: Path) -> None:
        self._engine, self._workers = engine, HeldWorkers(folder, 2)
        # It outlives the server: a restarted container would have a new network.
        engine.call("run", "--detach", "--name", "network", "--network", "none", BASE, "sleep", "infinity")

    async def serve(self) -> Program:
        server = await self._engine.run("server", "--network", "container:network", *HARDENED, "rdzv-server")
        await server.line("listening on")
        return server

    async def agent(self, name: str) -> Program:
        place = ("--network", "container:network", "--volume", self._workers.volume)
        return await self._engine.run(
            name, *place, *HARDENED, "rdzv-agent", "--node-id", name, *AGENT, "/shared/script.py"
        )

    async def finish(self, agents: Sequence[Program]) -> None:
        """Let the workers end, and the agents with them."""
        self._workers.finish()
        assert [await agent.exit_code() for agent in agents] == [0] * len(agents)


@pytest.fixture
def run(engine: ContainerEngine, tmp_path: Path) -> Run:
    return Run(engine, tmp_path)


async def test_a_killed_container_returns_to_its_run(run: Run, engine: ContainerEngine) -> None:
    await run.serve()
    agents = [await run.agent(name) for name in ("a", "b")]
    for agent in agents:
        await agent.line(r"rank \d of 2")
    engine.call("kill", "--signal", "KILL", "b")
    assert await agents[1].exit_code() == 137
    await agents[0].line("rank 0 of 1")
    agents[1] = await engine.start_again("b")
    for agent in agents:
        await agent.line(r"round 3: node \d of 2, .* restart 0 of 3")
    await run.finish(agents)


async def test_a_recreated_server_pod_knows_its_runs(run: Run, engine: ContainerEngine) -> None:
    """The server's state outlives its container in a volume."""
    server = await run.serve()
    agents = [await run.agent(name) for name in ("a", "b")]
    for agent in agents:
        await agent.line(r"rank \d of 2")
    engine.call("kill", "--signal", "KILL", "server")
    await server.exit_code()
    for agent in agents:
        await agent.line(LOST)
    await (await engine.start_again("server")).line("listening on")
    for agent in agents:
        await agent.line(REACHED)
    await run.finish(agents)
    assert sorted(agent.out for agent in agents) == [["rank 0 of 2"], ["rank 1 of 2"]]


async def test_a_stopped_container_logs_what_it_does(run: Run, engine: ContainerEngine) -> None:
    """`docker stop` sends SIGTERM. The program is process 1, which signals do not end unless it handles them."""
    server = await run.serve()
    agent = await run.agent("a")
    await agent.line("joined of 1 to 2")
    engine.call("stop", "--time", "60", "a")
    await agent.line(pattern(words.leaving.leaving, why="SIGTERM"))
    assert await agent.exit_code() == ExitCode.START_AGAIN
    engine.call("stop", "--time", "60", "server")
    assert await server.exit_code() == 0


async def test_the_images_health_check_detects_a_server_that_hangs(run: Run, engine: ContainerEngine) -> None:
    await run.serve()
    assert engine.call("healthcheck", "run", "server").returncode == 0
    engine.call("kill", "--signal", "STOP", "server")
    assert engine.call("healthcheck", "run", "server", check=False).returncode != 0
    engine.call("kill", "--signal", "CONT", "server")
    assert engine.call("healthcheck", "run", "server").returncode == 0


async def test_the_pages_command_has_tokens_read_again(engine: ContainerEngine, tmp_path: Path) -> None:
    """The image has a shell, but no program `kill`."""
    pages = "".join((ROOT / "docs/how-to" / f"{page}.md").read_text() for page in ("kubernetes", "secure-a-server"))
    (command,) = set(re.findall("`kubectl exec deployment/rdzv-server -- ([^`]+)`", " ".join(pages.split())))
    place = ("--network", "none", "--volume", f"{with_a_token(tmp_path)}:/tokens:ro")
    server = await engine.run("server", *place, *HARDENED, "rdzv-server", "--token-file", "/tokens/agents")
    await server.line("listening on")
    assert engine.inside("server", *shlex.split(command)).returncode == 0
    await server.line(auth.RENEWED)


def with_a_token(folder: Path) -> Path:
    """Return the folder, with a file that the server's user can read."""
    folder.chmod(0o755)
    (folder / "agents").write_text(os.urandom(32).hex())
    return folder
