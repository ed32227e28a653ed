"""Evidence of a failed run: the report on every node's console, the agent's error file, the status page."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import run as told

from node_agent import words
from node_agent.features import words as feature_words
from node_agent.kernel.failures import error_file
from rdzv_server.words import failures, runs
from tests.support.cluster import PATIENT, Cluster
from tests.support.launchers import NODE_AGENT, TORCHRUN, start
from tests.support.message_search import has_message, message_fields
from tests.support.process_info import helpers, state, until
from tests.support.programs import Program, start_agent
from tests.support.worker_hub import WorkerHub, finish, of_node, restart_count

SECOND_FAILS = "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(1000)\n"


def box(agent: Program) -> list[str]:
    """Return the final report, without its frame."""
    first, last = [index for index, line in enumerate(agent.err) if line and set(line) == {"="}]
    return agent.err[first + 1 : last]


def section(agent: Program, heading: str) -> str:
    """Return one part of the report."""
    lines = box(agent)
    rest = lines[next(index for index, line in enumerate(lines) if line.startswith(heading)) :]
    end = next((index for index, line in enumerate(rest) if line and set(line) == {"-"}), len(rest))
    return "\n".join(rest[:end])


async def fails(script: str, tmp_path: Path, *flags: str, **env: str) -> Program:
    """Run two workers on one node, the second of which fails."""
    path = tmp_path / "train.py"
    path.write_text(script)
    agent = await start_agent("--standalone", "--nproc", "2", *flags, script=str(path), env=env)
    assert await agent.exit_code() == 1
    return agent


def error_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())["message"])


# How a worker ends.


async def test_an_exception_without_record_is_reported_with_its_traceback(tmp_path: Path) -> None:
    own = tmp_path / "new" / "agent.json"
    script = SECOND_FAILS + "def step(): raise ValueError('boom')\nstep()\n"
    agent = await fails(script, tmp_path, TORCHELASTIC_ERROR_FILE=str(own))
    assert box(agent)[0] == f"{tmp_path}/train.py FAILED"
    root = section(agent, "Root Cause (first observed failure):")
    for field in ("rank      : 1 (local_rank: 1)", "exitcode  : 1 (pid: ", "ValueError: boom"):
        assert f"\n  {field}" in root
    assert "\n  traceback : Traceback (most recent call last):\n    File " in root
    assert root.endswith("\n  ValueError: boom")
    error = error_of(own)
    assert (error["message"], error["errorCode"]) == ("ValueError: boom", 1)
    assert error["extraInfo"]["py_callstack"].endswith("ValueError: boom")


async def fails_in(cgroup: Path, script: Path) -> Program:
    """Return an agent that has run the script in this cgroup and failed."""
    agent = await Program.start(
        "sh", "-c", 'echo $$ > "$0/cgroup.procs"; shift; exec "$@"', str(cgroup), "-",
        sys.executable, "-m", "node_agent", "--standalone", str(script),
    )  # fmt: skip
    assert await agent.exit_code() == 1, agent.err
    return agent


async def test_a_child_that_was_killed_for_lack_of_memory_is_named(tmp_path: Path, memory_cgroup: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "if not (child := os.fork()):\n"
        "    open('/proc/self/oom_score_adj', 'w').write('1000')\n"
        "    hoard = []\n"
        "    while True: hoard.append(bytearray(1 << 20))\n"
        "os.waitpid(child, 0)\n"
        "sys.exit(1)\n"
    )
    agent = await fails_in(memory_cgroup, script)
    assert f"what to do: {words.failures.killed_beside('256 MiB')}" in section(agent, "Root Cause")


async def test_a_kill_for_lack_of_memory_is_named(tmp_path: Path, memory_cgroup: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))\n")
    agent = await fails_in(memory_cgroup, script)
    root = section(agent, "Root Cause")
    assert f"SIGKILL): {words.failures.out_of_memory('256 MiB')}" in root
    assert f"what to do: {words.failures.MORE_MEMORY}" in root


# Several nodes.


async def test_every_node_names_the_root_and_not_its_consequence(cluster: Cluster) -> None:
    """The order in which reports arrive does not matter."""
    a, b = await cluster.nodes("ab", "--nnodes", "2", *PATIENT, nproc=1)
    names = {worker.rank: worker for worker in (a, b)}
    await names[1].tell("complain RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    await names[0].tell("complain the data loader found no data")
    names[1].order_exit(1)
    names[0].order_exit(7)
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        root = section(agent, "Root Cause")
        assert "\n  rank      : 0 (local_rank: 0)\n  exitcode  : 7 " in root
        assert root.endswith("stderr    : the data loader found no data")
    run = await cluster.server.run()
    assert run["end_failure"]["exit_code"] == run["first_failure"]["exit_code"] == 7


async def test_a_worker_that_exits_0_while_others_need_it_is_named(cluster: Cluster) -> None:
    a, b = await cluster.nodes("ab", "--nnodes", "2", *PATIENT, nproc=1)
    names = {worker.rank: worker for worker in (a, b)}
    names[1].order_exit(0)
    while (await cluster.server.run())["phase"] != "finishing":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await names[0].tell("complain RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    names[0].order_exit(1)
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        assert failures.exited_before("rank 1") in section(agent, "Root Cause")


EXITING = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: boom")


async def assert_rank_1_is_the_root(cluster: Cluster) -> None:
    """Every agent and the server name rank 1, which has not exited yet, and its exception."""
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        root = section(agent, "Root Cause")
        assert "\n  rank      : 1 (local_rank: 0)\n  exitcode  : 1 " in root
        assert words.failures.STILL_EXITING in root and "ValueError: boom" in root
    run = await cluster.server.run()
    assert run["first_failure"]["rank"] == run["end_failure"]["rank"] == 1


@pytest.mark.parametrize("restarts", [0, 1])
async def test_the_worker_that_still_exits_after_its_exception_is_the_root(cluster: Cluster, restarts: int) -> None:
    """It has left its process group, so the other node's worker is gone before it."""
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", str(restarts), *PATIENT, nproc=1)
    for left in reversed(range(restarts + 1)):
        names = {worker.rank: worker for worker in workers}
        for line in EXITING:
            await names[1].tell(f"complain [rank1]: {line}")
        await names[0].tell("complain RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        names[0].order_exit(1)
        workers = await cluster.hub.group(2) if left else []
    await assert_rank_1_is_the_root(cluster)


@pytest.mark.parametrize("restarts", [0, 1])
async def test_the_worker_that_has_recorded_its_error_is_the_root(cluster: Cluster, restarts: int) -> None:
    """It exits later than the other node's worker, and has written nothing to stderr yet."""
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", str(restarts), *PATIENT, nproc=1)
    for left in reversed(range(restarts + 1)):
        names = {worker.rank: worker for worker in workers}
        at = time.time() - 60
        recorded = error_file.content("ValueError: boom", "Traceback ...\nValueError: boom", at)
        with open(names[1].env["TORCHELASTIC_ERROR_FILE"], "w") as file:  # noqa: ASYNC230
            json.dump(recorded, file)
        os.utime(names[1].env["TORCHELASTIC_ERROR_FILE"], (at, at))
        await names[0].tell("complain RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        names[0].order_exit(1)
        workers = await cluster.hub.group(2) if left else []
    await assert_rank_1_is_the_root(cluster)


LOSES = """\
import os, signal, sys, time
if os.environ["RANK"] == "1":
    with open("gate", "w") as gate:
        gate.write(str(os.getpid()))
    sys.exit("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
lost = "/proc/" + open("gate").read()
while os.path.exists(lost):
    time.sleep(0.001)
os.kill(os.getppid(), signal.SIGSTOP)
raise ValueError("boom")
"""


async def test_the_report_of_a_run_on_one_node_contains_the_failures_that_follow_from_the_cause(tmp_path: Path) -> None:
    """The agent has examined the consequence, and gets no processor until the cause has ended."""
    script = tmp_path / "train.py"
    script.write_text(LOSES)
    os.mkfifo(tmp_path / "gate")
    agent = await start_agent("--standalone", "--nproc", "2", script=str(script), cwd=tmp_path)
    await until(lambda: state(agent.pid) == "T")
    await until(lambda: not helpers(agent.pid, str(script)))
    agent.signal(signal.SIGCONT)
    assert await agent.exit_code() == 1
    root, others = section(agent, "Root Cause"), section(agent, "Failures:")
    assert "\n  rank      : 0 (local_rank: 0)\n" in root and "ValueError: boom" in root
    assert "\n  rank      : 1 (local_rank: 1)\n" in others and f"({words.failures.FOLLOWS})" in others
    assert has_message("\n".join(agent.err), words.progress.worker_failed, rank=1, error="")


SLOW_DISK = """\
import sys, time
from pathlib import Path
from threading import Event
from node_agent.__main__ import main
from node_agent.kernel.failures import diagnose
look_at_disk, is_read = diagnose.look_at_disk, Event()

def look(path, ends=()):
    if Path(path).parent.name == "1":
        is_read.wait()
        time.sleep(0.3)  # the agent takes the other worker's end
        return look_at_disk(path, ends)
    left = look_at_disk(path, ends)
    is_read.set()
    return left

diagnose.look_at_disk = look
sys.exit(main())
"""
LOSES_FIRST = """\
import os, sys, time
if os.environ["RANK"] == "1":
    with open("gate", "w") as gate:
        gate.write(str(os.getpid()))
    sys.exit("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
lost = f"/proc/{open('gate').read()}/stat"
while open(lost).read().rpartition(") ")[2][0] != "Z":
    time.sleep(0.001)
raise ValueError("boom")
"""


async def test_the_report_contains_a_failure_whose_files_are_read_after_those_of_the_cause(tmp_path: Path) -> None:
    """The worker that has lost its peer exits first, and its files are on a slow disk."""
    script = tmp_path / "train.py"
    script.write_text(LOSES_FIRST)
    os.mkfifo(tmp_path / "gate")
    flags = "--standalone", "--nproc", "2"
    agent = await start_agent(*flags, script=str(script), cwd=tmp_path, python=("-c", SLOW_DISK))
    assert await agent.exit_code() == 1
    root, others = section(agent, "Root Cause"), section(agent, "Failures:")
    assert "\n  rank      : 0 (local_rank: 0)\n" in root and "ValueError: boom" in root
    assert "\n  rank      : 1 (local_rank: 1)\n" in others and f"({words.failures.FOLLOWS})" in others
    assert has_message(agent.err[: agent.err.index(box(agent)[0])], words.progress.worker_failed, rank=1, error="")


CATCHES = """\
import json, os, sys, time
from node_agent import progress
fifo = os.environ["FIFO"]
if os.environ["RANK"] == "0":
    at = str(int(time.time()) - 60)
    content = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback", "timestamp": at}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump(content, file)
    if os.environ["CONTINUES"] == "True":
        progress(1)
    open(fifo, "w").close()
    time.sleep(1000)
open(fifo).close()
sys.exit("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer")
"""


@pytest.mark.parametrize("continues", [True, False])
async def test_a_worker_that_reports_progress_has_caught_its_recorded_error(continues: bool, tmp_path: Path) -> None:
    """Its peer's failure is the root then, and is logged in any case."""
    script, fifo = tmp_path / "train.py", tmp_path / "fifo"
    script.write_text(CATCHES)
    os.mkfifo(fifo)
    variables = {"FIFO": str(fifo), "CONTINUES": str(continues)}
    agent = await start_agent("--standalone", "--nproc", "2", script=str(script), env=variables)
    assert await agent.exit_code() == 1
    root = section(agent, "Root Cause")
    assert f"\n  rank      : {int(continues)} (local_rank: {int(continues)})\n" in root
    assert ("ValueError: boom" in root) == (not continues)
    assert has_message("\n".join(agent.err), words.progress.worker_failed, rank=1, error="")


EXITS_0 = """\
import json, os, sys
if os.environ["RANK"] == "1":
    if os.environ["BY"] == "stderr":
        for line in ("Traceback (most recent call last):", '  File "train.py", line 7', os.environ["ERROR"]):
            print(f"[rank1]: {line}", file=sys.stderr)
    else:
        content = {"message": {"message": os.environ["ERROR"], "extraInfo": {"py_callstack": "Traceback"}}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump(content, file)
"""


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    ("by", "error"), [("file", "ValueError: boom"), ("stderr", "ValueError: boom"), ("file", ""), ("stderr", "")]
)
async def test_a_success_whose_worker_has_reported_an_error_is_doubted(
    keeps: bool, by: str, error: str, tmp_path: Path
) -> None:
    """torch's `@record` has written it, or torch has marked it on stderr. The script has exited 0 nevertheless."""
    script = tmp_path / "train.py"
    script.write_text(EXITS_0)
    flags = ("--log-dir", str(tmp_path / "logs"), "--tee", "3") if keeps else ()
    variables = {"ERROR": error, "BY": by}
    agent = await start_agent("--standalone", "--nproc", "2", *flags, script=str(script), env=variables)
    assert await agent.exit_code() == 0
    said = "\n".join(agent.err)
    assert has_message(said, feature_words.exited_0_with_error) == bool(error)
    if error:
        fields = message_fields(said, feature_words.exited_0_with_error, rank=1)
        assert fields["error"] == error
        assert runs.succeeded(1, told.reported_error(1, error)) in said


LOSES_THREAD = """\
import os, threading
def save(): raise ValueError("boom")
if os.environ["RANK"] == "1":
    thread = threading.Thread(target=save, name="ckpt")
    thread.start()
    thread.join()
"""


async def test_a_success_whose_worker_has_lost_a_thread_is_doubted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOSES_THREAD)
    agent = await start_agent("--standalone", "--nproc", "2", script=str(script))
    assert await agent.exit_code() == 0
    said, error = "\n".join(agent.err), words.failures.error_of_thread("ValueError: boom", "ckpt")
    assert message_fields(said, feature_words.exited_0_with_error, rank=1)["error"] == error
    assert runs.succeeded(1, told.reported_error(1, error)) in said


async def test_every_node_and_the_server_doubt_a_success_whose_worker_has_reported_an_error(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXITS_0)
    cluster.script = str(script)
    for name in "ab":
        variables = {"ERROR": "ValueError: boom", "BY": "file"}
        await cluster.node(name, "--nnodes", "2", *PATIENT, nproc=1, env=variables)
    doubted = runs.succeeded(2, told.reported_error(1, "ValueError: boom"))
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 0
        assert doubted in "\n".join(agent.err)
    run = await cluster.server.run()
    assert (run["phase"], run["reason"]) == ("succeeded", doubted)
    events = json.loads(await cluster.server.get(f"/v1/runs/{run['run_id']}/events"))["events"]
    (warning,) = [event for event in events if event["kind"] == "warning"]
    assert warning["reason"] == told.exited_0_with_error(1, "ValueError: boom")


CONSEQUENCE = """\
import os, traceback, torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    while True:
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0:
            raise ValueError("boom")
except Exception:
    traceback.print_exc()
    if dist.get_rank() == 0:
        dist.destroy_process_group()
        open(os.environ["GATE"]).read()
    else:
        open(os.environ["GATE"], "w").close()
    os._exit(1)
"""


@pytest.mark.torch
async def test_a_consequence_is_distinguished_from_its_cause(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 closes its connections, and does not end before the other node's worker is about to."""
    script, gate = tmp_path / "train.py", tmp_path / "gate"
    script.write_text(CONSEQUENCE)
    os.mkfifo(gate)
    cluster.script = str(script)
    for name in "ab":
        await cluster.node(name, "--nnodes", "2", *PATIENT, nproc=1, env={"GATE": str(gate)})
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
        root = section(agent, "Root Cause")
        assert "rank      : 0 " in root and "ValueError: boom" in root


async def test_each_failure_is_on_every_console_and_on_the_status_page(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "1:2", "--max-restarts", "1", *PATIENT, nproc=1)
    await of_node(first, 0)[0].tell("complain ValueError: the first one")
    of_node(first, 0)[0].order_exit(1)
    second = await cluster.hub.group(2)
    assert restart_count(second) == 1
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    (last,) = await cluster.hub.group(1)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    last.order_exit(9)
    agent = cluster.agents["a"]
    assert await agent.exit_code() == 1
    assert "\n  round     : 1\n" in section(agent, "Root Cause")
    assert "\n  exitcode  : 9 " in section(agent, "Failures:")
    charged, free = section(agent, "Restarts: 2 restarts, 1 charged").splitlines()[1:]
    assert charged.endswith("  round 2, charged: [0]")
    assert free.endswith("  round 3, free: node b left: SIGTERM")
    run = await cluster.server.run()
    assert run["first_failure"]["stderr_tail"] == ["ValueError: the first one"]
    assert run["end_failure"]["exit_code"] == 9


async def test_a_success_after_restarts_is_one_line_with_their_number(hub: WorkerHub) -> None:
    flags = ("--nproc", "2", "--max-restarts", "1", "--shutdown-timeout", "0.2")
    agent = await start_agent("--standalone", *flags, env=hub.env)
    first = await hub.group(2)
    await first[0].tell("ignore SIGTERM")  # so the restart takes longer than 0.0 s, which is left out
    first[1].order_exit(1)
    await finish(agent, *await hub.group(2))
    assert agent.said[-1] == "node-agent: run succeeded: all workers of 1 node exited 0; 1 restart, 1 charged"
    # Workers that report no progress have no ratio.
    assert re.fullmatch(r"node-agent: the run took [0-9.]+ s: [0-9.]+ s running, [0-9.]+ s restarting", agent.said[-3])


# The agent's own error file.


async def test_a_worker_does_not_see_the_agents_error_file(hub: WorkerHub, tmp_path: Path) -> None:
    own = tmp_path / "agent.json"
    agent = await start_agent("--standalone", env={**hub.env, "TORCHELASTIC_ERROR_FILE": str(own)})
    (worker,) = await hub.group(1)
    assert worker.env["TORCHELASTIC_ERROR_FILE"] not in ("", str(own))
    worker.order_exit(0)
    assert await agent.exit_code() == 0
    assert not own.exists(), "nothing went wrong"


async def test_an_agent_that_is_stopped_or_finds_no_server_reports_it_in_the_error_file(
    hub: WorkerHub, tmp_path: Path
) -> None:
    own = tmp_path / "agent.json"
    env = {**hub.env, "TORCHELASTIC_ERROR_FILE": str(own)}
    agent = await start_agent("--standalone", env=env)
    await hub.group(1)
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == 1
    assert error_of(own)["message"] == "SignalException: the agent got SIGTERM"
    agent = await start_agent("--endpoint", "127.0.0.1:1", "--connect-timeout", "0.1", env=env)
    assert await agent.exit_code() == ExitCode.START_AGAIN
    assert error_of(own)["message"].startswith("no rdzv-server at 127.0.0.1:1 within 0.1 s")


RECORDED = f"""\
{SECOND_FAILS}
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("boom")
main()
"""


@pytest.mark.torch
async def test_the_agents_error_file_is_torchruns_own(tmp_path: Path) -> None:
    """The report names the worker's file, if that remains."""
    script, logs = tmp_path / "train.py", tmp_path / "logs"
    script.write_text(RECORDED)
    errors, flags = {}, ("--standalone", "--nproc-per-node", "2", "--log-dir", str(logs))
    for launcher in (TORCHRUN, NODE_AGENT):
        own = tmp_path / f"{launcher}.json"
        agent = await start(launcher, [*flags, str(script)], env={"TORCHELASTIC_ERROR_FILE": str(own)})
        assert await agent.exit_code() == 1
        assert "Root Cause (first observed failure):" in agent.err
        errors[launcher] = error_of(own)
        assert errors[launcher]["extraInfo"].pop("timestamp").isdigit()
    assert errors[NODE_AGENT] == errors[TORCHRUN]
    assert errors[NODE_AGENT]["errorCode"] == 1
    root = section(agent, "Root Cause")
    path = root.partition("error_file: ")[2].splitlines()[0]
    assert Path(path).is_relative_to(logs)
    assert error_of(Path(path))["message"] == "ValueError: boom"
    assert words.failures.logs_of(os.uname().nodename, str(Path(path).parents[2])) in box(agent)
