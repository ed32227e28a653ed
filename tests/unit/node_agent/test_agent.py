"""The whole agent: a real machine, runner and workers, with a simulated server and console."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from msgspec import json
from msgspec.structs import replace
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_SECONDS
from rdzv_protocol.errors import MalformedMessage, StaleRound
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Drain, JoinRequest, LeaveRequest, PollRequest, ReportRequest, SuspectRequest
from rdzv_protocol.queries import Notice, Noticed, QueryAnswer

from node_agent import agent as agent_module
from node_agent import words
from node_agent.agent import Agent
from node_agent.features import recorded_errors
from node_agent.features import words as features
from node_agent.features.checks import NodeChecks
from node_agent.features.event_log import EventLog
from node_agent.features.extension_locks import ExtensionLocks
from node_agent.features.file_timer import WorkerTimers
from node_agent.features.hangs import Hangs
from node_agent.features.metrics import Metrics
from node_agent.features.metrics.feature import FAILURES, AgentMetrics
from node_agent.features.notices import Notices
from node_agent.features.notices import words as notices
from node_agent.features.notices.notice_board import HANDLER_INTERVAL_S
from node_agent.features.readiness import Readiness
from node_agent.features.readiness import words as readiness
from node_agent.features.rules import FailureRules
from node_agent.features.rules import words as rules
from node_agent.features.store import Store
from node_agent.features.warm import WarmWorkers
from node_agent.features.warm import words as warm_words
from node_agent.kernel.core.backoff import ServerLost, Unreachable
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.events import Signalled
from node_agent.kernel.core.machine import State
from node_agent.kernel.leave_signals import LeaveSignals
from node_agent.kernel.processes.orphans import Orphans
from node_agent.kernel.processes.process import own_children
from tests.support.message_search import has_message
from tests.support.process_info import ended, until
from tests.unit.node_agent.rig import Rig, rig
from tests.unit.node_agent.story import finish, join, start, stop


def one_worker(round: int = 1, restart_count: int = 0):
    return start(round, local_world_size=1, group_rank=0, first_rank=0, restart_count=restart_count)


async def has_started(agent: Rig) -> None:
    await agent.server.answers(one_worker())
    await agent.server.hears(PollRequest)


async def has_workers(agent: Rig) -> None:
    await has_started(agent)
    await until(lambda: agent.pids)


def held(what: str) -> list[str]:
    """Return this process's descriptors of this kind."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return [link for link in links if os.path.islink(link) and what in os.readlink(link)]


def memory_files() -> list[str]:
    """Return the memory for workers' progress that this process holds."""
    return held("node-agent-progress")


def timed() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


def expired_timer(pid: int, signum: int = 0) -> bytes:
    """Return a line as torch's client writes it, for a timer that only reports, or kills."""
    timer = {"version": 1, "pid": pid, "scope_id": "forward", "expiration_time": 1.0, "signal": signum}
    return json.encode(timer) + b"\n"


def write(pipe: str, lines: bytes) -> None:
    Path(pipe).write_bytes(lines)


def gone() -> int:
    """Return the pid of a child that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


async def test_a_run_from_the_join_to_the_exit_code():
    async with rig("exit 0") as agent:
        join = await agent.server.hears(JoinRequest)
        assert (join.run_id, join.node_id, join.addr, join.after_round) == ("run", "a", "127.0.0.1", 0)
        await agent.server.answers(one_worker())
        assert (await agent.server.hears(ReportRequest)).failure is None
        await agent.server.answers(finish())
        assert await agent.exit_code() == 0


async def test_an_agent_that_gets_a_signal_as_it_starts_does_not_join():
    signals = LeaveSignals()
    signals.come("SIGTERM")
    async with rig(make=lambda config, console: Agent(config, console, signals=signals)) as agent:
        assert await agent.exit_code() == ExitCode.START_AGAIN
        assert not agent.server.of(JoinRequest)


async def test_an_unknown_name_as_own_address_causes_a_warning(monkeypatch: pytest.MonkeyPatch):
    def unknown(host: bytes, *args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"no {host.decode()}")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with rig(join=join(addr="gpu7")) as agent:
        await until(lambda: words.connection.own_name_unknown("gpu7", "no gpu7") in agent.console.lines)


async def test_the_guardian_starts_once_and_before_the_first_worker(monkeypatch: pytest.MonkeyPatch):
    """The agent does not wait for the guardian's timer before it starts workers."""
    monkeypatch.setattr(agent_module, "GUARDED_AFTER_S", 1000.0)
    orphans = create_autospec(Orphans, instance=True)
    orphans.leftovers.return_value, orphans.end.return_value = set(), 0
    async with rig(make=lambda config, console: Agent(config, console, orphans)) as agent:
        await has_workers(agent)
        await agent.server.answers(stop(1))
        await agent.server.hears(JoinRequest, 2)
        await agent.server.answers(one_worker(2))
        await agent.server.hears(PollRequest, 2)
        await until(lambda: agent.pids)
        done = [name for name, *_ in orphans.method_calls if name in ("guard", "started")]
        assert done == ["guard", "started", "started"]


async def test_the_guardian_starts_before_a_check_of_the_node(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent_module, "GUARDED_AFTER_S", 1000.0)
    orphans = create_autospec(Orphans, instance=True)
    checks = NodeChecks(pre_join_check="true")
    async with rig(make=lambda config, console: Agent(config, console, orphans), features=(checks,)) as agent:
        await agent.server.hears(JoinRequest)
        orphans.guard.assert_called_once()


async def test_an_agent_that_leaves_kills_the_check_of_its_node(tmp_path: Path):
    pid = tmp_path / "pid"
    checks = NodeChecks(pre_join_check=f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600")
    async with rig(features=(checks,)) as agent:
        await until(pid.exists)
        agent.agent.leave("SIGTERM")
        assert await agent.exit_code() == ExitCode.START_AGAIN
        await ended(int(pid.read_text()))


async def test_each_round_has_a_port_of_its_own():
    async with rig() as agent:
        await has_started(agent)
        await agent.server.answers(stop(1))
        second = await agent.server.hears(JoinRequest, 2)
        assert second.after_round == 1
        assert second.port != agent.server.of(JoinRequest)[0].port


async def test_a_failure_is_reported_with_its_evidence_and_the_next_round_starts_new_workers():
    async with rig("echo ValueError: boom >&2; exit 3") as agent:
        await agent.server.answers(one_worker())
        report = await agent.server.hears(ReportRequest)
        assert (report.round, report.failure.exit_code, report.failure.node_id) == (1, 3, "a")
        assert "ValueError: boom" in report.failure.stderr_tail
        await agent.server.answers(stop(1))
        assert (await agent.server.hears(JoinRequest, 2)).after_round == 1
        await agent.server.answers(one_worker(2))
        assert (await agent.server.hears(ReportRequest, 2)).round == 2
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == 1


LOSES_THE_OTHER = """
if [ $LOCAL_RANK = 0 ]; then echo 'RuntimeError: gloo: Connection closed by peer' >&2; exit 1; fi
read go < $GATE
exit 3
"""


async def test_features_learn_the_failure_of_a_round_and_not_those_that_follow_from_it(tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    options = (Metrics(metrics_port=("localhost", 0)), EventLog(event_log_handler="console"))
    variables = {"PATH": os.environ["PATH"], "GATE": str(gate)}
    async with rig(LOSES_THE_OTHER, workers=2, environment=variables, features=options) as agent:
        await agent.server.answers(start(local_world_size=2, group_rank=0, first_rank=0))
        await until(lambda: list(agent.agent.workers()) == [1])
        await asyncio.to_thread(gate.write_text, "go\n")
        assert (await agent.server.hears(ReportRequest)).failure.rank == 1
        failed = words.progress.worker_failed
        await until(lambda: has_message("\n".join(agent.console.lines), failed, rank=0, error=""))
        (failures,) = (each.value for each in agent.feature(AgentMetrics).samples() if each.metric is FAILURES)
        assert failures == 1
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == 1
    events = [json.decode(line)["metadata"] for line in agent.console.text(2).splitlines() if line.startswith(b"{")]
    ends = {each["global_rank"]: each["state"] for each in events if each["state"] != "START" and each["worker_id"]}
    assert ends == {0: "TERMINATED", 1: "FAILED"}


SLOW_DISK_S, DISK_HANGS_S = 1_000.0, 40.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield an event until which the disk of the error files hangs. Rank 0 has recorded an error there.

    A test that fails does not set the event, and its agent waits for the disk.
    """
    answers = threading.Event()

    def recorded(paths: Sequence[str]) -> dict[int, str]:
        answers.wait(DISK_HANGS_S)
        return {0: "ValueError: boom"}

    monkeypatch.setattr(recorded_errors, "recorded", recorded)
    monkeypatch.setattr(recorded_errors, "LOOK_WITHIN_S", SLOW_DISK_S)
    yield answers
    answers.set()


async def has_succeeded(agent: Rig) -> None:
    await has_started(agent)
    await until(lambda: agent.agent.machine.state is State.SUCCEEDED)


async def test_a_success_is_reported_although_the_disk_of_the_error_files_hangs(disk: threading.Event):
    """The agent logs the error when it knows it."""
    async with rig("exit 0") as agent:
        await has_succeeded(agent)
        assert (await agent.server.hears(ReportRequest)).errors == ()
        await agent.server.answers(finish())
        disk.set()
        assert await agent.exit_code() == 0
        assert features.exited_0_with_error(0, "ValueError: boom") in agent.console.lines


async def succeeded_and_waits(agent: Rig, disk: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "CAUSE_TIMEOUT_S", SLOW_DISK_S)
    await has_succeeded(agent)
    assert not agent.server.of(ReportRequest)


async def test_no_leave_overtakes_the_report_of_a_success(disk: threading.Event, monkeypatch: pytest.MonkeyPatch):
    async with rig("exit 0") as agent:
        await succeeded_and_waits(agent, disk, monkeypatch)
        agent.agent.leave("SIGTERM", "the machine is preempted")
        await asyncio.sleep(0)
        assert not agent.server.of(LeaveRequest)
        disk.set()
        await agent.server.hears(LeaveRequest)
        report, leave = (each for each in agent.server.requests if isinstance(each, ReportRequest | LeaveRequest))
        assert isinstance(report, ReportRequest) and isinstance(leave, LeaveRequest)
        assert [(each.rank, each.error) for each in report.errors] == [(0, "ValueError: boom")]
        assert not leave.retracts_success
        assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_the_end_of_a_round_does_not_drop_the_report_of_a_success(
    disk: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    async with rig("exit 0") as agent:
        await succeeded_and_waits(agent, disk, monkeypatch)
        await agent.server.answers(stop(1))
        await agent.server.hears(JoinRequest, 2)
        disk.set()
        report = await agent.server.hears(ReportRequest)
        assert (report.round, report.failure) == (1, None)


async def test_a_repeated_report_of_a_success_contains_its_errors(disk: threading.Event):
    disk.set()
    async with rig("exit 0") as agent:
        await has_succeeded(agent)
        await agent.server.hears(ReportRequest)
        agent.agent._runner._perform(agent.agent.machine.report(1, None))
        repeated = await agent.server.hears(ReportRequest, 2)
        assert [(each.rank, each.error) for each in repeated.errors] == [(0, "ValueError: boom")]


async def test_rounds_close_all_descriptors_of_their_workers():
    before, kept = len(memory_files()), set()
    async with rig("exit $(( TORCHELASTIC_RESTART_COUNT % 2 ))", features=(Notices(gives_notices=True),)) as agent:
        for round_ in range(1, 5):
            await agent.server.answers(one_worker(round_, restart_count=round_))
            await agent.server.hears(ReportRequest, round_)
            kept.add(len(memory_files()) - before)
            await agent.server.answers(stop(round_))
            await agent.server.hears(JoinRequest, round_ + 1)
        assert kept == {0, 1}  # those of failed workers are closed at once
    assert len(memory_files()) == before


async def test_torchs_file_timer_is_a_sign_of_a_hang_and_a_process_that_is_gone_is_none():
    async with rig(environment=timed(), features=(Hangs(silence_timeout=1_000.0),)) as agent:
        await has_workers(agent)
        (pid,) = agent.pids
        write(agent.feature(WorkerTimers).path, expired_timer(gone()) + expired_timer(pid))
        suspected = await agent.server.hears(SuspectRequest)
        assert (suspected.source, suspected.ranks) == ("timer", (0,))
        assert suspected.reason == features.timer_expired("forward", pid)
        assert len(agent.server.of(SuspectRequest)) == 1


NOTICE = Notice(number=1, round=1, remaining_s=3.0, source="node_left", node_id="b", reason="SIGTERM")
SAVES_AT_A_NOTICE = """
: > "$NODE_AGENT_NOTICE_ACK"
while ! [ -e "$NODE_AGENT_NOTICE_FILE" ]; do echo a step; sleep 0.05; done
exec sleep 60
"""


async def test_workers_with_a_notice_are_not_suspected_even_if_they_save_for_longer_than_the_limit():
    features = (Hangs(silence_timeout=1.0), Notices(gives_notices=True))
    async with rig(SAVES_AT_A_NOTICE, features=features) as agent:
        await has_workers(agent)
        await agent.console.until(lambda: b"a step" in agent.console.text())
        answers: list[QueryAnswer] = []
        agent.agent._queries._answered = lambda number, answer: answers.append(answer)
        agent.agent._queries.ask(NOTICE)
        await until(lambda: answers)
        assert answers == [Noticed(listening=1, acknowledged=0)]
        assert not agent.server.of(SuspectRequest)


async def test_a_notice_to_workers_that_do_not_listen_says_how_they_can():
    async with rig("echo a step; exec sleep 60", features=(Notices(gives_notices=True),)) as agent:
        await has_workers(agent)
        answers: list[QueryAnswer] = []
        agent.agent._queries._answered = lambda number, answer: answers.append(answer)
        agent.agent._queries.ask(NOTICE)
        await until(lambda: answers)
        assert answers == [Noticed(listening=0, acknowledged=0)]
        assert notices.none_listens(NOTICE.reason) in agent.console.lines


HANDLES_A_NOTICE_WHEN_IT_STOPS = f"""
trap 'trap "echo got it" USR2; sleep {2 * HANDLER_INTERVAL_S}; echo stopped; exit' TERM
sleep 600 & sleep 0.05; echo a step; wait
"""
"""It handles the signal only when it is stopped, and lasts until after the next look. It forks nothing after its step.
A child that has not executed its program yet blocks the signal, and counts as a program that handles it."""


async def test_stopped_workers_no_longer_get_the_signal_of_a_notice():
    features = (Notices(gives_notices=True, notice_signal="SIGUSR2"),)
    async with rig(HANDLES_A_NOTICE_WHEN_IT_STOPS, features=features) as agent:
        await has_workers(agent)
        await agent.console.until(lambda: b"a step" in agent.console.text())
        agent.agent._queries.ask(replace(NOTICE, remaining_s=500.0))
        await agent.console.until(lambda: notices.signal_not_handled("SIGUSR2", [0]) in agent.console.lines)
        await agent.server.answers(stop(1))
        await agent.console.until(lambda: b"stopped" in agent.console.text())
        assert b"got it" not in agent.console.text()


async def test_a_worker_that_a_timer_killed_is_reported_so():
    async with rig("sleep 1000", environment=timed()) as agent:
        await has_workers(agent)
        (pid,) = agent.pids
        write(agent.feature(WorkerTimers).path, expired_timer(pid, signal.SIGKILL))
        failure = (await agent.server.hears(ReportRequest)).failure
        assert failure.cause == f"signal 9 (SIGKILL): {features.timer_expired('forward', pid)}"
        assert failure.hint == features.TIMER_EXPIRED
        await agent.server.answers(finish())
        await agent.exit_code()


async def test_an_agent_survives_a_worker_that_ends_in_the_instant_in_which_its_timer_expires():
    async with rig(environment=timed(), features=(Hangs(silence_timeout=1_000.0),)) as agent:
        await has_started(agent)
        agent.feature(WorkerTimers).expired(gone(), "forward")
        await agent.server.answers(finish())
        assert await agent.exit_code() == 0
        assert agent.server.of(SuspectRequest) == []


@pytest.mark.parametrize(
    ("refusal", "exit_code"), [(MalformedMessage("no"), ExitCode.REFUSED), (StaleRound("over"), 1)]
)
async def test_a_report_that_the_server_refuses_ends_the_agent_unless_its_round_is_over(refusal, exit_code):
    async with rig("exit 3") as agent:
        agent.server.refusal = refusal
        await agent.server.answers(one_worker())
        await agent.server.hears(ReportRequest)
        await agent.server.hears(PollRequest)
        if exit_code == 1:
            await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == exit_code
        said = words.leaving.error(words.agent.message_refused("no"))
        assert (said in agent.console.lines) == (exit_code == ExitCode.REFUSED)


async def test_a_suspicion_that_the_server_refuses_is_logged_and_ends_nothing():
    async with rig(environment=timed(), features=(Hangs(silence_timeout=1_000.0),)) as agent:
        agent.server.refusal = MalformedMessage("no such path")
        await has_workers(agent)
        agent.feature(WorkerTimers).expired(agent.pids[0], "forward")
        await agent.server.hears(SuspectRequest)
        said = words.agent.suspicion_refused("no such path")
        await agent.console.until(lambda: said in agent.console.lines)
        await agent.server.answers(finish())
        assert await agent.exit_code() == 0


async def test_a_second_signal_kills_workers_that_ignore_the_first():
    async with rig("trap '' TERM; echo ready; while :; do sleep 0.1; done", shutdown_timeout_s=60.0) as agent:
        await has_workers(agent)
        await agent.console.until(lambda: b"ready" in agent.console.text())
        feed = agent.agent._runner.feed
        feed(Signalled("SIGTERM"))
        assert (await agent.server.hears(LeaveRequest)).reason == "SIGTERM"
        assert agent.pids, "they have their grace"
        feed(Signalled("SIGTERM"))
        assert await agent.exit_code() == ExitCode.START_AGAIN
        assert agent.pids == []


async def test_workers_that_a_signal_does_not_end_are_named_with_the_flag_that_gives_them_more_time():
    async with rig("trap '' TERM; echo ready; while :; do sleep 0.1; done", shutdown_timeout_s=0.3) as agent:
        await has_workers(agent)
        await agent.console.until(lambda: b"ready" in agent.console.text())
        agent.agent._runner.feed(Signalled("SIGTERM"))
        assert await agent.exit_code() == ExitCode.START_AGAIN
        ranks = range(agent.agent.assignment.first_rank, agent.agent.assignment.first_rank + 1)
        assert words.workers.killed_late(ranks, "SIGTERM", 0.3, "--shutdown-timeout") in agent.console.lines


async def test_the_flag_is_not_named_if_a_drain_has_set_the_time():
    async with rig("trap '' TERM; echo ready; while :; do sleep 0.1; done", shutdown_timeout_s=60.0) as agent:
        await has_workers(agent)
        await agent.console.until(lambda: b"ready" in agent.console.text())
        await agent.server.answers(Drain(reason="maintenance", remaining_s=0.3))
        ranks = range(agent.agent.assignment.first_rank, agent.agent.assignment.first_rank + 1)
        killed = words.workers.killed_late(ranks, "SIGTERM", 0.3, limit="")
        await agent.console.until(lambda: killed in agent.console.lines)


async def test_without_a_port_nothing_is_started(monkeypatch):
    taken_port = words.workers.no_port(29_500, "Address already in use")

    def taken(number: int = 0) -> None:
        raise OSError(taken_port)

    monkeypatch.setattr("node_agent.agent.ReservedPort", taken)
    async with rig(master_port=29_500) as agent:
        assert await agent.exit_code() == ExitCode.NODE_UNFIT
        assert agent.console.lines == [f"error: {taken_port}"]
        assert agent.server.requests == []


async def test_a_program_that_is_not_there_is_a_failure_of_the_worker():
    async with rig(command=Command(("/nowhere/to/be/found",))) as agent:
        await agent.server.answers(one_worker())
        failure = (await agent.server.hears(ReportRequest)).failure
        assert failure.exit_code == 127
        assert has_message(failure.cause, words.workers.cannot_start, title="/nowhere/to/be/found")


async def test_the_server_is_lost_while_the_workers_finish():
    async with rig("read line; exit 0", connect_timeout_s=0.2) as agent:
        await has_started(agent)
        agent.server.error = Unreachable("connect", "refused")
        await agent.server.answers(Unreachable("HTTP", "closed"))
        assert await agent.exit_code() == 0
        said = agent.console.lines
        assert words.connection.server_lost("server:1", "HTTP: closed", True, inf) in said
        assert has_message(said, words.connection.server_given_up, server="server:1", within_s=0.2, stage="connect")
        assert said[-1] == words.leaving.WORKERS_SUCCEEDED


async def test_a_leave_that_does_not_reach_the_server_is_logged():
    """The agent waits less long for a server that cannot be reached than for a slow one."""
    async with rig("sleep 60", close_timeout_s=600.0) as agent:
        await has_started(agent)
        agent.server.error = Unreachable("connect", "refused")
        agent.agent.leave("SIGUSR1")
        assert await agent.exit_code() == ExitCode.START_AGAIN
        assert agent.console.lines[-1] == words.connection.leave_not_delivered("server:1")


async def test_a_time_of_many_months_does_not_make_a_message_invalid():
    """A server refuses a message with a number beyond its limits, and the agent would end."""
    async with rig("exec sleep 60", workers=2) as agent:
        await agent.server.answers(start(1, local_world_size=2, group_rank=0, first_rank=0))
        await until(lambda: len(agent.pids) == 2)
        started = agent.agent.started
        assert started
        long_ago = asyncio.get_running_loop().time() - 2 * MAX_SECONDS
        agent.console.held_since = started.group.failed_at = started.group.finished_at[0] = long_ago
        poll = PollRequest(run_id="r", agent_id="a", revision=1)
        report = ReportRequest(run_id="r", agent_id="a", round=1)
        for message in (poll, report):
            sent = decode(type(message), encode(agent.agent.filled(message)))
            assert sent.finished.ago_s == MAX_SECONDS
        assert agent.agent.filled(poll).console_held_s == agent.agent.filled(report).ago_s == MAX_SECONDS


# Specifications of the workers, cold and warm.

PLACE = (
    "import json, os, sys; print(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'TORCHELASTIC_RESTART_COUNT')))"
)
WARM = "import sys; print('warm' if 'slow' in sys.modules else 'cold')"


def python(program: str) -> Command:
    return Command((sys.executable, "-c", program))


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A module `slow`, whose import takes until a test writes to this pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "slow.py").write_text(f"open({str(pipe)!r}).read()")
    return pipe


def warm_rig(pipe: Path, program: str, **config: object) -> AbstractAsyncContextManager[Rig]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(pipe.parent)}
    return rig(command=python(program), features=(WarmWorkers(preload=("slow",)),), environment=environment, **config)


@pytest.mark.parametrize("preload", [(), ("json",)], ids=["cold", "warm"])
async def test_each_worker_of_each_round_has_the_environment_of_its_place(preload):
    two = {"local_world_size": 2, "group_rank": 0}
    async with rig(command=python(PLACE), workers=2, features=(WarmWorkers(preload=preload),)) as agent:
        for round_, ranks in ((1, "23"), (2, "45")):
            await agent.server.answers(start(round_, first_rank=int(ranks[0]), **two))
            assert (await agent.server.hears(ReportRequest, round_)).failure is None
            said = [f"{rank} {local_rank} {round_ - 1}" for local_rank, rank in enumerate(ranks)]
            await agent.console.until(lambda said=said: set(said) <= set(agent.console.text().decode().splitlines()))
            await agent.server.answers(stop(round_))
            await agent.server.hears(JoinRequest, round_ + 1)
        assert sum(has_message(line, warm_words.start_warm, modules="json") for line in agent.console.lines) == len(
            preload
        )


async def test_workers_wait_until_they_can_be_warm(slow):
    async with warm_rig(slow, WARM) as agent:
        await has_started(agent)
        assert agent.pids == []
        slow.write_text("go on")
        assert (await agent.server.hears(ReportRequest)).failure is None
        await agent.console.until(lambda: agent.console.text() == b"warm\n")


async def test_a_stop_while_workers_wait_to_be_warm_prevents_their_start(slow):
    async with warm_rig(slow, WARM) as agent:
        await has_started(agent)
        await agent.server.answers(stop(1))
        assert (await agent.server.hears(JoinRequest, 2)).after_round == 1
        await agent.server.answers(one_worker(2))
        slow.write_text("go on")
        assert (await agent.server.hears(ReportRequest)).round == 2
        assert agent.console.text() == b"warm\n"


async def test_a_signal_while_workers_wait_to_be_warm_ends_the_agent_and_the_start(slow):
    others = set(own_children)  # from earlier tests
    async with warm_rig(slow, WARM) as agent:
        await has_started(agent)
        agent.agent._runner.feed(Signalled("SIGTERM"))
        assert await agent.exit_code() == ExitCode.START_AGAIN
        assert agent.console.text() == b""
    assert own_children <= others


async def test_workers_start_cold_when_nothing_can_be_kept_warm():
    async with rig(command=python(WARM), features=(WarmWorkers(preload=("no_such_module",)),)) as agent:
        await agent.server.answers(one_worker())
        assert (await agent.server.hears(ReportRequest)).failure is None
        assert any(has_message(line, warm_words.start_cold) for line in agent.console.lines)


# An unexpected exception.


def boom(*args: object, **kwargs: object) -> None:
    raise BrokenPipeError("boom")


async def is_reported(agent: Rig) -> None:
    """The agent has told people and the server, its workers have ended, and it exits with 1."""
    assert await agent.exit_code() == 1
    assert agent.pids == []
    error = words.agent.internal_error("BrokenPipeError", "boom")
    assert agent.server.of(LeaveRequest)[0].reason == error
    said = "\n".join(agent.console.lines)
    assert "Traceback" in said and "in boom" in said and words.leaving.crashed(error) in said


async def failing_task() -> None:
    boom()


@pytest.mark.parametrize("where", ["callback", "timer", "reader", "task"])
async def test_an_exception_in_the_event_loop_ends_the_agent(where):
    loop = asyncio.get_running_loop()
    async with rig() as agent:
        await has_started(agent)
        reads, writes = os.pipe()
        match where:
            case "callback":
                loop.call_soon(boom)
            case "timer":
                loop.call_later(0.001, boom)
            case "reader":
                loop.add_reader(reads, lambda: (loop.remove_reader(reads), boom()))
                os.write(writes, b"x")
            case "task":
                asyncio.create_task(failing_task())  # noqa: RUF006
        await is_reported(agent)
        os.close(reads)
        os.close(writes)


async def test_a_callback_that_fails_again_and_again_is_reported_thrice():
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)
        if not agent.end.done():
            boom()

    async with rig("trap '' TERM; while :; do sleep 0.1; done", shutdown_timeout_s=0.3) as agent:
        await has_started(agent)
        loop.call_soon(again)
        await is_reported(agent)
        assert sum("Traceback" in line for line in agent.console.lines) == 3


@pytest.mark.parametrize(("part", "name"), [("_logs", "open"), ("_specs", "specs")])
async def test_an_exception_before_the_workers_have_started(monkeypatch, part, name):
    async with rig() as agent:
        monkeypatch.setattr(getattr(agent.agent, part), name, boom)
        await agent.server.answers(one_worker())
        await is_reported(agent)


async def test_an_exception_when_the_workers_have_stopped(monkeypatch):
    async with rig() as agent:
        await has_started(agent)
        with monkeypatch.context() as broken:
            broken.setattr(agent.feature(Store), "stopped", boom)
            await agent.server.answers(stop(1))
            await agent.server.hears(LeaveRequest)
        await is_reported(agent)


async def test_an_exception_at_the_very_end_does_not_withhold_the_exit(monkeypatch):
    async with rig() as agent:
        monkeypatch.setattr(agent.agent, "_write_failure_report", boom)
        await agent.server.answers(finish(succeeded=False))
        assert await agent.exit_code() == 1
        assert "in boom" in "\n".join(agent.console.lines)


async def test_workers_that_cannot_be_stopped_in_order_are_killed(monkeypatch):
    async with rig() as agent:
        await has_workers(agent)
        monkeypatch.setattr(agent.agent, "_stop_workers", boom)
        asyncio.get_running_loop().call_soon(boom)
        assert await agent.exit_code() == 1
        async with asyncio.timeout(5):
            while agent.pids:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_an_error_during_the_agents_cleanup_leaves_nothing_behind(monkeypatch):
    async with rig("exit 0") as agent:
        folder = Path(agent.agent.temp_dir.path("x"))
        monkeypatch.setattr(agent.agent._logs, "close", boom)
        await agent.server.answers(finish())
        with pytest.raises(BrokenPipeError):
            await agent.exit_code()
        assert not folder.parent.exists()


# An agent that has closed.


async def test_an_agent_that_has_closed_does_not_join_when_its_last_workers_end(monkeypatch):
    stopping, stopped = asyncio.Event(), asyncio.Event()
    async with rig("trap '' TERM; echo ready; while :; do sleep 0.1; done") as agent:
        monkeypatch.setattr(agent.feature(Store), "stopping", stopping.set)
        monkeypatch.setattr(agent.feature(Store), "stopped", stopped.set)
        await has_workers(agent)
        await agent.console.until(lambda: b"ready" in agent.console.text())
        await agent.server.answers(stop(1))
        await stopping.wait()
        (pid,) = agent.pids
        agent.end.cancel()
        await asyncio.wait([agent.end])
        sockets = held("socket:")
        os.kill(pid, signal.SIGKILL)
        await stopped.wait()
        await asyncio.sleep(0)
        assert len(agent.server.of(JoinRequest)) == 1
        assert held("socket:") == sockets, "the agent reserves no port"


async def test_an_agent_that_has_closed_does_not_start_workers_that_it_was_preparing(slow):
    others = set(own_children)  # from earlier tests
    async with warm_rig(slow, WARM) as agent:
        await has_started(agent)
        agent.agent.abort()
        assert await agent.exit_code() == ExitCode.FAILED
        await asyncio.wait([agent.agent._starting])
        assert agent.agent.started is None
    assert own_children <= others


# The file for readiness probes.


async def test_a_ready_file_is_there_while_the_agent_is_part_of_its_run(tmp_path):
    ready = tmp_path / "ready"
    ready.write_text("of an agent that was killed\n")
    async with rig("exit 0", features=(Readiness(ready_file=str(ready)),)) as agent:
        await agent.server.hears(JoinRequest)
        await until(lambda: not ready.exists())
        await agent.server.answers(one_worker())
        await agent.server.hears(ReportRequest)
        await until(ready.exists)
        assert ready.read_text() == f"{os.getpid()}\n"
        await agent.server.answers(finish())
        assert await agent.exit_code() == 0
    assert list(tmp_path.iterdir()) == []


async def test_a_ready_file_that_cannot_be_written_is_reported_and_ends_nothing(tmp_path):
    async with rig("exit 0", features=(Readiness(ready_file=str(tmp_path / "gone" / "ready")),)) as agent:
        await agent.server.answers(one_worker())
        await agent.server.hears(ReportRequest)
        await agent.server.answers(finish())
        assert await agent.exit_code() == 0
        assert readiness.failed(f"{tmp_path}/gone/ready", "No such file or directory") in agent.console.lines


# Problems around a round that do not end anything.


async def test_a_port_of_the_users_own_is_that_of_every_round(unused_tcp_port):
    async with rig(master_port=unused_tcp_port) as agent:
        await has_started(agent)
        await agent.server.answers(stop(1))
        await agent.server.hears(JoinRequest, 2)
        assert [join.port for join in agent.server.of(JoinRequest)] == [unused_tcp_port] * 2


async def test_a_stale_extension_lock_is_reported_only_once(tmp_path):
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    environment = {"PATH": os.environ["PATH"], "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    async with rig(environment=environment) as agent:
        await has_started(agent)
        await until(lambda: any(str(lock) in line for line in agent.console.lines))
        locks = agent.feature(ExtensionLocks)
        first_look = locks.looking
        await agent.server.answers(stop(1))
        await agent.server.answers(one_worker(2))
        await until(lambda: locks.looking is not first_look and locks.looking.done())
        assert sum(str(lock) in line for line in agent.console.lines) == 1


async def test_workers_start_without_a_file_timer_if_something_else_is_in_its_place(tmp_path):
    file = tmp_path / "timer"
    file.write_text("somebody's")
    async with rig("exit 0", environment={**timed(), "TORCHELASTIC_TIMER_FILE": str(file)}) as agent:
        await agent.server.answers(one_worker())
        assert (await agent.server.hears(ReportRequest)).failure is None
        assert features.no_timer(features.no_pipe("TORCHELASTIC_TIMER_FILE", str(file))) in agent.console.lines
    assert file.read_text() == "somebody's"


async def test_a_worker_without_a_pipe_for_its_errors_fails_and_closes_the_pipe_for_its_output(monkeypatch):
    pipe = os.pipe

    def only_one() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", none_left)
        return pipe()

    def none_left() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", pipe)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with rig() as agent:
        await agent.server.hears(JoinRequest)
        before = held("pipe:")
        monkeypatch.setattr(os, "pipe", only_one)
        await agent.server.answers(one_worker())
        failure = (await agent.server.hears(ReportRequest)).failure
        assert failure.cause == words.workers.cannot_start("sh", "Too many open files")
        assert failure.hint == words.hints.TOO_MANY_FILES
        await agent.server.answers(stop(1))
        await agent.server.hears(JoinRequest, 2)
        assert held("pipe:") == before


async def test_a_failure_is_reported_even_if_the_rules_cannot_be_matched(monkeypatch):
    async def full(*args: object, **kwargs: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("node_agent.features.rules.feature.run_bounded", full)
    async with rig("exit 3", features=(FailureRules(fatal_rule=("exit code 3",)),)) as agent:
        await agent.server.answers(one_worker())
        failure = (await agent.server.hears(ReportRequest)).failure
        assert (failure.exit_code, failure.verdict, failure.rule) == (3, "count", "")
        assert rules.warning(rules.unmatched(rules.not_started("no more processes"))) in agent.console.lines


async def test_an_unusable_server_ends_the_agent():
    async with rig() as agent:
        agent.server.error = ServerLost("the node that hosted rdzv-server is gone")
        assert await agent.exit_code() == ExitCode.START_AGAIN
        assert agent.console.lines == ["error: the node that hosted rdzv-server is gone"]
