"""An agent without any code of ours, together with another of its kind and with ours, at a real server."""

import sys
from pathlib import Path

import pytest

from rdzv_server.words import completion
from tests.support.programs import Program, Server, start_agent

AGENT = Path(__file__).parents[2] / "examples" / "minimal_agent.py"
TELL = "import os; os.write(1, 'rank {RANK} {WORLD_SIZE} {LOCAL_RANK}\\n'.format_map(os.environ).encode())"
"""Command of a worker that writes its ranks in one call. If it is stopped, it has written all or nothing."""


async def start_minimal(server: Server, node: str) -> Program:
    flags = (server.endpoint, "r", node, "2")
    return await Program.start(sys.executable, str(AGENT), *flags, sys.executable, "-c", TELL)


async def start_ours(server: Server, script: Path, *flags: str) -> Program:
    agent = await start_agent(
        "--endpoint", server.endpoint, "--run-id", "r", "--nnodes", "2", *flags, script=str(script)
    )
    await agent.line(completion.waiting_for(1))
    return agent


@pytest.fixture
async def server() -> Server:
    return await Server.listen("--store", "memory")


async def told(*agents: Program) -> list[str]:
    """Return the lines of the workers of agents that succeed."""
    assert [await agent.exit_code() for agent in agents] == [0] * len(agents), [agent.err for agent in agents]
    return sorted(line for agent in agents for line in agent.out if line.startswith("rank"))


async def test_two_of_them_complete_a_run(server: Server) -> None:
    assert await told(*[await start_minimal(server, node) for node in "ab"]) == ["rank 0 2 0", "rank 1 2 0"]
    assert (await server.run())["phase"] == "succeeded"


async def test_the_minimal_agent_rejoins_after_a_worker_of_a_node_agent_failed(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "fails_once.py"
    script.write_text(f"{TELL}\nimport sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    ours = await start_ours(server, script, "--max-restarts", "1")
    ranks = await told(ours, await start_minimal(server, "b"))
    run = await server.run()
    assert set(ranks) == {"rank 0 2 0", "rank 1 2 0"}
    assert (run["round"], run["restart_count"], run["phase"]) == (2, 1, "succeeded")


def test_the_minimal_agent_is_short_and_does_not_import_our_packages() -> None:
    lines = AGENT.read_text().splitlines()
    assert sum(map(bool, lines)) <= 60
    assert not [line for line in lines if "import" in line and ("rdzv" in line or "node_agent" in line)]
