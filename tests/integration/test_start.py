"""Cost of an agent's start, compared with an interpreter that imports asyncio at the same time."""

import os
import re
import subprocess
import sys

import pytest

TRIES = 5
TIMES, MEMORY_TIMES = 3.3, 1.25
"""About 1.8 and 1.13 are measured. The limits leave room for noise and small things, not for aiohttp, torch or OpenSSL.
"""

IMPORT = (sys.executable, "-c", "import asyncio")
IMPORT_AND_SHOW = (sys.executable, "-c", "import asyncio; print(open('/proc/self/status').read())")
LAUNCH = (sys.executable, "-m", "node_agent", "--standalone", "--no-python")


SHOW_MODULES = """
import runpy, sys
sys.argv = ["node-agent", "--standalone", sys.argv[1]]
try:
    runpy.run_module("node_agent", run_name="__main__")
except SystemExit:
    print(*sys.modules)
"""
"""Agent that prints at its end which modules it has loaded."""
DEFERRED = {"_hashlib", "_ssl", "inspect", "msgspec.inspect", "platform", "typing_extensions", "argparse"}
DEFERRED |= {"textwrap", "tokenize", "locale", "shlex", "shutil", "decimal", "datetime", "ctypes"}
DEFERRED |= {"array", "linecache", "traceback", "uuid"}
DEFERRED |= {"rdzv_server.core.views.health", "rdzv_server.config", "rdzv_protocol.actions"}
"""Modules that a healthy run does not load, because they take milliseconds and megabytes."""


LATER_NOTHING_IS_IMPORTED = """
import sys
from importlib.abc import MetaPathFinder
from node_agent.features import imports

class Gone(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith(("node_agent", "rdzv_protocol", "rdzv_server")):
            raise OSError(24, f"Too many open files: {name}")

def load(load=imports.load):
    load()
    sys.meta_path.insert(0, Gone())
    open(sys.argv[1], "w").close()

imports.load = load
from node_agent.cli.main import main
sys.exit(main(["--standalone", "--max-restarts", "1", "--nproc", "2", "--no-python", "sh", "-c", sys.argv[2]]))
"""
"""Agent that cannot import anything of its own after the modules that a failure needs."""


def cpu_s(*command: str) -> float:
    """Return the CPU time of a command and its children: a busy machine makes it slower, but not more expensive."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


def peak_kb(*command: str) -> int:
    """Return the peak memory of the process whose status a command prints. A child's `ru_maxrss` begins with its
    parent's.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", done.stdout)
    return int(peak)


def test_a_launch_costs_a_few_times_what_asyncio_does() -> None:
    pairs = [(cpu_s(*IMPORT), cpu_s(*LAUNCH, "true")) for _ in range(TRIES)]
    reference, launch = (min(costs) for costs in zip(*pairs, strict=True))
    assert launch < TIMES * reference, f"{launch} s next to {reference} s"


def test_an_agent_holds_little_more_memory_than_asyncio_does() -> None:
    reference, launch = peak_kb(*IMPORT_AND_SHOW), peak_kb(*LAUNCH, "sh", "-c", "cat /proc/$PPID/status")
    assert launch < MEMORY_TIMES * reference, f"{launch} kB next to {reference} kB"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> list[str]:
    """Modules that an agent has loaded when its only worker has succeeded."""
    worker = tmp_path_factory.mktemp("start") / "worker.py"
    worker.touch()
    done = subprocess.run([sys.executable, "-c", SHOW_MODULES, worker], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_normal_start_loads_one_words_module(loaded) -> None:
    words = [name for name in loaded if name.startswith("node_agent") and "words" in name.split(".")]
    assert words == ["node_agent.words", "node_agent.words.progress"]


def test_a_normal_start_loads_few_words_modules_of_the_server(loaded) -> None:
    """It loads the modules of what the run's events say, and of the faults that nodes can have."""
    words = {name for name in loaded if name.startswith("rdzv_server.words.")}
    assert words == {f"rdzv_server.words.{name}" for name in ("completion", "nodes", "runs", "service")}
    assert "rdzv_protocol.words.run" not in loaded


def test_a_normal_start_defers_heavy_imports(loaded) -> None:
    assert DEFERRED.isdisjoint(loaded)


WITHOUT_A_LIST = """
import runpy, signal, sys
del signal.valid_signals
sys.argv = ["node-agent", "--standalone", "--no-python", "true"]
runpy.run_module("node_agent", run_name="__main__")
"""


def test_a_normal_run_never_lists_all_signals() -> None:
    """asyncio lists them to check each signal that gets a handler."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_LIST], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "end",
    [
        'echo "the worker says why" >&2; exit 3',
        '[ $RANK = 0 ] && exec sleep 1000; echo "RuntimeError: gloo: Connection closed by peer" >&2; exit 3',
        "[ $RANK = 0 ] && exec sleep 1000; kill -KILL $$$$",
    ],
    ids=["an error", "a lost peer", "a kill"],
)
def test_an_agent_whose_program_is_gone_still_reports_failures(tmp_path, end) -> None:
    """No descriptor is left, or another version has been installed. All that a failure needs was imported before."""
    ready = tmp_path / "ready"
    worker = f"while ! [ -e {ready} ]; do sleep 0.05; done; {end}"
    done = subprocess.run(
        [sys.executable, "-c", LATER_NOTHING_IS_IMPORTED, str(ready), worker],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Too many open files" not in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("signal 9" if "KILL" in end else "exit code 3") >= 2, "the failure of each round"
