"""`torchx run`, for real: the components on TorchX's local scheduler."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent import words
from tests.support.launchers import free_port
from tests.support.message_search import has_message
from tests.support.programs import WORKER, Program
from tests.support.worker_hub import Worker, WorkerHub, restart_count

pytest.importorskip("torchx.runner", reason="the extra torchx", exc_type=ImportError)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md"
PATIENCE_S = 60.0
"""Seconds to wait: TorchX itself takes seconds to start."""


class App:
    """`torchx run -s local_cwd`, which waits for the app's end and exits by its state."""

    def __init__(self, program: Program, logs: Path, name: str) -> None:
        self.program, self.logs, self.name = program, logs, name

    @classmethod
    @asynccontextmanager
    async def run(
        cls, component: str, *arguments: str, logs: Path, script: Sequence[str] = (WORKER,), env: Mapping[str, str]
    ) -> "AsyncIterator[App]":
        """Start an app at a free port. It is gone afterwards, even if the test fails."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        before = ("-u", "-W", "ignore", "-m", "torchx.cli.main", "run", "-s", "local_cwd", "-cfg", f"log_dir={logs}")
        with free_port() as port:
            words = (component, "--rdzv_port", port, *arguments, "--script", script[0], "--", *script[1:])
            program = await Program.start(sys.executable, *before, *words, env={**env, "PATH": path}, cwd=logs)
            try:
                yield cls(program, logs, (await program.line("^local_cwd://torchx/(.+)$", PATIENCE_S))[1])
            finally:
                if program.is_running:
                    program.signal(signal.SIGTERM)  # makes TorchX end its replicas
                    await program.exit_code(PATIENCE_S)

    async def ends(self, state: str) -> None:
        """TorchX's combined log may lack the last lines. Each stream's own file has them."""
        assert await self.program.exit_code(PATIENCE_S) == int(state != "SUCCEEDED")
        await self.program.line(f"Job finished: {state}")

    def file(self, name: str) -> Path:
        return self.logs / "torchx" / self.name / name


def finish(workers: list[Worker], code: int = 0) -> None:
    for worker in workers:
        worker.order_exit(code)


async def test_two_nodes_of_two_workers_with_torchxs_variables(hub: WorkerHub, tmp_path: Path) -> None:
    macros = ("${app_id}", "${replica_id}", "${img_root}", "${base_img_root}", "${rank0_env}", "a b")
    given = ("-j", "2x2", "--name", "trial/one", "--env", "A=1,B=2")
    async with App.run("rdzv.spmd", *given, logs=tmp_path, script=(WORKER, *macros), env=hub.env) as app:
        workers = await hub.group(4)
        assert app.name.startswith("one-")
        for worker in workers:
            env, replica = worker.env, worker.argv[1]
            assert worker.argv == [app.name, replica, str(tmp_path), "DEPRECATED", "TORCHX_RANK0_HOST", "a b"]
            assert (env["A"], env["B"], env["TORCHELASTIC_RUN_ID"]) == ("1", "2", app.name)
            assert env["TORCHX_JOB_ID"] == f"local_cwd://torchx/{app.name}"
            assert env["TORCHX_TRACKING_EXPERIMENT_NAME"] == "trial"
            assert env["PET_LOG_DIR"] == str(app.file("torchelastic/worker"))
            assert env["TORCHELASTIC_ERROR_FILE"].startswith(env["PET_LOG_DIR"]), "a worker's own"
            await worker.tell(f"say rank {worker.rank} of replica {replica}")
        finish(workers)
        await app.ends("SUCCEEDED")
    assert sorted(worker.argv[1] for worker in workers) == ["0", "0", "1", "1"]
    for worker in workers:
        replica, line = worker.argv[1], f"rank {worker.rank} of replica {worker.argv[1]}"
        assert f"[{worker.env['LOCAL_RANK']}]:{line}" in app.file(f"worker/{replica}/stdout.log").read_text()
        logs = app.file("torchelastic/worker").glob("*/attempt_*/*/stdout.log")
        (log,) = (each for each in logs if line in each.read_text())
        assert log.parent.name == worker.env["LOCAL_RANK"]


@pytest.mark.parametrize("server", ["replica", "role"])
async def test_an_elastic_run_continues_without_a_killed_agent_and_the_app_succeeds(
    hub: WorkerHub, tmp_path: Path, server: str
) -> None:
    (command,) = re.findall(r"^torchx run -s local_cwd (.+) --script train.py$", PAGE.read_text(), re.MULTILINE)
    line = command.split()
    line[line.index("role")] = server
    async with App.run(*line, logs=tmp_path, env=hub.env) as app:
        first = await hub.group(4)
        os.kill(first[0].agent_pid, signal.SIGKILL)
        second = await hub.group(3)
        assert restart_count(second) == 0
        finish(second)
        await app.ends("SUCCEEDED")
    logs = [path.read_text() for path in app.file("worker").glob("*/stderr.log")]
    assert sum(has_message(log, words.supervisor.agent_killed_run_awaited) for log in logs) == 1
    ends = json.loads(app.file("SUCCESS").read_text())["roles"]
    assert [each["exitcode"] for role in ends.values() for each in role] == [0] * (4 + (server == "role"))


async def test_an_app_with_a_misspelled_script_fails_at_once(hub: WorkerHub, tmp_path: Path) -> None:
    """A server of the job's own would wait half an hour for an agent."""
    async with App.run(
        "rdzv.ddp", "-j", "1x1", "--server", "role", logs=tmp_path, script=("trian.py",), env=hub.env
    ) as app:  # fmt: skip
        await app.ends("FAILED")
    assert "trian.py': [Errno 2] No such file or directory" in app.file("trian/0/stderr.log").read_text()


async def test_the_root_cause_of_a_failed_app_is_in_torchxs_status_and_log(hub: WorkerHub, tmp_path: Path) -> None:
    async with App.run("rdzv.ddp", "-j", "2x1", "--server", "role", logs=tmp_path, env=hub.env) as app:
        workers = await hub.group(2)
        await workers[1].tell("complain ValueError: no such data set")
        workers[1].order_exit(7)
        await app.ends("FAILED")
    log = app.program.err
    status = log[next(number for number, line in enumerate(log) if "structured_error_msg:" in line) :]
    assert {"      errorCode: 7", "        py_callstack: 'ValueError: no such data set'"} <= set(status)
    for replica in (0, 1):
        assert "  stderr    : ValueError: no such data set\n" in app.file(f"worker/{replica}/stderr.log").read_text()
    assert json.loads(app.file("worker/0/error.json").read_text()) == json.loads(
        app.file("worker/1/error.json").read_text()
    )
    ends = json.loads(app.file("SUCCESS").read_text())["roles"]
    assert [each["exitcode"] for role in ends.values() for each in role] == [1, 1, 1], "the server's, too"
