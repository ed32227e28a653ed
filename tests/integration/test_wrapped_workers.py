"""Processes that workers have started get a grace period of their own when the worker that started them has ended."""

import signal
import sys
from pathlib import Path

import pytest

from node_agent.words import workers
from tests.support.process_info import is_running
from tests.support.programs import Program, start_agent

SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(0.3)
    print("saved", flush=True)
    pathlib.Path(sys.argv[1]).write_text("whole")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
os.write(int(sys.argv[2]), b"\\n")
time.sleep(600)
"""
"""Trains until it is told to end, then saves, with the words "saving" and "saved" and a file. It writes to a
descriptor, its second argument, once it handles the signal."""
LEAVES_A_HELPER = f"""
import os, subprocess, sys
ready, told = os.pipe()
is_apart = sys.argv[2] == "apart"
command = [sys.executable, "-c", {SAVES!r}, sys.argv[1], str(told)]
subprocess.Popen(command, pass_fds=[told], start_new_session=is_apart)
os.read(ready, 1)
os._exit(int(sys.argv[3]))
"""
"""Starts such a program, perhaps in a session of its own like a tracker's helper. Exits as soon as that program handles
the signal."""
NEEDS_A_CHILD = """
import os, pathlib, signal, sys
asked, ask = os.pipe()
answer, answered = os.pipe()
if os.fork() == 0:
    os.close(ask)
    while os.read(asked, 1):
        os.write(answered, b"a piece")
    signal.pause()
os.close(answered)
def save(*_):
    os.write(ask, b"?")
    pathlib.Path(sys.argv[1]).write_text("whole" if os.read(answer, 7) else "its process is gone")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
while True:
    signal.pause()
"""
"""Trains until it is told to end, then saves, which needs its child. The child does not handle signals, like those of a
DataLoader."""
STARTS_ONE_THAT_IS_TOLD = """
import os, signal
ready, is_ready = os.pipe()
if os.fork() == 0:
    def told(*_):
        print("child told", flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, told)
    os.write(is_ready, b".")
    while True:
        signal.pause()
os.read(ready, 1)
def end(*_):
    print("told", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("trains", flush=True)
while True:
    signal.pause()
"""
"""Exits when it is told to end, and leaves its child to be told by the agent."""
HAS_HELPERS = """
from multiprocessing import forkserver, resource_tracker
resource_tracker.ensure_running()
forkserver.ensure_running()
"""
"""Leaves the helpers of multiprocessing, which end by themselves a moment later."""
GRACE = ("--shutdown-timeout", "60")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved"


def counts(agent: Program) -> list[int]:
    """Return the numbers of processes that the agent has said to be left behind."""
    return [number for line in agent.err for number in range(1, 10) if workers.left_behind(number) in line]


def whole(saved: Path) -> bool:
    return saved.read_text() == "whole"


def shell(saved: Path, line: str) -> tuple[str, ...]:
    """Return a shell that runs the program, with a command after it so that it does not become the program."""
    return ("--no-python", "sh", "-c", line, sys.executable, SAVES, str(saved))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('"$0" -c "$1" "$2" 1; echo', id="in the shell's group"),
        pytest.param('setsid -w "$0" -c "$1" "$2" 1; echo', id="in a session of its own"),
        pytest.param('(setsid "$0" -c "$1" "$2" 1 &); sleep 600; echo', id="as a daemon"),
        pytest.param('"$0" -c "$1" "$2" 1 | cat | cat', id="in a pipeline"),
    ],
)
async def test_a_program_that_a_shell_runs_has_the_grace_when_the_shell_is_gone(line: str, saved: Path) -> None:
    *command, last = shell(saved, line)
    agent = await start_agent("--standalone", "--nproc", "1", *GRACE, *command, script=last)
    await agent.line("trains")
    agent.signal(signal.SIGTERM)
    await agent.exit_code()
    assert [word for word in agent.out if "sav" in word] == ["saving", "saved"], "told once, and its output is shown"
    assert whole(saved)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('exec "$0" -c "$1" "$2"', id="by itself"),
        pytest.param('"$0" -c "$1" "$2"; echo', id="in a shell"),
        pytest.param('trap \'echo deferred\' TERM; "$0" -c "$1" "$2"; echo', id="in a shell with a handler"),
        pytest.param('setsid -w "$0" -c "$1" "$2"; echo', id="in a session of its own"),
    ],
)
async def test_a_program_that_saves_still_has_the_processes_that_it_has_started(line: str, saved: Path) -> None:
    command = ("--no-python", "sh", "-c", line, sys.executable, NEEDS_A_CHILD)
    agent = await start_agent("--standalone", "--nproc", "1", *GRACE, *command, script=str(saved))
    await agent.line("trains")
    agent.signal(signal.SIGTERM)
    await agent.exit_code()
    assert whole(saved)


async def test_a_reader_of_a_program_s_output_that_does_not_end_with_it_gets_the_stop_signal(saved: Path) -> None:
    line = '"$0" -c "$1" "$2" 2 | { read -r word; echo $word; sleep 600; }'
    command = ("--no-python", "sh", "-c", line, sys.executable, SAVES)
    agent = await start_agent("--standalone", "--nproc", "1", "--shutdown-timeout", "4", *command, script=str(saved))
    await agent.line("trains")
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == 1
    assert whole(saved)


async def test_a_process_gets_the_stop_signal_after_its_parent_program_has_ended() -> None:
    command = ("--no-python", sys.executable, "-c")
    agent = await start_agent("--standalone", "--nproc", "1", *GRACE, *command, script=STARTS_ONE_THAT_IS_TOLD)
    await agent.line("trains")
    agent.signal(signal.SIGTERM)
    await agent.exit_code()
    assert [line for line in agent.out if "told" in line] == ["told", "child told"]


@pytest.mark.parametrize("session", ["together", "apart"])
@pytest.mark.parametrize("code", [0, 1])
async def test_remaining_processes_of_an_ended_worker_get_the_stop_signal(
    code: int, session: str, saved: Path, tmp_path: Path
) -> None:
    script = tmp_path / "leaves_a_helper.py"
    script.write_text(LEAVES_A_HELPER)
    command = (str(script), str(saved), session)
    agent = await start_agent("--standalone", "--nproc", "1", *GRACE, *command, script=str(code))
    assert await agent.exit_code() == code
    assert whole(saved)
    assert agent.out[-2:] == ["saving", "saved"]


@pytest.mark.parametrize(
    ("program", "left"), [("sleep 600 &", 2), ("setsid sleep 600 &", 2), ("sleep 0.01 & wait;", 0)]
)
async def test_programs_that_run_when_their_scripts_have_exited_0_are_ended_and_their_number_is_logged(
    program: str, left: int
) -> None:
    command = ("--no-python", "sh", "-c")
    agent = await start_agent("--standalone", "--nproc", "2", *command, script=f"{program} exit 0")
    assert await agent.exit_code() == 0
    assert counts(agent) == ([left] if left else [])


@pytest.mark.parametrize("code", [0, 3])
async def test_helpers_of_multiprocessing_and_programs_of_failed_scripts_are_not_counted(code: int) -> None:
    line = '[ "$2" = 0 ] || sleep 600 & "$0" -c "$1"; exit "$2"'
    command = ("--no-python", "sh", "-c", line, sys.executable, HAS_HELPERS)
    agent = await start_agent("--standalone", "--nproc", "1", *command, script=str(code))
    assert await agent.exit_code() == (1 if code else 0)
    assert counts(agent) == []


async def test_a_process_that_outlasts_its_worker_and_its_grace_is_killed() -> None:
    ignores = "trap '' TERM; echo pid $$$$; while :; do sleep 0.05; done"
    agent = await start_agent(
        "--standalone", "--nproc", "1", "--shutdown-timeout", "0.5", "--no-python", "sh", "-c", 'sh -c "$0"; echo',
        script=ignores,
    )  # fmt: skip
    pid = int((await agent.line(r"pid (\d+)"))[1])
    agent.signal(signal.SIGTERM)
    await agent.exit_code()
    assert not is_running(pid)
