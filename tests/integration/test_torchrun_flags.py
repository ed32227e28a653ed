"""The effects of torchrun's flags on a user's scripts, with real processes."""

import signal
import sys
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from tests.support.launchers import NODE_AGENT, TORCHRUN, free_port, launch
from tests.support.message_search import has_message
from tests.support.programs import AGENT, WORKER, Program, start_agent
from tests.support.worker_hub import WorkerHub, finish

SHOW = "import sys\nprint(__name__, sys.argv, 'of', sys.executable)\n"


async def test_a_signal_that_is_named_makes_the_agent_leave_and_reaches_the_workers(hub: WorkerHub) -> None:
    agent = await start_agent("--signals-to-handle", "SIGUSR1", env=hub.env)
    (worker,) = await hub.group(1)
    assert worker.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGUSR1"
    await worker.tell("ignore SIGTERM")
    agent.signal(signal.SIGUSR1)
    assert await agent.exit_code() == 1
    await worker.gone()
    assert has_message(agent.said, words.leaving.leaving, why="SIGUSR1")


async def test_a_scripts_background_command_hears_sigint_and_under_nohup_it_stays(hub: WorkerHub) -> None:
    ignoring = ("sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", sys.executable, "-m", "node_agent")
    agent = await Program.start(*ignoring, "--standalone", WORKER, env=hub.env)
    (worker,) = await hub.group(1)
    agent.signal(signal.SIGHUP)
    agent.signal(signal.SIGINT)
    assert await agent.exit_code() == 1
    await worker.gone()
    (leaving,) = [line for line in agent.said if has_message(line, words.leaving.leaving)]
    assert leaving.startswith("node-agent: SIGINT: ")


async def test_run_path_runs_the_script_as_main(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    agent = await start_agent("--run-path", script=str(script), env={"PYTHON_EXEC": "/nowhere"})
    assert await agent.exit_code() == 0, agent.err
    (line,) = agent.out
    assert line.removeprefix("[default0]:") == f"__main__ {[str(script)]} of {sys.executable}"


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
async def test_run_path_leaves_native_threads_alone_when_the_script_has_succeeded(tmp_path: Path, end: str) -> None:
    """A process group that was not destroyed sometimes aborts during the interpreter's shutdown."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, ctypes, sys, threading, time\n"
        "libc = ctypes.CDLL(None)\nlibc.on_exit(libc.abort, None)\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n" + end
    )
    agent = await start_agent("--run-path", script=str(script))
    assert await agent.exit_code() == 0, agent.err
    assert agent.out == ["thread", "at exit"]


@pytest.mark.parametrize("end", ["sys.stdout.close()", "sys.stdout = None"])
async def test_run_path_succeeds_if_the_script_closes_its_output(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nprint('done', flush=True)\n{end}\n")
    agent = await start_agent("--run-path", script=str(script))
    assert await agent.exit_code() == 0, agent.err
    assert agent.out == ["done"]


async def test_run_path_fails_as_the_script_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(3)\n")
    agent = await start_agent("--run-path", script=str(script))
    assert await agent.exit_code() == 1
    assert any("exit code 3" in line for line in agent.err), agent.err
    assert f"{script} FAILED" in agent.err


@pytest.mark.parametrize("flags", [(), ("--use-env",)])
async def test_node_agent_launch_behaves_like_torch_distributed_launch(hub: WorkerHub, flags: tuple[str, ...]) -> None:
    program = (sys.executable, "-m", "node_agent.launch", "--nproc_per_node=2", *flags, WORKER, "--lr", "1")
    agent = await Program.start(*program, env=hub.env)
    workers = await hub.group(2)
    for worker in workers:
        local_rank = [] if flags else [f"--local-rank={worker.env['LOCAL_RANK']}"]
        assert worker.argv == [*local_rank, "--lr", "1"]
    await finish(agent, *workers)


async def test_old_spellings_prefixes_and_variables_together(hub: WorkerHub) -> None:
    env = {**hub.env, "PET_MAX_RESTARTS": "2", "PET_STANDALONE": "yes", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    agent = await start_agent("--nproc_per=2", "--monitor_interval", "1", "--start_method=spawn", env=env)
    workers = await hub.group(2)
    assert workers[0].env["TORCHELASTIC_MAX_RESTARTS"] == "2"
    workers[0].kill()
    await finish(agent, *await hub.group(2))


# Command lines that run under torchrun, and so here: the words for each node. PORT is a free port.

STATIC = ("--nnodes=2", "--rdzv-endpoint=127.0.0.1:PORT")
C10D = ("--nnodes=2", "--node_rank=0", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:PORT", "--rdzv_id=1")
QUICK = "--rdzv-conf=last_call_timeout=1"
LINES: dict[str, list[tuple[str, ...]]] = {
    "an endpoint alone is static": [(*STATIC, "--node-rank=1"), (*STATIC, "--node-rank=0")],
    "the same rank for every node": [C10D, C10D],
    "one node at an endpoint": [("--rdzv-endpoint=127.0.0.1:PORT",)],
    "a place that counts for nothing": [("--standalone", "--master_addr=", "--master-port=123456", "--node-rank=1")],
    "a rank of the only node": [("--nnodes=1", "--node-rank=1", "--rdzv-id=")],
    "one of two nodes, at once": [("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1:2", QUICK)],
    "a signal that is none": [("--signals-to-handle=SIGTERM,SIGNOPE",)],
    "a comma too many": [("--duplicate-stdout-filters=a,",)],
    "settings of later versions": [("--rdzv-conf=cas_backoff_max_seconds=0.5",)],
    "one node at a free port": [("--nnodes=1", "--rdzv_endpoint=localhost:0")],
    "an endpoint in variables": [()],
    "an endpoint in variables of launch": [("--use-env",)],
    "variables that make no sense": [()],
}
PLACE = {"PET_NNODES": "1", "PET_RDZV_ENDPOINT": "127.0.0.1:PORT"}
LEGACY = "an endpoint in variables of launch"
"""Case only for `torch.distributed.launch` and its twin."""
VARIABLES = {
    "an endpoint in variables": PLACE,
    LEGACY: PLACE,
    "variables that make no sense": dict.fromkeys(("PET_START_METHOD", "PET_LOGS_SPECS", "PET_NUMA_BINDING"), "bogus"),
}


def filled(line: str, port: str) -> tuple[dict[str, str], list[list[str]]]:
    """Return the variables and each node's words, with the executed file filled in."""
    variables = {name: value.replace("PORT", port) for name, value in VARIABLES.get(line, {}).items()}
    nodes = [[*(word.replace("PORT", port) for word in words), "--no-python", "true"] for words in LINES[line]]
    return variables, nodes


@pytest.mark.parametrize("launcher", [pytest.param(TORCHRUN, marks=pytest.mark.torch), NODE_AGENT])
@pytest.mark.parametrize("line", LINES)
async def test_a_command_line_of_torchruns_runs(line: str, launcher: str) -> None:
    with free_port() as port:
        variables, nodes = filled(line, port)
        await launch(launcher, *nodes, env=variables, legacy=line == LEGACY)


SCRIPT_ON_STDIN = """
import os, sys
print(os.environ["RANK"], flush=True)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


@pytest.mark.parametrize(
    "command", [("-", "--lr", "1"), ("--no-python", sys.executable), ("--no-python", "python3", "-u", "-")]
)
async def test_a_script_on_stdin_reaches_each_worker_of_each_round(tmp_path: Path, command: tuple[str, ...]) -> None:
    """An empty script exits 0. A worker that got one would have succeeded without having run."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_ON_STDIN)
    flags = ("--standalone", "--nproc", "2", "--max-restarts", "1", "--log-dir", str(tmp_path / "logs"), "-r", "1")
    with script.open() as stdin:
        agent = await Program.start(sys.executable, *AGENT, *flags, *command, stdin=stdin.fileno())
    assert await agent.exit_code() == 0, agent.err
    assert _written(tmp_path, attempt=1) == ["0\n", "1\n"]


def _written(folder: Path, attempt: int) -> list[str]:
    return sorted(path.read_text() for path in folder.glob(f"logs/*/attempt_{attempt}/*/stdout.log"))


async def test_an_agent_without_a_script_on_stdin_starts_nothing() -> None:
    agent = await Program.start(sys.executable, *AGENT, "--standalone", "-")
    assert await agent.exit_code() == ExitCode.BAD_INPUT
    assert any(has_message(line, words.command.no_program_on_stdin) for line in agent.err)
