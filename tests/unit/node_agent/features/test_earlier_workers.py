"""Workers of an earlier agent of the same job on this node."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent.features import earlier_workers, words
from node_agent.features.earlier_workers import EarlierWorkers, Found, find
from node_agent.kernel.processes.orphans import new_mark
from node_agent.kernel.workers import nesting
from tests.support.process_info import children
from tests.support.threads import refuse_threads

RUN = f"run-{os.getpid()}"
SERVERS = ["h:1", "h:2"]


def runs(run_id: str = RUN, *servers: tuple[str, int]) -> dict[str, str]:
    return nesting.variables({}, run_id, servers or [("h", 2), ("h", 3)], {})


OWN = {
    **runs(), "NODE_AGENT_ID": "new", "TORCHELASTIC_RUN_ID": RUN, "MASTER_ADDR": "a", "MASTER_PORT": "2",
    "SLURM_JOB_ID": f"{os.getpid()}", "SLURM_RESTART_COUNT": "1",
}  # fmt: skip
OLD = OWN | {"NODE_AGENT_ID": "old", "MASTER_PORT": "1"}


@contextmanager
def process(environment: dict[str, str]) -> Iterator[int]:
    """Start a process with this environment, and yield its pid."""
    command = (sys.executable, "-IS", "-c", "print(flush=True); input()")
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout and started.stdin
        started.stdout.readline()
        yield started.pid
        started.stdin.close()


def found(servers: Collection[str]) -> Found:
    """Return which children of this test are found. Other tests have processes of dead agents at the same time."""
    on_machine, own = find(OWN, servers), children(os.getpid())
    earlier, left = ([pid for pid in pids if pid in own] for pids in (on_machine.earlier, on_machine.left))
    return Found(earlier, left)


@pytest.mark.parametrize(
    ("differs", "is_earlier"),
    [
        ({}, True),
        ({"MASTER_PORT": "2"}, False),  # another agent of this round
        ({"NODE_AGENT_ID": "new"}, False),  # our own
        (runs("another"), False),
        (runs(RUN, ("h", 4)), False),  # another experiment of the same name, at a server of its own
        (nesting.variables(runs(), "inner", [("h", 1)], {}), False),
        (runs("another") | {"SLURM_RESTART_COUNT": "0"}, True),  # a requeued job is a new run
        (runs("another") | {"SLURM_JOB_ID": "another", "SLURM_RESTART_COUNT": "0"}, False),
    ],
)
def test_the_warning_lists_only_workers_of_an_earlier_agent_of_this_job(
    differs: dict[str, str], is_earlier: bool
) -> None:
    with process(OLD | differs) as pid:
        assert found(SERVERS) == Found([pid] * is_earlier, [])


def test_a_job_that_was_not_requeued_has_no_count() -> None:
    first = {name: value for name, value in OLD.items() if name != "SLURM_RESTART_COUNT"} | runs("x")
    with process(first) as pid:
        assert found(SERVERS).earlier == [pid]


def test_runs_without_a_name_have_nothing_in_common() -> None:
    with process(OLD):
        assert found([]) == Found([], [])
    with process(OLD | {"SLURM_RESTART_COUNT": "0"}) as pid:
        assert found([]).earlier == [pid], "but jobs of a scheduler have"


def test_a_process_without_a_round_is_left_out() -> None:
    with process({name: value for name, value in OLD.items() if name != "MASTER_PORT"}):
        assert found(SERVERS) == Found([], [])


def test_processes_of_a_dead_agent_of_any_run_are_found() -> None:
    """Two runs may have the same id. A `--standalone` run has an unknown id, and no server to compare."""
    make = "from node_agent.kernel.processes.orphans import new_mark; print(new_mark())"
    dead = subprocess.run((sys.executable, "-c", make), capture_output=True, text=True, check=True).stdout.strip()
    with process(OLD | runs("another") | {"NODE_AGENT_ID": dead}) as pid:
        assert found([]) == Found([], [pid])
    reused = f"{os.getpid()}-{dead.partition('-')[2]}"
    with process(OLD | runs("another") | {"NODE_AGENT_ID": reused}) as pid:
        assert found([]) == Found([], [pid]), "another process has the agent's pid now"
    with process(OLD | runs("another") | {"NODE_AGENT_ID": new_mark()}):
        assert found([]) == Found([], []), "its agent lives, and may be another user's or of another run"


def test_the_warning_names_some_and_says_what_to_do() -> None:
    text = words.earlier_workers_run(list(range(1, 20)))
    assert "(pids 1, 2, 3, 4, 5, 6, 7, 8, ...)" in text and text.endswith("kill -9 1 2 3 4 5 6 7 8")


async def test_the_agent_also_looks_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of processes, which the workers may have reached, the run continues."""
    monkeypatch.setattr(earlier_workers, "SEARCH_DELAY_S", 0.0)
    refuse_threads(monkeypatch)
    said: asyncio.Queue[str] = asyncio.Queue()
    assignment: Any = object()
    kernel: Any = SimpleNamespace(
        assignment=assignment,
        first_variables=lambda assignment: OWN,
        config=SimpleNamespace(join=SimpleNamespace(explicit_run_id=True), servers=[("h", 1), ("h", 2)]),
        console=SimpleNamespace(log=lambda text, level: said.put_nowait(text)),
    )
    with process(OLD) as pid:
        EarlierWorkers(kernel).starting(assignment)
        async with asyncio.timeout(60):
            assert await said.get() == words.earlier_workers_run([pid])
