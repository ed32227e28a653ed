"""Workers that hang, with real processes: how this is noticed, which rank is blamed, and what follows.

Agents have a server that is never silent and limits of a few seconds, which the healthy workers of the same test keep.
"""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.evidence import ProcessState

from node_agent.features import words as feature_words
from node_agent.features.hangs import words as agent_words
from node_agent.features.hangs import words as hang_words
from node_agent.features.warm.words import IMPORTS
from node_agent.words import plan as plan_words
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.repeated_hangs import STANDSTILL_S
from tests.integration.replicas import Replicas
from tests.support.cluster import Cluster
from tests.support.message_search import has_message, part, pattern
from tests.support.programs import AGENT, WORKER, Program
from tests.support.prometheus import Scrape
from tests.support.rdzvctl import rdzvctl
from tests.support.time_namespaces import in_time_namespace, need_time_namespaces
from tests.support.worker_hub import Worker, WorkerHub, of_node, restart_count

LOOKED = re.escape(feature_words.examined_workers("no progress", "").removesuffix("): "))
LIMITS = ("--progress-timeout", "start=60,step=3")
STOPS_SOON = ("--shutdown-timeout", "2")
STUCK = pattern(agent_words.no_progress, limit_s=3.0, step=7)
NO_NUMBER = agent_words.wrote_no_number("NaN", 2)


async def steps(workers: list[Worker], step: int) -> None:
    for worker in workers:
        await worker.tell(f"progress {step}")


async def events(cluster: Cluster, kind: str) -> list[dict[str, object]]:
    run = await cluster.server.run()
    page = json.loads(await cluster.server.get(f"/v1/runs/{run['run_id']}/events"))
    return [event for event in page["events"] if event["kind"] == kind]


async def test_a_stopped_worker_is_found_and_the_run_restarts(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *LIMITS, *STOPS_SOON)
    await steps(first, 7)
    os.kill(first[3].pid, signal.SIGSTOP)
    for worker in first[:3]:  # in lockstep they would wait; here they are a step ahead
        await worker.tell("progress 8")
    second = await cluster.hub.group(4)
    assert restart_count(second) == 1
    await cluster.finish(second)
    assert Scrape(await cluster.server.get("/metrics"))("rdzv_hangs_found_total") == 1
    run = await cluster.server.run()
    assert run["history"][0]["cause"] == "hang" and run["history"][0]["charged"]
    assert "worker rank 3 on node " in run["history"][0]["reason"]
    assert re.search(words.hang(STUCK), run["history"][0]["reason"])
    assert re.search(r"; ranks 0, 1 and 2 .*; rank 3 .*stopped", run["history"][0]["reason"]), "what all of them did"


async def test_a_node_with_a_shorter_limit_is_not_blamed_for_a_standstill_of_all_nodes(cluster: Cluster) -> None:
    await cluster.node("a", "--nnodes", "2", "--max-restarts", "1", *LIMITS, *STOPS_SOON, nproc=1)
    await cluster.node("b", "--nnodes", "2", "--max-restarts", "1", *STOPS_SOON, nproc=1)
    await steps(await cluster.hub.group(2), 7)
    second = await cluster.hub.group(2)
    await cluster.finish(second)
    (restart,) = (await cluster.server.run())["history"]
    assert restart["cause"] == "hang" and "rank" not in restart["reason"].partition(":")[0], restart["reason"]


async def test_the_status_shows_steps_while_the_run_continues(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--lease", "1")
    await steps(workers, 41)
    await steps(workers, 42)
    await workers[0].tell("progress 42 checkpoint")
    while (run := await cluster.server.run())["progress"] is None or run["progress"]["checkpoint_step"] is None:
        pass
    assert (run["progress"]["highest_step"], run["progress"]["checkpoint_step"]) == (42, 42)
    assert run["nodes"][0]["progress"]["lowest_step"] == 42
    await cluster.finish(workers)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_the_steps_of_a_worker_that_has_become_another_user_are_shown(cluster: Cluster) -> None:
    """Otherwise it looks as if it hangs."""
    workers = await cluster.nodes("a", "--nnodes", "1", "--lease", "1", nproc=1)
    await workers[0].tell("become 65534")
    await steps(workers, 41)
    while (run := await cluster.server.run())["progress"] is None:
        pass
    assert run["progress"]["highest_step"] == 41
    await cluster.finish(workers)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide /proc")
@pytest.mark.parametrize("flags", [(), LIMITS], ids=["", "with --progress-timeout"])
async def test_without_proc_an_agent_runs_but_does_not_judge_progress(hub: WorkerHub, flags: tuple[str, ...]) -> None:
    hides = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    agent = await Program.start(*hides, sys.executable, *AGENT, "--standalone", *flags, WORKER, env=hub.env)
    if flags:
        assert await agent.exit_code() == 2
        assert has_message(agent.err, agent_words.no_proc, source="--progress-timeout")
        return
    (worker,) = await hub.group(1)
    worker.order_exit(0)
    assert await agent.exit_code() == 0, agent.err
    assert has_message(agent.err, plan_words.NO_PROC)


@pytest.mark.parametrize("policy", ["fail", "report"])
async def test_a_fault_in_the_log_ends_the_run_or_is_reported(cluster: Cluster, policy: str) -> None:
    rule = ("--log-rule", r"most=10,points=2: loss=(\S+)", "--log-rule", "stop: all done")
    workers = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "3", *rule, "--on-hang", policy)
    for line in ("loss=nan", "loss=2.0", "loss=NaN", "loss=NaN"):
        await workers[0].tell(f"say {line}")
    if policy == "fail":
        agent = cluster.agents.pop("a")
        assert await agent.exit_code() == 1
        await agent.line(f"rank 0 on node a failed: {words.hang(re.escape(NO_NUMBER))}")
    else:
        await cluster.agents["a"].line(pattern(hang_words.may_hang, ranks=(0,), reason=NO_NUMBER))
        while not (found := await events(cluster, "hang_found")):
            pass
        assert "--log-rule" in str(found[0]["reason"])
        await cluster.finish(workers)
        assert (await cluster.server.run())["phase"] == "succeeded"


async def test_a_line_that_all_work_is_done_ends_the_rules_of_other_nodes(cluster: Cluster) -> None:
    """The workers of one node finish at once, and those of another one later. Its next line would be due before."""
    rule = ("--log-rule", r"every=3,rank=2: step \d+", "--log-rule", "stop: all done", "--max-restarts", "0")
    workers = await cluster.nodes("ab", "--nnodes", "2", *rule)
    of_a, of_b = of_node(workers, 0), of_node(workers, 1)
    watching = next(agent for agent in cluster.agents.values() if agent.pid == of_b[0].agent_pid)
    await of_b[0].tell("say step 1")
    await of_a[0].tell("say all done")
    for worker in of_a:
        worker.order_exit(0)
    await watching.line(pattern(hang_words.may_hang, ranks=(2,)))
    await of_b[0].tell("say step 2")
    await watching.line(part(hang_words.no_longer_hung))
    assert not await events(cluster, "hang_suspected")
    await cluster.finish(of_b)


async def test_a_pattern_that_never_finishes_does_not_block_the_agent(cluster: Cluster) -> None:
    rules = ("--log-rule", "fault: (a+)+$", "--log-rule", "fault: boom")
    workers = await cluster.nodes("a", "--nnodes", "1", *rules)
    await workers[0].tell(f"say {'a' * 60}!")
    agent = cluster.agents.pop("a")
    await agent.line(pattern(hang_words.pattern_too_slow, pattern="(a+)+$", limit_s=2.0))
    await workers[0].tell("say boom")
    assert await agent.exit_code() == 1
    await agent.line("rank 0 on node a failed: " + words.hang(agent_words.wrote_line("boom")))


async def test_silence_of_every_node_is_a_hang_and_that_of_one_is_none(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--silence-timeout", "3")
    await workers[0].tell("say step 1")
    second = await cluster.hub.group(4)
    assert (await cluster.restarts()) == {"hang": 1} and restart_count(second) == 1
    await cluster.finish(second)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_workers_may_take_the_whole_limit_after_the_one_that_writes_has_finished(
    cluster: Cluster, names: str
) -> None:
    """The last wait is far below the limit: without the rule, the others are suspected at once."""
    workers = await cluster.nodes(names, "--nnodes", str(len(names)), "--silence-timeout", "6")
    for _ in range(14):
        await workers[0].tell("say step")
        await asyncio.sleep(0.5)
    for worker in of_node(workers, 0) if len(names) > 1 else workers[:1]:
        worker.order_exit(0)
        await worker.gone()
    await asyncio.sleep(1.5)
    assert not await events(cluster, "hang_suspected")
    await cluster.finish(workers)


def error_file(path: str) -> dict[str, Any]:
    return dict(json.loads(Path(path).read_text())["message"])


def at(rank: int, state: ProcessState = ProcessState.ALIVE, **place: str | int) -> str:
    """Return the pattern of a summary's part about one rank."""
    before, after = words.ranks_at([rank], 0, "PLACE", state).split("PLACE")
    return f"; {re.escape(before)}{part(words.place, **place)}{re.escape(after)}"


SENTENCE = (
    at(0, file="worker.py")
    + at(1, ProcessState.STOPPED, file="worker.py")
    + f".*; {words.blame([1], words.DOES_NOT_RUN)}"
)


async def test_every_view_shows_what_all_ranks_did_and_where_the_evidence_is(cluster: Cluster, tmp_path: Path) -> None:
    cluster.nproc = 1
    for name in "ab":
        own = {"TORCHELASTIC_ERROR_FILE": f"{tmp_path}/{name}.json"}
        flags = ("--nnodes", "2", "--max-restarts", "3", "--on-hang", "fail", "--log-dir", f"{tmp_path}/{name}")
        await cluster.node(name, *flags, *LIMITS, *STOPS_SOON, env=own)
    workers = await cluster.hub.group(2)
    await steps(workers, 7)
    os.kill(workers[1].pid, signal.SIGSTOP)
    codes = [await agent.exit_code() for agent in cluster.agents.values()]
    assert codes == [1, 1]
    run = await cluster.server.run()
    failure, (found,) = run["end_failure"], await events(cluster, "hang_found")
    folder = re.fullmatch(pattern(words.evidence_in, node_id=failure["node_id"]), failure["hint"])
    assert (
        folder
        and folder[1].startswith(f"{tmp_path}/")
        and {"rank_1.kernel.txt", "rank_1.stacks.txt"} <= set(os.listdir(folder[1]))
    )
    stack = failure["traceback"]
    assert "worker.py" in stack[0] and len(stack) > 1, "of the rank that is to blame"
    told = found["failure"]
    assert isinstance(told, dict) and (told["hint"], told["traceback"]) == (failure["hint"], stack)
    for name, agent in cluster.agents.items():
        left = error_file(f"{tmp_path}/{name}.json")
        box = "\n".join(agent.err)
        assert f"what to do: {failure['hint']}" in box and stack[-1].strip() in box
        assert left["extraInfo"]["py_callstack"].splitlines() == stack
        for text in (box, left["message"], run["reason"], found["reason"], failure["cause"], told["cause"]):
            assert re.search(words.hang(STUCK) + SENTENCE, str(text))


async def test_a_hang_that_is_only_reported_may_end_by_itself(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", *LIMITS, "--on-hang", "report")
    await steps(workers, 7)
    os.kill(workers[1].pid, signal.SIGSTOP)
    await workers[0].tell("progress 8")
    while not (found := await events(cluster, "hang_found")):
        pass
    assert re.search(at(1, ProcessState.STOPPED), str(found[0]["reason"]))
    hang = (await cluster.server.run())["hang"]
    assert (hang["reported"], hang["verdict"], hang["node"], hang["rank"]) == (True, found[0]["reason"], "a", 1)
    os.kill(workers[1].pid, signal.SIGCONT)
    await workers[1].tell("progress 8")
    for worker in workers:
        await worker.tell("progress 9 end")
    while (run := await cluster.server.run())["hang"]:
        pass
    assert run["phase"] == "running" and await cluster.restarts() == {}
    await cluster.finish(workers)


async def test_a_limit_that_ends_three_rounds_in_a_row_is_doubted_and_causes_no_more_restarts(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "py-spy").chmod(0o755)
    limits = ("--nnodes", "1", "--max-restarts", "3", "--progress-timeout", "start=60,step=1", *STOPS_SOON)
    await cluster.node("a", *limits, nproc=1, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    for _ in range(3):
        (worker,) = await cluster.hub.group(1)
        await worker.tell("progress 7")
    (worker,) = await cluster.hub.group(1)
    await worker.tell("progress 7")
    doubt = words.limit_doubted(3, "--progress-timeout", 1.0, STANDSTILL_S)
    await cluster.server.line(f"worker rank 0 on node a: {words.hang('.*', re.escape(doubt))}")
    run = await cluster.server.run()
    assert doubt in run["hang"]["withheld"] and doubt in run["reason"]
    assert doubt in str((await events(cluster, "hang_found"))[3]["reason"])
    why = await rdzvctl("why", endpoint=cluster.endpoint)
    assert doubt in why.out[0] and [line for line in why.out if line.endswith(words.RAISE_LIMIT)]
    await worker.tell("progress 8 end")
    while (run := await cluster.server.run())["hang"]:
        pass
    assert run["phase"] == "running" and await cluster.restarts() == {"hang": 3}
    await cluster.finish([worker])


async def test_a_worker_in_uninterruptible_sleep_is_found_and_the_run_restarts(cluster: Cluster) -> None:
    variable = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "2"}
    await cluster.node("a", "--nnodes", "1", "--max-restarts", "1", *STOPS_SOON, env=variable)
    first = await cluster.hub.group(2)
    first[1].order("sleep-uninterruptibly")
    second = await cluster.hub.group(2)
    (restart,) = (await cluster.server.run())["history"]
    assert restart["cause"] == "hang"
    hang = words.hang(agent_words.uninterruptible(2.0))
    assert f"rank 1 on node a failed: {hang}" in restart["reason"]
    where = words.ranks_at([1], 2, ".*sleep_uninterruptibly", ProcessState.UNINTERRUPTIBLE)
    assert re.search(f"; {where}", restart["reason"])
    await cluster.finish(second)


async def test_a_leader_that_dies_in_an_examination_is_followed_by_one_that_examines_and_judges(
    replicas: Replicas,
) -> None:
    replicas.nproc = 1
    flags = ("--nnodes", "2", "--max-restarts", "1", "--lease", "60", *LIMITS, *STOPS_SOON)
    first = await replicas.nodes("ab", *flags)
    suspects, silent = (next(a for a in replicas.agents.values() if a.pid == w.agent_pid) for w in first)
    await steps(first, 7)
    silent.signal(signal.SIGSTOP)  # so that the examination lasts
    os.kill(first[0].pid, signal.SIGSTOP)
    await suspects.line(LOOKED)
    await (await replicas.leader()).kill()
    await replicas.regain_server()
    silent.signal(signal.SIGCONT)
    await silent.line(LOOKED)
    second = await replicas.hub.group(2)
    (run,) = (await (await replicas.leader()).status())["runs"]
    (restart,) = run["history"]
    assert restart["cause"] == "hang" and "worker rank 0 on node " in restart["reason"]
    assert re.search(r"; rank 0 stopped \(SIGSTOP\) in .*; rank 1 in ", restart["reason"]), "of both nodes"
    await replicas.finish(second)


LOADER = """
import os, time
from node_agent import progress
def batches():
    for number in range(9):
        if number == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        yield number
for number in batches():
    time.sleep(0.05)
    progress(step=number)
"""
LOST_THREAD = """
import os, queue, threading, time
from node_agent import progress
batches = queue.Queue(2)
def load():
    for number in range(9):
        if number == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise OSError(5, "lost")
        batches.put(number)
threading.Thread(target=load, daemon=True).start()
for step in range(9):
    step = batches.get()
    time.sleep(0.05)
    progress(step=step)
"""
EVALUATION = """
import time
from node_agent import progress
for step in range(12):
    progress(step=step)
    time.sleep(0.05)
progress(kind="checkpoint")
time.sleep(13)
progress(kind="evaluation")
"""
COLLECTIVE = """
import os
import torch, torch.distributed as dist
from node_agent import progress
dist.init_process_group("gloo")
for step in range(8):
    if not (step == 5 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
        dist.all_reduce(torch.ones(1))
    else:
        import time
        time.sleep(600)
    progress(step=step)
print("rank", dist.get_rank(), "is done")
"""
RAISES = """
import os, threading, time
import torch, torch.distributed as dist
from node_agent import progress
dist.init_process_group("gloo")
def serve():
    while True:
        time.sleep(1)
for step in range(8):
    dist.all_reduce(torch.ones(1))
    if step == 5 and dist.get_rank() == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        threading.Thread(target=serve).start()
        raise ValueError("bad batch")
    progress(step=step)
"""
TORCH_S = 120.0
"""Seconds for two imports of torch, and an examination of the workers, on a busy machine."""
TIMER = """
import os, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal=0))
with timer.expires(after=60):
    print("in time")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=1):
        time.sleep(600)
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
async def test_a_timer_of_torchs_that_expires_is_a_hang(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TIMER)
    limits = ("--progress-timeout", "500", "--max-restarts", "1", "--shutdown-timeout", "1")
    variable = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    warm = ("--preload", "torch.distributed.elastic.timer")
    agent = await Program.start(
        sys.executable, "-m", "node_agent", "--standalone", *warm, *limits, str(path), env=variable
    )  # fmt: skip
    await agent.line(
        "rank 0 on node .* " + words.hang(r"timer '.*' of process \d+ has expired") + at(0, file="train.py", line=9),
        TORCH_S,
    )
    assert await agent.exit_code(TORCH_S) == 0


@pytest.mark.parametrize(
    ("script", "flags", "found"),
    [
        pytest.param(LOADER, ("--standalone", "--max-hang-restarts", "1"), "", id="a data loader that waits"),
        pytest.param(
            LOST_THREAD, ("--standalone", "--max-hang-restarts", "1"),
            ".*; "
            + re.escape(words.thread_ended(0, "Thread-1 (load)", "OSError: [Errno 5] lost", 0))
            + re.escape(": OSError: [Errno 5] lost"),
            id="a loop whose thread has raised",
        ),
        pytest.param(
            COLLECTIVE, ("--standalone", "--nproc", "2", "--max-restarts", "1", "--preload", "torch.distributed"),
            at(0, operation="all_reduce", file="train.py", line=8) + at(1, file="train.py", line=11)
            + f"; {words.blame([1], words.OUTSIDE_COLLECTIVE)}",
            id="a collective that one skips, without py-spy", marks=pytest.mark.torch,
        ),
        pytest.param(
            RAISES, ("--standalone", "--nproc", "2", "--max-restarts", "1", "--preload", "torch.distributed"),
            f"; rank 0 in {part(words.interpreter_shutdown)}" + at(1, operation="all_reduce", file="train.py", line=10)
            + f"; {words.blame([0], words.HAS_RAISED)}: ValueError: bad batch",
            id="a rank that raises, and whose own thread keeps it alive", marks=pytest.mark.torch,
        ),
    ],
)  # fmt: skip
async def test_a_script_that_hangs_once_is_done_in_the_end(
    tmp_path: Path, script: str, flags: tuple[str, ...], found: str
) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "py-spy").chmod(0o755)
    path = tmp_path / "train.py"
    path.write_text(script)
    limits = ("--progress-timeout", "start=100,step=3", "--shutdown-timeout", "1")
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    agent = await Program.start(sys.executable, "-m", "node_agent", *flags, *limits, str(path), env=variables)
    try:
        stuck = pattern(agent_words.no_progress, limit_s=3.0, step=4)
        await agent.line(words.hang(stuck) + found, TORCH_S)
        assert await agent.exit_code(TORCH_S) == 0
    finally:
        await agent.end()


async def test_a_first_evaluation_that_takes_long_is_not_a_hang(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(EVALUATION)
    flags = ("--standalone", "--progress-timeout", "auto", "--on-hang", "fail")
    agent = await Program.start(sys.executable, "-m", "node_agent", *flags, str(path))
    assert await agent.exit_code() == 0
    assert not has_message(agent.err, hang_words.may_hang, ranks=(0,))


@pytest.mark.parametrize("reaction", ["report", "fail"])
async def test_a_preloaded_module_that_hangs_is_a_hang_before_any_worker_has_started(
    cluster: Cluster, tmp_path: Path, reaction: str
) -> None:
    (tmp_path / "waits.py").write_text("import os\nopen(os.environ['GATE']).read()\n")
    os.mkfifo(gate := tmp_path / "gate")
    flags = ("--nnodes", "1", "--preload", "waits", "--progress-timeout", "start=2,step=60", *STOPS_SOON)
    variables = {"PYTHONPATH": str(tmp_path), "GATE": str(gate)}
    agent = await cluster.node("a", *flags, "--on-hang", reaction, nproc=1, env=variables)
    prepares = {"node_id": "a", "what": IMPORTS, "limit_s": 2.0, "flag": "--progress-timeout"}
    await agent.line(agent_words.may_hang_before_start(pattern(agent_words.prepares, **prepares)))
    while not (found := await events(cluster, "hang_found")):
        pass
    assert re.search(words.hang(pattern(agent_words.prepares, **prepares)), str(found[0]["reason"]))
    assert "node_id" not in found[0], "no worker exists that could be to blame"
    if reaction == "fail":
        assert await agent.exit_code() == 1
        return
    assert (await cluster.server.run())["health"]["state"] == "hung"
    gate.write_text("")
    workers = await cluster.hub.group(1)
    await workers[0].tell("progress 1")
    while (await cluster.server.run())["hang"]:
        pass
    await agent.line(re.escape(agent_words.no_longer_hung("preparation (--progress-timeout)")))
    await cluster.finish(workers)


async def test_a_preloaded_module_may_take_longer_than_workers_may_be_silent(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import os\nopen(os.environ['GATE']).read()\n")
    os.mkfifo(gate := tmp_path / "gate")
    limits = ("--silence-timeout", "1", "--progress-timeout", "1", "--on-hang", "report")
    variables = {"PYTHONPATH": str(tmp_path), "GATE": str(gate)}
    agent = await cluster.node("a", "--nnodes", "1", "--preload", "waits", *limits, nproc=1, env=variables)
    await agent.line("round 1: ")
    await asyncio.sleep(3.0)  # the time that is tested
    assert await events(cluster, "hang_suspected") == []
    gate.write_text("")
    workers = await cluster.hub.group(1)
    await cluster.finish(workers)
    assert await agent.exit_code() == 0


WRITES = """
from node_agent import progress
for step in range(4_000):
    progress(step=step)
    print(10_000 * ".")
"""
"""Script that shows a sign of life before each line, so that only a line that is held up can exceed a limit."""


async def test_a_blocked_console_is_named_and_its_workers_are_not_killed(cluster: Cluster, tmp_path: Path) -> None:
    """Limits do not count the start of Python, which takes seconds on a busy machine: it is imported before."""
    (path := tmp_path / "train.py").write_text(WRITES)
    reads, writes = os.pipe()
    limits = ("--silence-timeout", "2", "--progress-timeout", "2", "--on-hang", "fail", "--preload", "node_agent")
    flags = ("--endpoint", cluster.endpoint, "--nnodes", "1", "--run-id", "held", *limits)
    agent = await asyncio.create_subprocess_exec(sys.executable, *AGENT, *flags, str(path), stdout=writes, stderr=PIPE)
    os.close(writes)
    try:
        async with asyncio.timeout(60.0):
            while not (runs := (await cluster.server.status())["runs"]) or runs[0]["health"]["state"] == "ok":
                pass
            node_id = runs[0]["nodes"][0]["node_id"]
            assert runs[0]["health"]["state"] == "stalled"
            assert runs[0]["health"]["sentence"] == policy_words.console_held(node_id)
            said = await rdzvctl("why", "held", endpoint=cluster.endpoint)
            assert policy_words.free_console(node_id) in " ".join(" ".join(said.out).split())
            assert await events(cluster, "hang_suspected") == []
            reading = asyncio.create_task(asyncio.to_thread(_read_all, reads))
            assert await agent.wait() == 0, "the script had only waited"
            await reading
    finally:
        if agent.returncode is None:
            agent.kill()
            await agent.wait()
        os.close(reads)


RAISED = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
for line in ("Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "ValueError: boom"):
    print("[rank0]: " + line, file=sys.stderr)
"""


async def test_a_worker_whose_script_has_ended_is_named_and_not_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The agent's limit of silence is shorter here."""
    (path := tmp_path / "train.py").write_text(RAISED)
    program = (
        "import sys; from node_agent.features import ended_scripts; ended_scripts.SILENT_S = 0.5; "
        "from node_agent.cli.main import main; sys.exit(main())"
    )
    flags = ("--endpoint", cluster.endpoint, "--nnodes", "1", "--run-id", "ended", "--lease", "2")
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *flags, str(path), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert agent.stdin
    try:
        async with asyncio.timeout(60.0):
            while not (runs := (await cluster.server.status())["runs"]) or runs[0]["health"]["state"] == "ok":
                pass
            node_id = runs[0]["nodes"][0]["node_id"]
            assert runs[0]["health"]["state"] == "stalled"
            assert runs[0]["health"]["sentence"] == policy_words.script_ended(0, node_id, "ValueError: boom")
            said = await rdzvctl("why", "ended", endpoint=cluster.endpoint)
            assert policy_words.see_ended(0, "ended").partition(":")[0] in " ".join(" ".join(said.out).split())
            agent.stdin.close()
            await agent.communicate()
            assert agent.returncode == 0, "the script had only waited"
    finally:
        if agent.returncode is None:
            agent.kill()
            await agent.wait()


def _read_all(fd: int) -> None:
    while os.read(fd, 1 << 20):
        pass


RETRIES = """
from node_agent import progress
for step in range(1, 6):
    progress(step=step)
while True:
    print("retrying " + 10_000 * ".")
"""


async def test_workers_that_hang_and_write_more_than_a_slow_console_takes_are_found(tmp_path: Path) -> None:
    (path := tmp_path / "train.py").write_text(RETRIES)
    flags = ("--standalone", "--progress-timeout", "start=60,step=3", "--on-hang", "fail", *STOPS_SOON)
    agent = await asyncio.create_subprocess_exec(sys.executable, *AGENT, *flags, str(path), stdout=PIPE, stderr=PIPE)

    pause_s = 0.1

    async def slowly(out: asyncio.StreamReader) -> None:
        while await out.read(1 << 16):  # noqa: ASYNC110
            await asyncio.sleep(pause_s)

    reading = asyncio.create_task(slowly(agent.stdout))
    try:
        async with asyncio.timeout(30.0):
            while not re.search(
                pattern(agent_words.no_progress, limit_s=3.0, step=5).encode(), await agent.stderr.readline()
            ):
                pass
        pause_s = 0.0
        async with asyncio.timeout(60.0):
            await agent.stderr.read()
            assert await agent.wait() == 1
            await reading
    finally:
        if agent.returncode is None:
            agent.kill()
            await agent.wait()
        reading.cancel()


PULSE = """
import time
from node_agent import progress
for step in range(1, 11):
    progress(step=step)
    time.sleep(0.3)
time.sleep(1000)
"""


@need_time_namespaces
@pytest.mark.parametrize("ahead_s", [-30, 100_000], ids=["behind", "ahead"])
async def test_a_worker_in_a_time_namespace_hangs_only_when_it_reports_no_progress(
    tmp_path: Path, ahead_s: int
) -> None:
    """Its clock differs by more than the limit of a step. A busy machine may take seconds for one."""
    path = tmp_path / "train.py"
    path.write_text(PULSE)
    inside = in_time_namespace(ahead_s, sys.executable, str(path))
    flags = ("--standalone", "--progress-timeout", "start=60,step=10", "--on-hang", "fail", *STOPS_SOON)
    agent = await Program.start(sys.executable, "-m", "node_agent", *flags, "--no-python", *inside)
    try:
        assert await agent.exit_code() == 1
        stuck = pattern(agent_words.no_progress, limit_s=10.0, step=10)
        assert any(re.search(stuck, line) for line in agent.err)
        assert not has_message(agent.err, agent_words.no_longer_hung)
    finally:
        await agent.end()
