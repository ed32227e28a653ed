"""Logs of real agents: what the console and the files have after restarts, kills, and disk problems."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_agent import words
from tests.support.cluster import Cluster
from tests.support.launchers import NODE_AGENT, TORCHRUN, start
from tests.support.message_search import has_message, message_fields, part
from tests.support.programs import Program, start_agent
from tests.support.terminal import Terminal
from tests.support.worker_hub import WorkerHub
from tests.unit.node_agent.logs_plugin import install

ONE = ("--standalone", "--nproc", "1")
TWO = ("--standalone", "--nproc", "2")
QUICK = ("--last-call-timeout", "0.2", "--lease", "500", "--shutdown-timeout", "5")


def texts(log_dir: Path) -> dict[str, str]:
    """Return every log file of the only run there, by its path below the run's folder."""
    (run,) = log_dir.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in sorted(run.rglob("*.log"))}


async def run_to_end(program: Program, *, code: int = 0) -> Program:
    assert await program.exit_code() == code, program.err
    return program


async def python(program: str, *flags: str, env: dict[str, str] | None = None, code: int = 0) -> Program:
    """Run workers that execute this Python program."""
    command = (sys.executable, "-m", "node_agent", *flags, "--no-python", sys.executable, "-uc", program)
    return await run_to_end(await Program.start(*command, env=env), code=code)


# The console.


REDRAWS = """
import sys
for step in range(100):
    sys.stderr.write(f"\\r{step}%|##########")
    if step % 10 == 0:
        sys.stderr.write("\\r" + " " * 20 + "\\r")
        print("eval at", step, flush=True)
sys.stderr.write("\\n")
raise ValueError("boom")
"""


async def test_a_progress_bar_and_lines_between_its_redraws_stand_on_lines_of_their_own() -> None:
    """As under torchrun, where workers inherit the terminal: the output of both streams is in order."""
    command = (sys.executable, "-m", "node_agent", *ONE, "--no-python", sys.executable, "-c", REDRAWS)
    async with Terminal(*command, env={}) as shown:
        assert await shown.exit_code() == 1
        lines = [line.rpartition("\r")[2].strip() for line in re.split(r"\r?\n", shown.written)]
        assert [line for line in lines if "eval" in line] == [f"eval at {step}" for step in range(0, 100, 10)]
        assert "99%|##########" in lines and "ValueError: boom" in lines
        assert re.search(r"failed: exit code 1: ValueError: boom", shown.text)


async def test_a_single_worker_s_stdout_is_its_own_and_an_unfinished_line_is_seen_at_once(tmp_path: Path) -> None:
    """`node-agent eval.py > result.json` works."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    program = f"print('name? ', end='', flush=True); print('hello', open({str(gate)!r}).read())"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "node_agent", *ONE, "--no-python", sys.executable, "-c", program,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout
    async with asyncio.timeout(30):
        assert await process.stdout.readexactly(6) == b"name? "
        await asyncio.to_thread(gate.write_text, "you")
        assert await process.stdout.read() == b"hello you\n"
        assert await process.wait() == 0


@pytest.mark.parametrize("closed", ["<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
async def test_an_agent_whose_standard_streams_are_closed_does_not_hold_up_workers(closed: str, tmp_path: Path) -> None:
    """Its event loop's sockets would otherwise get their numbers, and the worker's output would fill one of them."""
    stdin = tmp_path / "stdin"
    script = f"readlink /proc/self/fd/0 > {stdin}; head -c 30000000 /dev/zero; head -c 30000000 /dev/zero >&2"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "node_agent", *ONE, "--no-python",
        "sh", "-c", script, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert stdin.read_text() == "/dev/null\n"


async def test_a_blocked_console_does_not_hold_up_workers_with_teed_output(tmp_path: Path) -> None:
    """Nothing reads the agent's stdout: the file has everything, stderr says so, and the agent ends."""
    read_end, write_end = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "node_agent", *ONE, "-t", "1", "--log-dir", str(tmp_path),
        "--no-python", "sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last words",
        stdout=write_end, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(write_end)
    async with asyncio.timeout(30):
        _, err = await process.communicate()
    os.close(read_end)
    assert process.returncode == 0
    assert texts(tmp_path) == {"attempt_0/0/stdout.log": "x" * 30_000_000 + "\nlast words\n"}
    assert message_fields(err.decode(), words.output.console_too_slow)["folder"].startswith(str(tmp_path))


@pytest.mark.torch
async def test_files_and_lines_are_torchruns(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nfor to in (sys.stdout, sys.stderr):\n    print(os.environ['RANK'], file=to)\n")
    flags = (
        *("--nproc-per-node", "3", "--role", "trainer", "-r", "0:1,2:2", "-t", "1:3", "--local-ranks-filter", "1,2"),
        *("--duplicate-stdout-filters", "1"),
    )
    files, lines = {}, {}
    for launcher in (TORCHRUN, NODE_AGENT):
        words = ("--standalone", *flags, "--log-dir", str(tmp_path / launcher), str(script))
        agent = await run_to_end(await start(launcher, words, env={"OMP_NUM_THREADS": "1"}))
        files[launcher] = texts(tmp_path / launcher)
        lines[launcher] = sorted(agent.out)
    assert files[NODE_AGENT] == files[TORCHRUN]
    assert lines[NODE_AGENT] == lines[TORCHRUN]
    assert files[NODE_AGENT]["attempt_0/filtered_stdout.log"] == "[trainer1]:1\n"


# The files.


async def test_restarts_of_every_kind_leave_the_files_of_the_attempts_before(cluster: Cluster, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    flags = ("--nnodes", "1:2", "--max-restarts", "1", "-r", "3", "--log-dir", str(log_dir), *QUICK)
    first = await cluster.nodes("a", *flags, nproc=1)
    await first[0].tell("say first")
    await cluster.node("b", *flags, nproc=1)  # a membership restart: not counted, but another attempt
    second = await cluster.hub.group(2)
    for worker in second:
        await worker.tell("say second")
    os.kill(second[1].pid, signal.SIGKILL)
    third = await cluster.hub.group(2)
    for worker in third:
        await worker.tell("say third")
    await cluster.finish(third)
    runs = {len(os.listdir(log_dir / run)): _stdouts(log_dir / run) for run in os.listdir(log_dir)}
    assert runs == {3: ["first\n", "second\n", "third\n"], 2: ["second\n", "third\n"]}


def _stdouts(run: Path) -> list[str]:
    return [path.read_text() for path in sorted(run.glob("attempt_*/*/stdout.log"))]


async def test_the_last_line_of_a_killed_worker_is_everywhere(tmp_path: Path) -> None:
    program = "import os; os.write(2, b'x' * 40_000 + b'\\nlast words'); os.kill(os.getpid(), 9)"
    for number, flags in enumerate((("-t", "3"), ("-r", "3"), ())):
        log_dir = tmp_path / f"logs{number}"
        agent = await python(program, *ONE, *flags, "--log-dir", str(log_dir), code=1)
        heading = next(index for index, line in enumerate(agent.err) if line.startswith("Root Cause"))
        console, report = agent.err[:heading], agent.err[heading:]
        assert any(line.endswith("last words") for line in report)
        if flags:
            assert texts(log_dir)["attempt_0/0/stderr.log"].endswith("x\nlast words")
        if "-r" not in flags:
            assert any(line.endswith("last words") for line in console)


async def test_the_last_line_of_a_process_that_outlasts_its_worker_is_shown_too(tmp_path: Path) -> None:
    program = "import subprocess; subprocess.Popen(('sh', '-c', \"trap '' TERM; sleep 0.5; echo last words\"))"
    for number, flags in enumerate((("-t", "1"), ())):
        agent = await python(program, *ONE, *flags, "--log-dir", str(tmp_path / str(number)))
        assert [line.partition(":")[2] or line for line in agent.out] == ["last words"]


# Trouble.


@pytest.mark.parametrize(
    "wrapper", [pytest.param("", id="by itself"), pytest.param('"$0" "$@"; exit $?', id="in a shell")]
)
async def test_the_last_output_of_a_killed_program_is_shown_even_without_the_flag_u(wrapper: str) -> None:
    """Python holds a block back if its output is a pipe: `-u` does not reach a program behind a wrapper."""
    program = "import os, signal; print('last words'); os.kill(os.getpid(), signal.SIGKILL)"
    shell = ("sh", "-c", wrapper) if wrapper else ()
    agent = ("env", "-u", "PYTHONUNBUFFERED", sys.executable, "-m", "node_agent", *ONE)
    command = (*agent, "--no-python", *shell, sys.executable, "-c", program)
    assert "last words" in (await run_to_end(await Program.start(*command), code=1)).out


async def test_a_run_survives_a_log_dir_that_vanishes(hub: WorkerHub, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    agent = await start_agent(*ONE, "--max-restarts", "1", "-t", "1", "--log-dir", str(log_dir), env=hub.env)
    (first,) = await hub.group(1)
    await first.tell("say first")
    log_dir.rename(tmp_path / "moved")
    await first.tell("say still here")
    os.kill(first.pid, signal.SIGKILL)
    (second,) = await hub.group(1)
    await second.tell("say second")
    second.order_exit(0)
    await run_to_end(agent)
    assert [line.partition(":")[2] for line in agent.out] == ["first", "still here", "second"]
    assert texts(log_dir) == {"attempt_1/0/stdout.log": "second\n"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("only root may mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_does_not_lose_the_run(small_disk: Path) -> None:
    """The worker that fills it fails. The next one runs without files, and the run continues."""
    program = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while True:
        print("x" * 10_000)
print("fine")
print("fine", file=sys.stderr)
"""
    agent = await python(program, *ONE, "--max-restarts", "1", "-r", "1", "--log-dir", str(small_disk))
    said = [line for line in agent.err if "log files" in line]
    fields = {"problem": "No space left on device", "outlook": words.output.WORKER_MAY_FAIL, "loses_lines": False}
    assert len(said) == 1 and has_message(said[0], words.output.file_trouble, **fields)
    assert any("OSError: [Errno 28] No space left on device" in line for line in agent.err)
    assert [line.partition(":")[2] or line for line in agent.out] == ["fine"]


# Plug-ins.


@pytest.mark.torch
async def limited(program: str, log_dir: Path, kib: int, *flags: str, code: int) -> Program:
    """Run a Python program and its agent with a limit on the size of each file, in KiB."""
    command = [sys.executable, "-m", "node_agent", *ONE, "--log-dir", str(log_dir), *flags, "--no-python"]
    shell = f'ulimit -f {kib}; exec "$@"'
    started = await Program.start("bash", "-c", shell, "bash", *command, sys.executable, "-uc", program)
    return await run_to_end(started, code=code)


async def test_an_agent_whose_stdout_is_on_a_full_disk_reports_it_and_the_lost_bytes(small_disk: Path) -> None:
    filler, out, go = small_disk / "filler", small_disk / "out", small_disk / "go"
    filler.write_bytes(b"x" * 700_000)
    os.mkfifo(go)
    script = f"head -c 1000000 /dev/zero; cat {go}"
    agent = await Program.start(
        "sh", "-c", f'exec "$@" >> {out}', "sh", sys.executable, "-m", "node_agent", *ONE,
        "--no-python", "sh", "-c", script,
    )  # fmt: skip
    await agent.line(part(words.output.console_full, stream="stdout"))
    filler.unlink()
    await asyncio.to_thread(go.write_text, "there is room\n")
    await run_to_end(agent)
    assert out.read_bytes().endswith(b"there is room\n")
    lost = int(message_fields(agent.err, words.output.console_lost, stream="stdout")["size"].replace(",", ""))
    assert out.stat().st_size + lost == 1_000_000 + len("there is room\n")
    assert len([line for line in agent.err if has_message(line, words.output.console_full)]) == 1


async def test_a_worker_whose_log_file_reaches_the_size_limit_is_reported_with_the_limit(tmp_path: Path) -> None:
    """The last output is lost as on a full disk, and the report says why. The next attempt has a new file."""
    program = "import sys\nfor _ in range(400): sys.stderr.write('x' * 1023 + '\\n')"
    agent = await limited(program, tmp_path, 200, "-r", "3", code=1)
    problem = words.output.at_limit("File too large", 204_800)
    said = "\n".join(agent.err)
    fields = {"problem": problem, "outlook": words.output.WORKER_AT_LIMIT, "loses_lines": False}
    assert message_fields(said, words.output.file_trouble, **fields)["path"].endswith("stderr.log")
    assert words.failures.file_cannot_grow(problem, words.output.RAISE_THE_LIMIT) in said


async def test_a_file_larger_than_the_limit_is_explained_by_its_exception(tmp_path: Path) -> None:
    program = f"file = open({str(tmp_path / 'checkpoint')!r}, 'wb', 0); [file.write(bytes(100_000)) for _ in range(4)]"
    agent = await limited(program, tmp_path / "logs", 200, code=1)
    said = "\n".join(agent.err)
    assert "OSError: [Errno 27] File too large" in said
    assert words.output.RAISE_THE_LIMIT in said


async def test_workers_write_to_the_console_where_files_may_have_no_size(tmp_path: Path) -> None:
    agent = await limited("print('here')", tmp_path, 0, "-r", "3", code=0)
    assert any("here" in line for line in (*agent.out, *agent.err))
    assert any(f"stdout.log: {words.output.at_limit('File too large', 0)}; " in line for line in agent.err)


async def test_a_plug_in_decides_about_the_files(hub: WorkerHub, tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    agent = await start_agent(
        *TWO, "--logs-specs", "one-folder", "--log-dir", str(tmp_path / "logs"), "--max-restarts", "1",
        env={**hub.env, "PYTHONPATH": str(site)},
    )  # fmt: skip
    folder = tmp_path / "logs" / "by-rank"
    for said in ("first", "second"):
        workers = await hub.group(2)
        assert [worker.env["MY_LOG"] for worker in workers] == [f"{folder}/{rank}.log" for rank in range(2)]
        assert workers[0].env["TORCHELASTIC_ERROR_FILE"] == f"{folder}/0.log.error"
        for worker in workers:
            await worker.tell(f"say {said}")
        if said == "first":
            os.kill(workers[0].pid, signal.SIGKILL)
    for worker in workers:
        worker.order_exit(0)
    await run_to_end(agent)
    assert agent.out == ["[default0]:first", "[default0]:second"]
    assert (folder / "1.log").read_text() == "first\nsecond\n", "nothing is overwritten"


@pytest.mark.torch
async def test_a_broken_plug_in_is_named_and_workers_do_not_start(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(install(tmp_path / "site"))}
    agent = await python("print('started')", *ONE, "--logs-specs", "broken", env=env, code=1)
    assert agent.out == []
    assert "node-agent: error: --logs-specs broken: NotADirectoryError: no such folder" in agent.said


@pytest.mark.torch
async def test_an_agent_that_gets_a_stop_signal_while_its_plug_in_runs_leaves(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    env = {"PYTHONPATH": str(site)}
    agent = await Program.start(
        sys.executable, "-m", "node_agent", *ONE, "--logs-specs", "one-folder", "--log-dir", str(tmp_path),
        "--no-python", "true", env=env,
    )  # fmt: skip
    await agent.line("round 1")  # torch's import takes longer than this
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == 1


async def test_an_unknown_plug_in_is_refused_and_the_existing_ones_are_named(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(install(tmp_path / "site"))}
    agent = await python("print('started')", *ONE, "--logs-specs", "onefolder", env=env, code=2)
    assert agent.out == []
    assert "one-folder" in agent.err[-1] and "onefolder" in agent.err[-1]
