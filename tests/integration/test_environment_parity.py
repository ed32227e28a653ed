"""A script sees the same under node-agent as under torchrun.

The same script runs under both and writes down what it finds: every environment variable, its arguments, its
interpreter, its process. `DIFFERENCES` must list each difference, with the reason and the expected value.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.launchers import NODE_AGENT, PROGRAMS, TORCHRUN, free_port, launch

pytestmark = pytest.mark.torch

PAGE = PROGRAMS.parents[1] / "docs" / "how-to" / "migrate-from-torchrun.md"
DUMP = PROGRAMS / "dump.py"
FOUND = "found"
IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
SIGHUP_IGNORED = 1
CLEARED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
           "CUDA_VISIBLE_DEVICES", "PYTHON_EXEC", "PYTHONUNBUFFERED")  # fmt: skip
"""Variables that a machine's own environment may have. A case sets those that it needs."""

Finding = dict[str, Any]
"""Findings of one worker, flat: `environment/RANK`."""
Holds = Callable[[Sequence[Finding], str], bool]
"""Return whether the findings of all workers under one name, by rank, are as expected."""


def every(check: Callable[[Any], bool]) -> Holds:
    """Check each worker's finding."""
    return lambda found, name: all(check(worker.get(name)) for worker in found)


def same(check: Callable[[Any], bool]) -> Holds:
    """Check each worker's finding, which must be the same for all."""
    return lambda found, name: every(check)(found, name) and len({worker[name] for worker in found}) == 1


def matches(pattern: str) -> Holds:
    return every(lambda value: re.search(pattern, value) is not None)


def is_port(value: str) -> bool:
    return value.isdigit() and 1024 <= int(value) < 65_536


def is_error_file(found: Sequence[Finding], name: str) -> bool:
    return all(
        re.search(rf"/attempt_{worker[RESTARTS]}/\d+/error\.json$", worker[name])
        and worker["process/folder of the error file is there"]
        for worker in found
    ) and len({worker[name] for worker in found}) == len(found)


RESTARTS = "environment/TORCHELASTIC_RESTART_COUNT"


NCCL_DUMPS = {
    "TORCH_FR_BUFFER_SIZE": "^2000$",
    "TORCH_FR_DUMP_TEMP_FILE": r"/attempt_\d+/\d+/flight_recorder_rank_$",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/round_1_nccl_$",
}
BESIDE_THE_LOGS = (
    "with files that are kept: NCCL's flight recorder is beside the worker's logs, written when it is asked"
)


@dataclass(frozen=True)
class Difference:
    """Why a finding differs here, and what can be relied on instead."""

    reason: str
    holds: Holds


DIFFERENCES: Mapping[str, Difference] = {
    "environment/MASTER_ADDR": Difference(
        "torchrun: the host name that the node of rank 0 finds for itself, which the others may not resolve; here the "
        "address from which that node reaches the server. With static both have --master-addr",
        same(lambda value: value == "127.0.0.1"),
    ),
    "environment/MASTER_PORT": Difference(
        "torchrun: a free port, or with static on several nodes --master-port, where here the server listens; here a "
        "port that the agent of rank 0 has reserved, fresh each round",
        same(is_port),
    ),
    "environment/TORCHELASTIC_RUN_ID": Difference(
        "made up by either launcher, since the command line gives none",
        same(lambda value: re.fullmatch(r"[0-9a-f]{16}", value) is not None),
    ),
    "environment/TORCHELASTIC_ERROR_FILE": Difference(
        "in a folder with a random name; ends as torchrun's does: attempt_<n>/<local rank>/error.json", is_error_file
    ),
    "environment/NODE_AGENT_PROGRESS_FILE": Difference(
        "memory in which a worker may tell its progress: a descriptor of the agent's, of no use to anybody else",
        every(lambda value: re.fullmatch(r"/proc/\d+/fd/\d+", value) is not None),
    ),
    "environment/TORCH_WORKER_SERVER_SOCKET": Difference(
        "where torch's worker server listens, if the script has one (`worker_main`), to be asked when it hangs",
        every(lambda value: value.endswith(".server") and len(value) <= 100),
    ),
    **{f"environment/{name}": Difference(BESIDE_THE_LOGS, matches(end)) for name, end in NCCL_DUMPS.items()},
    "environment/NODE_AGENT_ID": Difference(
        "torchrun has none: it marks what a worker starts, so that nothing of it outlives its round and its agent",
        every(lambda value: re.fullmatch(r"\d+-\d+-[0-9a-f]{16}", value) is not None),
    ),
    "environment/NODE_AGENT_RUNS": Difference(
        "torchrun has none: it tells a launcher that a worker starts which variables are the worker's alone, and which "
        "runs it must not join",
        every(lambda value: {"runs", "given"} == json.loads(value).keys()),
    ),
    "environment/PYTHONUNBUFFERED": Difference(
        "torchrun's workers write to its terminal, line by line; here to a pipe, to which Python would write in "
        "blocks, the last of which is lost when a worker is killed",
        every(lambda value: value == "1"),
    ),
    "environment/TORCHELASTIC_TIMER_FILE": Difference(
        "a named pipe in a folder of the agent's own, which is gone when the agent is",
        same(lambda value: value.endswith("/timer")),
    ),
    "process/death signal": Difference(
        "torchrun's workers outlive a killed torchrun; here the kernel kills them with their agent",
        every(lambda value: value == 9),
    ),
    "process/ignored signals": Difference(
        "torchrun handles a SIGHUP that it was started to ignore; here nohup stays nohup, for the workers, too",
        every(lambda value: int(value, 16) & SIGHUP_IGNORED == SIGHUP_IGNORED),
    ),
    "process/stdout": Difference(
        "torchrun's workers write to its terminal; here to a pipe, so that the agent can show a failed worker's last "
        "lines, and so that the lines of two workers do not mix",
        every(lambda value: value == "pipe, blocking"),
    ),
    "process/stderr": Difference("as stdout", every(lambda value: value == "pipe, blocking")),
    "process/leads its session": Difference(
        "with --run-path, torchrun's script runs in a child of multiprocessing, in torchrun's session; here every "
        "worker has a session of its own, with which what it starts ends",
        every(lambda value: value is True),
    ),
    "process/leads its group": Difference("as its session", every(lambda value: value is True)),
    "process/other descriptors": Difference(
        "with --run-path, torchrun's script has multiprocessing's pipes open; here none",
        every(lambda value: value == []),
    ),
    "python/command": Difference(
        "with --run-path, torchrun's is multiprocessing's; here the arguments are seen from without, too",
        every(lambda value: value[-4:] == [DUMP.name, FOUND, "--lr", "0.1"]),
    ),
    "python/unbuffered": Difference(
        "with --run-path and --no-python, torchrun's script keeps its output back where it has no terminal; here it is "
        "shown at once, as that of all scripts",
        every(lambda value: value == [True, True]),
    ),
}  # fmt: skip
ALWAYS = (
    "environment/NODE_AGENT_ID",
    "environment/NODE_AGENT_PROGRESS_FILE",
    "environment/NODE_AGENT_RUNS",
    "environment/PYTHONUNBUFFERED",
    "environment/TORCHELASTIC_ERROR_FILE",
    "environment/TORCH_WORKER_SERVER_SOCKET",
    "process/death signal",
)
KEPT_FILES = tuple(f"environment/{name}" for name in NCCL_DUMPS)
FREE_PLACE = ("environment/MASTER_ADDR", "environment/MASTER_PORT")
CHILD_OF_MULTIPROCESSING = (
    "process/leads its session", "process/leads its group", "process/other descriptors", "python/command",
    "python/unbuffered",
)  # fmt: skip
MADE_UP = (*FREE_PLACE, "environment/TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Command lines, one a node. `SCRIPT` in them is the script and its first argument, `PORT` a free port."""

    nodes: tuple[str, ...]
    differs: tuple[str, ...] = ()
    workers: int
    environment: Mapping[str, str] = field(default_factory=dict)
    shell: str = ""
    """Runs before the agent, in the shell that then executes it."""
    terminal: bool = False
    legacy: bool = False
    """Whether to use `python -m torch.distributed.launch` and its twin."""
    restarts: int = 0


CASES: Mapping[str, Case] = {
    "standalone": Case(nodes=("--standalone --nproc-per-node 2 SCRIPT --lr 0.1",), workers=2, differs=MADE_UP),
    "no flags": Case(nodes=("SCRIPT",), workers=1, differs=MADE_UP),
    "one static node": Case(nodes=("--nproc_per_node=2 --master_port PORT SCRIPT",), workers=2),
    "one static node with an address": Case(
        nodes=("--master_addr localhost --master_port PORT --max-restarts 2 SCRIPT",), workers=1
    ),
    "one c10d node at a free port, as TorchX starts it": Case(
        nodes=("--rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id app-1 --nnodes 1 --nproc_per_node 2 --tee 3 "
               "SCRIPT",), workers=2, differs=(*FREE_PLACE, *KEPT_FILES),
    ),
    "a role without a name, as TorchX gives it": Case(
        nodes=("--standalone --role '' SCRIPT",), workers=1, differs=MADE_UP
    ),
    "two c10d nodes": Case(
        nodes=("--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id nightly "
               "--max-restarts 3 SCRIPT",) * 2, workers=2, differs=FREE_PLACE,
    ),
    "two static nodes, two roles, and more workers on one": Case(
        nodes=("--nnodes 2 --master-addr 127.0.0.1 --master-port PORT --node-rank 0 --role trainer SCRIPT",
               "--nnodes 2 --master-addr 127.0.0.1 --master-port PORT --node-rank 1 --role reader --nproc-per-node 2 "
               "SCRIPT"), workers=3, differs=("environment/MASTER_PORT",),
    ),
    "the flags from PET variables": Case(
        nodes=("SCRIPT",), workers=2, environment={"PET_NPROC_PER_NODE": "2", "PET_MASTER_PORT": "PORT",
                                                   "PET_MAX_RESTARTS": "1", "PET_ROLE": "trainer"},
    ),
    "virtual local ranks among some of the GPUs": Case(
        nodes=("--standalone --nproc-per-node 2 --virtual-local-rank SCRIPT",), workers=2, differs=MADE_UP,
        environment={"CUDA_VISIBLE_DEVICES": "4, 7"},
    ),
    "virtual local ranks among all GPUs; variables of the user's own": Case(
        nodes=("--standalone --nproc-per-node 2 --virtual-local-rank SCRIPT",), workers=2, differs=MADE_UP,
        environment={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                     "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    "started by a worker of another run": Case(
        nodes=("--standalone --nproc-per-node 2 --signals-to-handle SIGTERM,SIGUSR1 SCRIPT",), workers=2,
        differs=MADE_UP, environment={
            "RANK": "7", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "5",
            "GROUP_WORLD_SIZE": "6", "ROLE_NAME": "outer", "ROLE_RANK": "7", "ROLE_WORLD_SIZE": "8", "MASTER_ADDR": "h",
            "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "outer", "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": "/tmp/outer.json", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
        },
    ),
    "a file timer": Case(
        nodes=("--standalone --nproc-per-node 2 SCRIPT",), workers=2,
        differs=(*MADE_UP, "environment/TORCHELASTIC_TIMER_FILE"), environment={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
    ),
    "a module": Case(nodes=("--standalone -m dump found --lr 0.1",), workers=1, differs=MADE_UP),
    "a script that is run by its path": Case(
        nodes=("--standalone --run-path SCRIPT --lr 0.1",), workers=1,
        differs=(*MADE_UP, *CHILD_OF_MULTIPROCESSING),
    ),
    "a program that is not Python": Case(
        nodes=("--standalone --no-python sh -c 'exec PYTHON -X dev SCRIPT rank-${RANK} ${local_rank}'",), workers=1,
        differs=(*MADE_UP, "python/unbuffered"),
    ),
    "local ranks in the arguments": Case(
        nodes=("--standalone --nproc-per-node 2 SCRIPT --out=part-${local_rank} $local_rank ${rank} $$ $ 5$",),
        workers=2, differs=MADE_UP,
    ),
    "an interpreter of the user's own": Case(
        nodes=("--standalone SCRIPT",), workers=1, differs=MADE_UP, environment={"PYTHON_EXEC": "OTHER_PYTHON"},
    ),
    "torch.distributed.launch": Case(
        nodes=("--nproc_per_node=2 --master_port=PORT SCRIPT --lr 0.1",), workers=2, legacy=True,
    ),
    "torch.distributed.launch --use-env": Case(
        nodes=("--nproc_per_node=2 --use_env SCRIPT --lr 0.1",), workers=2, differs=MADE_UP, legacy=True
    ),
    "the second round": Case(
        nodes=("--standalone --max-restarts 2 SCRIPT",), workers=1, differs=MADE_UP,
        environment={"FAIL_ONCE": "1"}, restarts=1,
    ),
    "streams in files": Case(
        nodes=("--nproc-per-node 2 --master-port PORT --rdzv-id nightly --log-dir logs -r 0:3,1:1 SCRIPT",), workers=2,
        differs=KEPT_FILES,
    ),
    "no files": Case(nodes=("--nproc-per-node 2 --master-port PORT --log-dir /dev/null SCRIPT",), workers=2),
    "odds and ends of the process that starts it": Case(
        nodes=("--standalone SCRIPT",), workers=1, differs=(*MADE_UP, "process/ignored signals"),
        shell="trap '' HUP USR2; umask 027; ulimit -n 500; ulimit -c 0; exec 7>/dev/null",
    ),
    "a terminal": Case(
        nodes=("--standalone SCRIPT",), workers=1, terminal=True,
        differs=(*MADE_UP, "process/stdout", "process/stderr"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a_script_sees_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_launchers(monkeypatch)
    with free_port() as port:
        theirs, ours = [await findings(launcher, CASES[name], port, tmp_path) for launcher in (TORCHRUN, NODE_AGENT)]
    allowed = {*ALWAYS, *CASES[name].differs}
    wrong = []
    for what in sorted({what for worker in (*theirs, *ours) for what in worker}):
        values = [[worker.get(what, "missing") for worker in workers] for workers in (theirs, ours)]
        if values[0] != values[1] and not (what in allowed and DIFFERENCES[what].holds(ours, what)):
            wrong.append(f"{what}\n  {TORCHRUN}:   {values[0]}\n  {NODE_AGENT}: {values[1]}")
    assert not wrong, "\n".join(wrong)


def test_every_difference_that_is_allowed_is_needed() -> None:
    assert {name for case in CASES.values() for name in case.differs} | set(ALWAYS) == DIFFERENCES.keys()


def test_every_variable_that_differs_is_on_the_migration_page() -> None:
    variables = [name.removeprefix("environment/") for name in DIFFERENCES if name.startswith("environment/")]
    assert [name for name in variables if f"`{name}`" not in PAGE.read_text()] == []


async def findings(launcher: str, case: Case, port: str, folder: Path) -> list[Finding]:
    """Return the findings of each worker of the last round, by rank."""
    found = folder / FOUND
    found.mkdir()
    shutil.copy(DUMP, folder)
    python = folder / "python"
    words = {"PORT": port, "SCRIPT": f"{DUMP.name} {FOUND}", "OTHER_PYTHON": str(python), "PYTHON": sys.executable}
    python.unlink(missing_ok=True)
    python.symlink_to(sys.executable)
    through = ["sh", "-c", f'{case.shell}; exec "$@"', "sh"] if case.shell else []
    await launch(
        launcher,
        *(shlex.split(filled(node, words)) for node in case.nodes),
        env={name: filled(value, words) for name, value in case.environment.items()},
        cwd=folder,
        through=[sys.executable, "-c", IN_A_TERMINAL] if case.terminal else through,
        legacy=case.legacy,
    )
    reports = [json.loads((found / f"{case.restarts}-{rank}.json").read_text()) for rank in range(case.workers)]
    shutil.rmtree(found)
    return [flat(report) for report in reports]


def filled(text: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(words), lambda match: words[match[0]], text)


def flat(report: Mapping[str, Any], above: str = "") -> Finding:
    found: Finding = {}
    for name, value in report.items():
        found |= flat(value, f"{above}{name}/") if isinstance(value, dict) else {above + name: value}
    return found


def forget_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables of this machine that launchers would read."""
    for name in [*os.environ]:
        if name in CLEARED or name.startswith(("TORCH", "PET_", "GROUP_", "ROLE_")):
            monkeypatch.delenv(name)
