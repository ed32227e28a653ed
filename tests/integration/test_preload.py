"""`--preload`: scripts cannot see a difference between warm and cold workers, and after an error workers start cold."""

import asyncio
import json
import os
import py_compile
import re
import shutil
import signal
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from node_agent.features.warm import words
from node_agent.features.warm.interpreter import LOWEST_DESCRIPTOR
from node_agent.kernel.failures.diagnose import exit_status
from tests.support.cluster import Cluster
from tests.support.launchers import PROGRAMS
from tests.support.lazy_modules import need
from tests.support.message_search import has_message
from tests.support.process_info import children, ended, is_running, until
from tests.support.programs import Program
from tests.support.worker_hub import all_run

STATE = PROGRAMS / "interpreter_state.py"
WARM = ("--preload", "json,decimal")
OWN = {
    "NODE_AGENT_ID",
    "NODE_AGENT_PROGRESS_FILE",
    "NODE_AGENT_RUNS",
    "TORCH_WORKER_SERVER_SOCKET",
    "MASTER_PORT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RUN_ID",
}
"""Variables that differ between agents."""


async def finished(
    *flags: str, script: str, cwd: Path | None = None, args: tuple[str, ...] = ()
) -> tuple[int, Program]:
    agent = await Program.start(sys.executable, "-m", "node_agent", "--standalone", *flags, script, *args, cwd=cwd)
    return await agent.exit_code(), agent


async def both(*flags: str, script: str, **how: Any) -> list[tuple[int, Program]]:
    """Run a cold and a warm worker, and return their results."""
    ends = await asyncio.gather(*(finished(*more, *flags, script=script, **how) for more in ((), WARM)))
    assert [is_said_to_be_warm(agent) for _, agent in ends] == [False, True]
    return ends


def is_said_to_be_warm(agent: Program) -> bool:
    return any(has_message(line, words.start_warm) for line in agent.err)


# A script cannot see a difference.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The script in every form that Python executes."""
    shutil.copy(STATE, tmp_path / "state.py")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.py").symlink_to(tmp_path / "state.py")
    py_compile.compile(str(STATE), cfile=str(tmp_path / "compiled.pyc"))
    (tmp_path / "folder").mkdir()
    shutil.copy(STATE, tmp_path / "folder" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.write(STATE, "__main__.py")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "script"),
    [
        ((), "state.py"),
        ((), "{folder}/state.py"),
        ((), "elsewhere/link.py"),
        (("-m",), "state"),
        ((), "compiled.pyc"),
        ((), "folder"),
        ((), "app.pyz"),
        (("--run-path",), "state.py"),
    ],
    ids=["relative", "absolute", "link", "module", "compiled", "folder", "archive", "run-path"],
)
async def test_a_script_sees_the_same_interpreter(folder: Path, flags: tuple[str, ...], script: str) -> None:
    script = script.format(folder=folder)
    states = []
    for code, agent in await both(*flags, script=script, cwd=folder, args=("0", "--flag", "a b")):
        assert code == 0, agent.err
        state = json.loads(agent.out[0])
        assert state["environment"].keys() >= OWN
        states.append({**state, "environment": {k: v for k, v in state["environment"].items() if k not in OWN}})
        assert agent.out[1:] == ["a thread was waited for", "atexit ran"]
    cold, warm = states
    assert warm["descriptors"].pop() == LOWEST_DESCRIPTOR, "the file of its stacks, and no other"
    assert warm == cold
    if not flags and script.endswith(".py"):
        assert warm["main"]["__file__"] == str(folder / script)


@pytest.mark.parametrize("end", ["3", "text", "raise", "interrupt"])
async def test_a_warm_worker_ends_like_a_cold_one(end: str) -> None:
    (cold_code, cold), (warm_code, warm) = await both(script=str(STATE), args=(end,))
    assert (warm_code, sorted(warm.out[1:])) == (cold_code, sorted(cold.out[1:]))
    assert sorted(without_pids(warm.err)) == sorted(without_pids(cold.err))


def without_pids(lines: list[str]) -> list[str]:
    """Return the output of the workers, and the agent's name for it."""
    kept = (line for line in lines if line and "workers start" not in line)
    differs = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d |pid:? \d+|127\.0\.0\.1:\d+|status: .*|time +: .*"
    return [re.sub(differs, "", line) for line in kept]


async def test_each_worker_gets_its_own_random_numbers(tmp_path: Path) -> None:
    need("numpy")
    script = tmp_path / "draw.py"
    script.write_text(
        "import multiprocessing as m, numpy.random, random, tempfile\n"
        "print(random.random())\n"
        "print(numpy.random.random())\n"
        "print(m.current_process().authkey.hex())\n"
        "print(tempfile.mktemp())\n"
    )
    preload = ("--preload", "random,numpy.random,multiprocessing,tempfile")
    code, agent = await finished(*preload, "--nproc", "3", script=str(script))
    assert code == 0 and is_said_to_be_warm(agent)
    assert len(agent.out) == len(set(agent.out)) == 12


# Warm again after a failure.


async def test_every_round_is_warm_and_signals_and_exit_codes_arrive(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "3", *WARM)
    os.kill(first[3].pid, signal.SIGKILL)
    second = await cluster.hub.group(4)
    second[0].order_exit(7)
    third = await cluster.hub.group(4)
    assert all(is_warm(worker.pid) for worker in third)
    await cluster.finish(third)
    run = await cluster.server.run()
    assert [record["cause"] for record in run["failures"]] == [
        exit_status(-signal.SIGKILL).cause,
        "exit code 7",
    ]


async def test_a_fork_server_that_dies_is_replaced_and_its_workers_continue(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--max-restarts", "3", *WARM)
    agent = cluster.agents["a"]
    found: list[int] = []

    def is_found() -> bool:  # for a moment, a process that it has forked has the same name
        found[:] = called("fork-server", agent)
        return len(found) == 1

    await until(is_found)
    os.kill(*found, signal.SIGKILL)
    await agent.line(words.import_died("json, decimal"))
    assert all_run(first)
    await until(lambda: len(called("warm-process", agent)) >= 2)
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert all(is_warm(worker.pid) for worker in second)
    await cluster.finish(second)


@pytest.mark.parametrize("end", ["the agent is killed", "the run has ended"])
async def test_warm_processes_end_with_their_agent(cluster: Cluster, end: str) -> None:
    workers = await cluster.nodes("a", *WARM)
    agent = cluster.agents["a"]
    await until(lambda: len(called("warm-process", agent)) >= 2)
    family = [*called("fork-server", agent), *called("warm-process", agent), *(worker.pid for worker in workers)]
    if end == "the run has ended":
        await cluster.finish(workers)
        assert not any(map(is_running, family))
    else:
        await agent.kill()
        for pid in family:
            await ended(pid)


async def test_a_process_that_a_preloaded_module_has_started_ends_with_the_agent(tmp_path: Path) -> None:
    """It is in a session of its own, and has no mark of the agent."""
    pid_file = tmp_path / "pid"
    (tmp_path / "starts_one.py").write_text(
        "import subprocess\n"
        "process = subprocess.Popen(('sleep', '1000'), env={}, start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(process.pid))\n"
    )
    script = tmp_path / "train.py"
    script.touch()
    code, agent = await finished("--preload", "starts_one", script=str(script), cwd=tmp_path)
    assert code == 0
    assert is_said_to_be_warm(agent)
    assert not is_running(int(pid_file.read_text()))


# Workers that cannot be kept warm start cold, and a message says so.


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
         words.starts_threads("bad", ["python"]).partition("python")[0] + "python"),
        ("raise RuntimeError('no luck')", words.cannot_import("bad", "RuntimeError: no luck")),
        ("import sys; sys.exit(5)", words.cannot_import("bad", "SystemExit: 5")),
        ("import os; os._exit(5)", words.import_died_again("json, bad")),
    ],
    ids=["threads", "an error", "an exit", "a sudden exit"],
)  # fmt: skip
async def test_a_module_that_cannot_be_preloaded(source: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "script.py").write_text("import os; print('rank', os.environ['RANK'])")
    code, agent = await finished("--nproc", "2", "--preload", "json,bad", script="script.py", cwd=tmp_path)
    assert code == 0
    assert sorted(agent.out) == ["rank 0", "rank 1"]
    (line,) = [
        line for line in agent.err if has_message(line, words.start_cold) or has_message(line, words.import_died_again)
    ]
    assert says in line


def is_warm(pid: int) -> bool:
    """Return whether the worker was forked from the fork server, whose command line it still has."""
    return b"fork_server_helper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def called(name: str, agent: Program) -> list[int]:
    """Return the children of the process that have this name."""
    found = []
    for pid in children(agent.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [pid] if Path(f"/proc/{pid}/comm").read_text().strip() == name else []
    return found
