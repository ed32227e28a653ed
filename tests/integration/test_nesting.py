"""A worker that starts a launcher: each run is separate, and no run waits for itself."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from node_agent import words
from tests.support.programs import Program, Server, start_agent

AGENT = f"{shlex.quote(sys.executable)} -m node_agent"
TORCHRUN = f"{shlex.quote(sys.executable)} -m torch.distributed.run"
PRIVATE = (
    "NODE_AGENT_NOTICE_ACK", "NODE_AGENT_NOTICE_FILE", "NODE_AGENT_PROGRESS_FILE", "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_WORKER_SERVER_SOCKET",
)  # fmt: skip
"""Variables that an agent makes for one worker."""
SHOW = "import json, os, sys\nprint(json.dumps(dict(os.environ)), flush=True)\n"


@pytest.fixture
def show(tmp_path: Path) -> str:
    """Return a command that prints its environment."""
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    return shlex.quote(str(script))


async def environments(agent: Program) -> list[Mapping[str, str]]:
    assert await agent.exit_code(90) == 0, agent.err
    return [json.loads(line) for line in agent.out]


@pytest.mark.parametrize("middle", [AGENT, pytest.param(TORCHRUN, marks=pytest.mark.torch)])
async def test_workers_of_nested_runs_have_only_variables_of_their_own_agent(
    middle: str, show: str, tmp_path: Path
) -> None:
    python = shlex.quote(sys.executable)
    command = (
        f"{python} {show} && exec {middle} --standalone --no-python {AGENT} --standalone --nproc-per-node 2 {show}"
    )
    agent = await start_agent(
        "--standalone", "--log-dir", str(tmp_path / "logs"), "--notice-timeout", "5",
        "--no-python", "sh", "-c", script=command,
        env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "PET_READY_FILE": str(tmp_path / "ready"), "PET_METRICS_PORT": "0"},
    )  # fmt: skip
    outer, *inner = await environments(agent)
    assert set(PRIVATE) <= outer.keys()
    assert {"PET_READY_FILE", "PET_METRICS_PORT"}.isdisjoint(outer)
    for name in (*PRIVATE, "TORCHELASTIC_TIMER_FILE"):
        seen = [worker[name] for worker in inner if name in worker]
        assert outer[name] not in seen, name
        if name in ("NODE_AGENT_PROGRESS_FILE", "TORCH_WORKER_SERVER_SOCKET"):
            assert len(set(seen)) == 2, name


async def test_a_launcher_that_would_join_the_run_that_it_is_part_of_is_refused(show: str) -> None:
    server = await Server.listen()
    command = f'{AGENT} {show}; echo "exit code $?"; exec {AGENT} --standalone {show}'
    env = {"PET_RDZV_ENDPOINT": server.endpoint, "PET_RDZV_BACKEND": "etcd", "PET_NNODES": "1:2"}
    agent = await start_agent("--no-python", "sh", "-c", script=command, env=env)
    assert await agent.exit_code() == 0, agent.err
    assert agent.out[0] == "exit code 2"
    assert json.loads(agent.out[1])["PET_RDZV_ENDPOINT"] == server.endpoint
    alone = {"rdzv_id": "--rdzv-id", "alone": "--standalone"}
    known = alone | {"inherited": ["PET_RDZV_ENDPOINT"], "run_id": "none", "address": server.endpoint}
    assert sum(words.plan.own_run(**known) in line for line in agent.err) == 1
