"""`--preload`: warm workers are as cold ones in all that a script can see, and whatever goes wrong leaves cold ones."""

import json
import os
import py_compile
import re
import shutil
import signal
import sys
import zipfile
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.launchers import PROGRAMS
from tests.support.process_info import children, ended, is_running, until
from tests.support.programs import Program, start_agent

STATE = PROGRAMS / "interpreter_state.py"
WARM = ("--preload", "json,decimal")
OWN = {"NODE_AGENT_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}
"""Variables that differ from one agent to the next."""
FAILS_ALIKE = ["0", "3", "text", "raise", "interrupt"]


async def finished(
    *flags: str, script: str, cwd: Path | None = None, args: tuple[str, ...] = ()
) -> tuple[int, Program]:
    command = (sys.executable, "-m", "node_agent", "--standalone", *flags, script, *args)
    agent = await Program.start(*command, cwd=str(cwd) if cwd else None)
    return await agent.exit_code(), agent


def without_pids(lines: list[str]) -> list[str]:
    """What the workers wrote, and how the agent named it."""
    return [
        re.sub(r"pid:? \d+|127\.0\.0\.1:\d+|status: .*|time +: .*", "", line)
        for line in lines
        if "workers start" not in line
    ]


async def both(*flags: str, script: str, **how) -> tuple[dict, dict, list[str], list[str]]:
    """What a cold and a warm worker saw, and all that was written."""
    seen, written = [], []
    for more in ((), WARM):
        code, agent = await finished(*more, *flags, script=script, **how)
        assert code == 0, agent.err
        state = json.loads(agent.out[0])
        for name in OWN:
            state["environment"].pop(name)
        seen.append(state | {f"${name}": value for name, value in state.pop("environment").items()})
        written.append(agent.out[1:])
        assert any("workers start warm: json, decimal imported" in line for line in agent.err) is bool(more)
    return seen[0], seen[1], written[0], written[1]


# A script sees no difference.


async def test_a_script_sees_the_same_interpreter(tmp_path: Path) -> None:
    shutil.copy(STATE, tmp_path / "state.py")
    link = tmp_path / "elsewhere" / "link.py"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "state.py")
    for script in ("state.py", str(tmp_path / "state.py"), "elsewhere/link.py"):
        cold, warm, *written = await both(script=script, cwd=tmp_path, args=("0", "--flag", "a b"))
        assert warm == cold
        assert written[0] == written[1] == ["a thread was waited for", "atexit ran"]
        assert warm["main"]["__file__"] == str(tmp_path / script)


async def test_so_does_whatever_else_python_executes(tmp_path: Path) -> None:
    shutil.copy(STATE, tmp_path / "state.py")
    py_compile.compile(str(STATE), cfile=str(tmp_path / "compiled.pyc"))
    (tmp_path / "folder").mkdir()
    shutil.copy(STATE, tmp_path / "folder" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.write(STATE, "__main__.py")
    cases = [(("-m",), "state"), ((), "compiled.pyc"), ((), "folder"), ((), "app.pyz"), (("--run-path",), "state.py")]
    for flags, script in cases:
        cold, warm, *_ = await both(*flags, script=script, cwd=tmp_path, args=("0",))
        assert warm == cold, (flags, script)


@pytest.mark.parametrize("end", FAILS_ALIKE)
async def test_it_ends_alike(end: str, tmp_path: Path) -> None:
    ends = []
    for more in ((), WARM):
        code, agent = await finished(*more, script=str(STATE), args=(end,))
        ends.append((code, sorted(agent.out[1:]), [line for line in without_pids(agent.err) if line]))
    cold, warm = ends
    assert Counter(warm[2]) == Counter(cold[2])
    assert warm[:2] == cold[:2]


async def test_workers_draw_different_numbers(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
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
    assert code == 0 and any("workers start warm" in line for line in agent.err)
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
        "signal 9 (SIGKILL): killed from outside",
        "exit code 7",
    ]


async def test_a_fork_server_that_dies_is_replaced_and_takes_no_worker_along(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--max-restarts", "3", *WARM)
    agent = cluster.agents["a"]
    os.kill(await the_fork_server(agent.pid), signal.SIGKILL)
    await agent.line("the process that imports json, decimal died; starting another one")
    assert all(is_running(worker.pid) for worker in first)
    await until(lambda: len(waiting(agent.pid)) >= 2)
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert all(is_warm(worker.pid) for worker in second)
    await cluster.finish(second)


async def test_a_fork_server_that_dies_again_and_again_is_given_up(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--max-restarts", "3", *WARM)
    agent = cluster.agents["a"]
    killed: set[int] = set()
    for _ in range(3):
        fork_server = await the_fork_server(agent.pid, killed)
        os.kill(fork_server, signal.SIGKILL)
        killed.add(fork_server)
    await agent.line("workers start cold: the process that imports json, decimal died again and again")
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert not any(is_warm(worker.pid) for worker in second)
    await cluster.finish(second)


async def test_nothing_is_left_of_an_agent_that_is_killed(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", *WARM)
    agent = cluster.agents.pop("a")
    await until(lambda: len(waiting(agent.pid)) >= 2)
    family = [*fork_servers(agent.pid), *waiting(agent.pid), *(worker.pid for worker in workers)]
    agent.signal(signal.SIGKILL)
    assert await agent.exit_code() == -signal.SIGKILL
    for pid in family:
        await ended(pid)


async def test_nothing_is_left_of_a_run_that_has_ended(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", *WARM)
    agent = cluster.agents["a"]
    await until(lambda: len(waiting(agent.pid)) >= 2)
    family = [*fork_servers(agent.pid), *waiting(agent.pid)]
    await cluster.finish(workers)
    assert not any(map(is_running, family))


# What cannot be kept warm is started cold, and said.


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
         "bad starts 1 threads when it is imported (python"),
        ("raise RuntimeError('no luck')", "bad cannot be imported: RuntimeError: no luck"),
        ("import sys; sys.exit(5)", "bad cannot be imported: SystemExit: 5"),
        ("import os; os._exit(5)", "died again and again"),
        ("import os; os.kill(os.getpid(), 11)", "died again and again"),
    ],
    ids=["threads", "an error", "an exit", "a sudden exit", "a crash"],
)  # fmt: skip
async def test_a_module_that_cannot_be_preloaded(source: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "script.py").write_text("import os; print('rank', os.environ['RANK'])")
    code, agent = await finished("--nproc", "2", "--preload", "json,bad", script="script.py", cwd=tmp_path)
    assert code == 0
    assert sorted(agent.out) == ["rank 0", "rank 1"]
    (line,) = [line for line in agent.err if "workers start cold" in line]
    assert says in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--preload", "torch;numpy"), "--preload: names of modules, such as torch or torch,numpy.random"),
        (("--preload", "json", "--no-python"), "--preload: is for Python scripts, not with --no-python"),
    ],
)
async def test_a_wrong_flag(flags: tuple[str, ...], says: str) -> None:
    agent = await start_agent("--standalone", *flags, script="true")
    assert await agent.exit_code() == 2
    assert says in agent.err[-1]


# With torch.


@pytest.mark.torch
@pytest.mark.timeout(300)
async def test_warm_workers_compute_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    losses = []
    for more in ((), ("--preload", "torch,torch.distributed")):
        flags = (*more, "--nproc", "2", "--redirects", "1", "--log-dir", str(tmp_path / f"logs{len(losses)}"))
        folder = tmp_path / f"cwd{len(losses)}"
        folder.mkdir()
        script = str(PROGRAMS / "linear_regression.py")
        code, agent = await finished(*flags, script=script, cwd=folder, args=("3", "1"))
        assert code == 0, agent.err
        files = sorted((tmp_path / f"logs{len(losses)}").glob("*/attempt_0/*/stdout.log"))
        losses.append([file.read_text() for file in files])
        assert any("workers start warm" in line for line in agent.err) is bool(more)
    assert losses[0] == losses[1] and all(" loss " in text for text in losses[0]) and len(losses[0]) == 2


def is_warm(pid: int) -> bool:
    """Whether the worker was forked from the fork server, whose command line it still has."""
    return b"fork_server_helper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def the_fork_server(agent: int, killed: Collection[int] = ()) -> int:
    """The one that lives, once those that it forks have names of their own."""
    await until(lambda: len(set(fork_servers(agent)) - set(killed)) == 1)
    (fork_server,) = set(fork_servers(agent)) - set(killed)
    return fork_server


def fork_servers(agent: int) -> list[int]:
    return called(agent, "fork-server")


def waiting(agent: int) -> list[int]:
    return called(agent, "warm-process")


def called(agent: int, name: str) -> list[int]:
    """Those of its children that call themselves so."""
    found = []
    for pid in children(agent):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [pid] if Path(f"/proc/{pid}/comm").read_text().strip() == name else []
    return found
