"""Programs that use the Python API, as separate processes: where functions come from, and how programs end."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_agent import words
from tests.integration.api.conftest import METHODS
from tests.integration.api.worker_listener import WorkerListener
from tests.support.lazy_modules import need
from tests.support.process_info import ended, is_running
from tests.support.programs import Program

MAIN = """
import copy, os, pickle, sys
from dataclasses import dataclass
from node_agent import LaunchConfig, elastic_launch

METHOD = os.environ.get("METHOD")

@dataclass
class Point:
    x: int

def helper(x):
    return Point(x * 2)

def work(x):
    assert pickle.loads(pickle.dumps(helper(x))) == helper(x), "what is pickled by name is found in the worker, too"
    print("working", flush=True)
    return helper(x)

if __name__ == "__main__":
    values = elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0, start_method=METHOD), work)(21)
    assert values == {0: Point(42), 1: Point(42)}, values
    assert type(values[0]) is Point
    assert elastic_launch(LaunchConfig(1, 1, 1, start_method=METHOD), lambda: helper(1))() == {0: Point(2)}
    assert elastic_launch(LaunchConfig(1, 1, 1, start_method=METHOD), copy.copy)(Point(5)) == {0: Point(5)}
    print("all is well")
"""

UNGUARDED = """
import os
from node_agent import LaunchConfig, elastic_launch, start_processes

METHOD = os.environ.get("METHOD")

def work():
    return 1

print("importing", flush=True)
"""
LAUNCH = "print(elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0, start_method=METHOD), work)())"
START = """
with start_processes("trainer", work, {0: ()}, {0: {}}, start_method=METHOD) as context:
    print(context.wait().failures)
"""

WAITING = """
import signal, sys, threading, time
from node_agent import LaunchConfig, SignalException, elastic_launch, start_processes
from tests.integration.api.functions import report, report_and_wait

def launch(path, method):
    elastic_launch(LaunchConfig(1, 1, 2, start_method=method), report_and_wait)(path)

def start(path, method):
    args, envs = {0: (path,), 1: (path,)}, {0: {}, 1: {}}
    with start_processes("t", report_and_wait, args, envs, start_method=method) as context, report(path):
        context.wait()

def start_and_forget(path, method):
    context = start_processes("t", report_and_wait, {0: (path,), 1: (path,)}, {0: {}, 1: {}}, start_method=method)
    print(*context.pids().values())

def take_ctrl_c():
    signal.sigwait([signal.SIGUSR1])
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(3600)

if __name__ == "__main__":
    if sys.argv[4:]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        threading.Thread(target=take_ctrl_c, daemon=True).start()
    try:
        globals()[sys.argv[1]](*sys.argv[2:4])
    except SignalException as error:
        print("told:", error.sigval.name, signal.getsignal(error.sigval) is signal.SIG_DFL)
        sys.exit(7)
"""

FAILING = """
import sys
from node_agent import ChildFailedError, LaunchConfig, elastic_launch, start_processes
from tests.integration.api.functions import boom

if __name__ == "__main__":
    with start_processes("t", boom, {0: ("x",)}, {0: {}}, start_method=sys.argv[1]) as context:
        print(open(context.wait().failures[0].error_file).read())
    try:
        elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, start_method=sys.argv[1]), boom)("x")
    except ChildFailedError as error:
        print(open(error.failures[0].error_file).read())
"""


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """Variables of a temporary folder with a short path: multiprocessing keeps a socket in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield {"TMPDIR": folder, "PYTHONPATH": os.getcwd()}


def run(*args: str, cwd: Path, env: dict[str, str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], input=text, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True,
        timeout=110,
    )  # fmt: skip


# Where functions are defined.


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (("train.py",), "spawn"),
        (("train.py",), "fork"),
        (("train.py",), "forkserver"),
        (("-m", "train"), "spawn"),
        (("-m", "train"), "forkserver"),
        (("-",), "spawn"),
        (("-",), "forkserver"),
        (("-c", MAIN), "spawn"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_functions_of_the_main_module(words: tuple[str, ...], method: str, tmp_path: Path, env: dict[str, str]) -> None:
    """Functions of a script from standard input or `-c` cannot be imported. They reach workers by value."""
    (tmp_path / "train.py").write_text(MAIN)
    env = {**env, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}", "METHOD": method}
    done = run(*words, cwd=tmp_path, env=env, text=MAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["working", "working", "all is well"]


DECORATED = """
import contextlib, os, sys, threading
from node_agent import LaunchConfig, elastic_launch

LOCK = threading.Lock()

def fail_with(text):
    raise ValueError(text)

@contextlib.contextmanager
def quiet():
    yield

@quiet()
def work(text):
    with LOCK:
        return fail_with(text) if text else "done"

if __name__ == "__main__":
    launch = elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, start_method=sys.argv[1]), work)
    assert launch("") == {0: "done"}
    launch("boom")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_decorated_function_is_found_by_its_name(method: str, tmp_path: Path, env: dict[str, str]) -> None:
    """A decorator has its code in another file. The function may use objects that cannot be pickled."""
    (tmp_path / "train.py").write_text(DECORATED)
    done = run("train.py", method, cwd=tmp_path, env=env)
    assert "return fail_with(text) if text" in done.stderr and "ValueError: boom" in done.stderr, done.stderr


NOTEBOOK = """
import nbclient, nbformat, sys
book = nbformat.reads(sys.stdin.read(), 4)
nbclient.NotebookClient(book, timeout=60).execute()
print(nbformat.writes(book))
"""


def test_in_a_notebook(tmp_path: Path, env: dict[str, str]) -> None:
    """A real kernel: cells define functions, a loop runs in the main thread, the notebook shows the output."""
    need("nbclient")
    nbformat = pytest.importorskip("nbformat")
    head, _, tail = MAIN.partition('if __name__ == "__main__":\n')
    call = "\n".join(line.removeprefix("    ") for line in tail.splitlines())
    wait = "await elastic_launch(LaunchConfig(1, 1, 2, start_method=METHOD), helper).launch_async(4)"
    cells = [head, *(cell for method in METHODS for cell in (f"METHOD = {method!r}\n{call}", wait))]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = run("-c", NOTEBOOK, cwd=tmp_path, env=env, text=nbformat.writes(book))
    assert done.returncode == 0, done.stderr
    ran = nbformat.reads(done.stdout, 4).cells
    for calling, waiting in zip(ran[1::2], ran[2::2], strict=True):
        said = "".join(output.get("text", "") for output in calling.outputs)
        assert sorted(said.split("\n")) == ["", "all is well", "working", "working"]
        assert waiting.outputs[-1]["data"]["text/plain"] == "{0: Point(x=8), 1: Point(x=8)}"
    left = [name for name in os.listdir(env["TMPDIR"]) if not name.startswith("pymp-")]  # a kernel is killed at its end
    assert left == []


@pytest.mark.parametrize(("call", "method"), [(LAUNCH, "spawn"), (START, "forkserver")], ids=["launch", "start"])
def test_a_script_without_a_main_guard_gets_an_explanation(
    call: str, method: str, tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(UNGUARDED + call)
    done = run("train.py", cwd=tmp_path, env={**env, "METHOD": method})
    assert f"RuntimeError: {words.api.UNGUARDED}" in done.stderr
    assert done.stdout.count("importing") <= 3, "the script, and its workers once each"
    assert "{0: 1" not in done.stdout


def test_with_start_method_fork_a_script_does_not_need_a_main_guard(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(UNGUARDED + LAUNCH)
    done = run("train.py", cwd=tmp_path, env={**env, "METHOD": "fork"})
    assert done.stdout.splitlines() == ["importing", "{0: 1, 1: 1}"], done.stderr


# How programs end.

HOW = [("launch", "spawn"), ("launch", "fork"), ("start", "fork"), ("start", "forkserver")]


async def start(tmp_path: Path, env: dict[str, str], listener: WorkerListener, *words: str) -> tuple[Program, set[int]]:
    """Return a program whose two workers, and if possible itself, have reported to the listener, and their pids."""
    (tmp_path / "program.py").write_text(WAITING)
    program = await Program.start(sys.executable, "program.py", *words, env=env, cwd=str(tmp_path))
    return program, await asyncio.to_thread(listener.pids, 3 if words[0] == "start" else 2) - {program.pid}


@pytest.mark.parametrize(("call", "method"), HOW)
@pytest.mark.parametrize(
    ("signum", "code", "says", "flags"),
    [
        (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt", ()),
        # The main thread gets no such signal while it waits, nor one that comes in the instant before.
        (signal.SIGUSR1, -signal.SIGINT, "KeyboardInterrupt", ("another thread takes Ctrl-C",)),
        (signal.SIGTERM, 7, "told: SIGTERM True", ()),
    ],
    ids=["Ctrl-C", "Ctrl-C in another thread", "SIGTERM"],
)
async def test_a_signal_ends_the_workers_first(
    signum: signal.Signals, code: int, says: str, flags: tuple[str, ...], call: str, method: str, tmp_path: Path,
    env: dict[str, str], listener: WorkerListener, programs: None,
) -> None:  # fmt: skip
    program, workers = await start(tmp_path, env, listener, call, listener.path, method, *flags)
    program.signal(signum)
    assert await program.exit_code() == code
    assert not any(map(is_running, workers))
    assert says in [*program.out, *program.err[-1:]]
    assert os.listdir(env["TMPDIR"]) == []


@pytest.mark.parametrize(("call", "method"), HOW)
async def test_workers_end_with_a_program_that_is_killed(
    call: str, method: str, tmp_path: Path, env: dict[str, str], listener: WorkerListener, programs: None
) -> None:
    """The program cannot do anything any more: the kernel ends the workers."""
    program, workers = await start(tmp_path, env, listener, call, listener.path, method)
    await program.kill()
    for pid in workers:
        await ended(pid)


def test_a_program_that_forgets_its_processes(tmp_path: Path, env: dict[str, str], listener: WorkerListener) -> None:
    (tmp_path / "program.py").write_text(WAITING)
    done = run("program.py", "start_and_forget", listener.path, "fork", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(is_running(int(pid)) for pid in done.stdout.split())
    assert os.listdir(env["TMPDIR"]) == []


def test_after_a_failure_no_file_is_left(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    done = run("failing.py", "fork", cwd=tmp_path, env=env)
    assert done.stdout.count('"ValueError: x"') == 2, "it can be read as long as the program runs"
    assert os.listdir(env["TMPDIR"]) == []


# Together with other code.


def test_heavy_modules_are_not_imported(tmp_path: Path, env: dict[str, str]) -> None:
    text = """
import sys
def loaded(*names): return sorted(set(names) & {name.partition(".")[0] for name in sys.modules})
import node_agent
assert loaded("asyncio", "multiprocessing", "rdzv_protocol", "torch", "aiohttp", "cloudpickle") == []
from node_agent import *
elastic_launch(LaunchConfig(1, 1, 1, start_method="fork"), print)()
heavy = loaded("torch", "aiohttp", "cloudpickle")
assert heavy == [], heavy
"""
    done = run("-c", text, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_documented() -> None:
    import node_agent

    for name in node_agent.__all__:
        value: Any = getattr(node_agent, name)
        assert value.__doc__, name
        assert name in dir(node_agent)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        node_agent.nothing  # noqa: B018


TORCH = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from node_agent import LaunchConfig, elastic_launch

def train(shared):
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    shared[dist.get_rank()] = 7
    dist.barrier()
    dist.destroy_process_group()
    return total, os.environ["TORCHELASTIC_USE_AGENT_STORE"]

def fail():
    raise KeyError("x")

if __name__ == "__main__":
    shared = torch.zeros(2).share_memory_()
    values = elastic_launch(LaunchConfig(1, 1, 2, start_method=sys.argv[1]), train)(shared)
    print(values, shared.tolist())
    try:
        elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, start_method="fork"), fail)()
    except ChildFailedError as error:
        print(error.failures[0].message["message"])
"""


@pytest.mark.torch
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_torch_workers_tensors_and_errors(method: str, tmp_path: Path, env: dict[str, str]) -> None:
    """Workers meet, share a tensor with the program and return tensors. torch's own exception class catches ours."""
    (tmp_path / "train.py").write_text(TORCH)
    done = run("train.py", method, cwd=tmp_path, env=env)
    assert done.stdout.splitlines() == [
        "{0: (tensor([3.]), 'True'), 1: (tensor([3.]), 'True')} [7.0, 7.0]",
        "KeyError: 'x'",
    ], done.stderr
