"""Cost of an agent's start, next to an interpreter that imports asyncio in the same minute."""

import os
import subprocess
import sys
from typing import NamedTuple

TRIES = 5
TIMES, MEMORY_TIMES = 5.0, 2.0
"""About 3.2 and 1.4 are measured: room for noise and for small things, none for aiohttp or torch."""

IMPORT = (sys.executable, "-c", "import asyncio")
LAUNCH = (sys.executable, "-m", "node_agent", "--standalone", "--no-python", "true")


SHOW_WORDS = """
import runpy, sys
sys.argv = ["node-agent", "--standalone", "--no-python", "true"]
try:
    runpy.run_module("node_agent", run_name="__main__")
except SystemExit:
    print(*(name for name in sys.modules if name.startswith("node_agent") and "words" in name.split(".")))
"""
"""Program that is an agent, and prints which modules of sentences it has loaded at its end."""


class Cost(NamedTuple):
    cpu_s: float
    memory_kb: int
    """The most that one process held."""


def cost(command: tuple[str, ...]) -> Cost:
    """CPU time and memory of a command and its children: a busy machine makes it slower, but no dearer."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def test_a_launch_costs_a_few_times_what_asyncio_does() -> None:
    pairs = [(cost(IMPORT), cost(LAUNCH)) for _ in range(TRIES)]
    reference, launch = (min(costs) for costs in zip(*pairs, strict=True))
    assert launch.cpu_s < TIMES * reference.cpu_s, f"{launch} next to {reference}"
    assert launch.memory_kb < MEMORY_TIMES * reference.memory_kb, f"{launch} next to {reference}"


def test_a_good_start_loads_one_module_of_sentences() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW_WORDS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["node_agent.words", "node_agent.words.progress"]
