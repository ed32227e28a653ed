"""`elastic_launch`: an agent within this process, alone or at a server, and the results of its workers."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent import (
    ChildFailedError,
    DefaultLogsSpecs,
    LaunchConfig,
    LaunchError,
    LogsDest,
    SignalException,
    Std,
    elastic_launch,
    launch_agent,
    words,
)
from node_agent.features.checks import CHECKS
from node_agent.features.checks import words as check_words
from node_agent.features.hangs import words as hang_words
from node_agent.kernel import leave_signals
from rdzv_server.words import completion
from tests.integration.api import functions
from tests.integration.api.worker_listener import PATIENCE_S, WorkerListener
from tests.support.message_search import has_message, pattern
from tests.support.process_info import ended, is_running, until
from tests.support.programs import Server


def alone(nproc: int = 2, **fields: Any) -> LaunchConfig:
    """Return a run of only this node. Forked workers are fastest. Tests in which the start method matters set it."""
    return LaunchConfig(1, 1, nproc, **{"max_restarts": 0, "start_method": "fork", **fields})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server.listen()
    yield server
    await server.end()


def at(server: Server, node_id: str, **fields: Any) -> LaunchConfig:
    """Return one of two nodes."""
    fields = {"rdzv_backend": "rdzv-server", "run_id": "together", "max_restarts": 0, **fields}
    configs = {"node_id": node_id, "join_timeout": PATIENCE_S, **fields.pop("rdzv_configs", {})}
    return LaunchConfig(2, 2, fields.pop("nproc", 1), rdzv_endpoint=server.endpoint, rdzv_configs=configs, **fields)


async def together(*nodes: elastic_launch[Any], args: tuple[Any, ...] = ()) -> list[Any]:
    """Return the values and exceptions of launches that run as several nodes."""
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*(node.launch_async(*args) for node in nodes), return_exceptions=True)


# Values.


def test_functions_return_by_global_rank(method: str) -> None:
    launch = elastic_launch(alone(3, start_method=method), lambda given: (given, os.environ["RANK"]))
    assert launch("rank ${local_rank}") == {rank: (f"rank {rank}", str(rank)) for rank in range(3)}
    assert launch(1)[0] == (1, "0"), "and it may be called again"


def test_a_worker_runs_on_the_cpus_near_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    sets = (frozenset(cpus[:1]), frozenset(cpus[-1:]))
    monkeypatch.setattr("node_agent.compat.api.launch_config.cpu_sets", lambda options, environment, workers: sets)
    assert elastic_launch(alone(2, numa_options="node"), os.sched_getaffinity)(0) == dict(enumerate(sets))


def test_workers_that_have_returned_stay_until_all_have(method: str, tmp_path: Path) -> None:
    config = alone(2, start_method=method)
    assert elastic_launch(config, functions.return_first)(str(tmp_path / "pid")) == {0: "", 1: False}


def test_workers_that_have_returned_are_not_in_the_way_of_a_failure(method: str, tmp_path: Path) -> None:
    """Not even with a handler of SIGTERM that does nothing."""
    config = alone(2, start_method=method, shutdown_timeout=500)
    with pytest.raises(ChildFailedError, match="exit code 3"):
        elastic_launch(config, functions.return_first)(str(tmp_path / "pid"), True)


async def test_workers_that_do_not_end_in_their_grace_are_in_the_log(
    listener: WorkerListener, caplog: pytest.LogCaptureFixture
) -> None:
    launch = launching(listener, alone(2, shutdown_timeout=1), (signal.SIGTERM,))
    await asyncio.to_thread(listener.pids, 2)
    launch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(launch, PATIENCE_S)
    await until(lambda: words.workers.killed_late([0, 1], "SIGTERM", 1.0, "shutdown_timeout") in caplog.messages)


def test_waiting_for_other_ranks_is_not_a_hang(tmp_path: Path) -> None:
    config = alone(2, rdzv_configs={"progress_timeout": "1"})
    assert elastic_launch(config, functions.return_first)(str(tmp_path / "pid"), False, 4.0) == {0: "", 1: False}


def test_commands_return_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert elastic_launch(alone(), "sh")("-c", "echo rank $RANK of $WORLD_SIZE is ${local_rank}") == {0: None, 1: None}
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0 of 2 is 0", "rank 1 of 2 is 1"]


def test_workers_have_torchruns_environment() -> None:
    expected = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "ROLE_NAME": "trainer", "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_MAX_RESTARTS": "7",
    }  # fmt: skip
    config = alone(1, role="trainer", max_restarts=7)
    assert elastic_launch(config, functions.variables)(*expected) == {0: expected}


def test_output_goes_to_the_destinations_of_the_config(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    specs = DefaultLogsSpecs(tmp_path / "logs", redirects=Std.ERR, tee=Std.OUT)
    config = alone(2, logs_specs=specs, log_line_prefix_template="<${rank}> ")
    elastic_launch(config, functions.say)("out ${local_rank}", "err ${local_rank}")
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["<0> out 0", "<1> out 1"]
    assert "err" not in shown.err
    files = {path.relative_to(tmp_path / "logs").parts[2:]: path.read_text() for path in tmp_path.glob("logs/**/*.log")}
    assert files == {
        ("0", "stdout.log"): "out 0\n", ("0", "stderr.log"): "err 0\n",
        ("1", "stdout.log"): "out 1\n", ("1", "stderr.log"): "err 1\n",
    }  # fmt: skip


def test_logs_specs_of_the_programs_own_name_the_files(tmp_path: Path) -> None:
    """This is torch's interface: `reify` gets the environments and returns where everything goes."""

    class Own:
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            stdouts = {rank: str(tmp_path / f"{env['RANK']}.out") for rank, env in envs.items()}
            return LogsDest(stdouts, stderrs=dict.fromkeys(envs, ""))

    elastic_launch(alone(2, logs_specs=Own()), functions.say)("out ${local_rank}", "")
    assert [(tmp_path / f"{rank}.out").read_text() for rank in range(2)] == ["out 0\n", "out 1\n"]


def test_elastic_launch_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "node_agent"):
        elastic_launch(alone(1), functions.rank)()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert any(record.getMessage().startswith("round 1: node 0 of 1") for record in caplog.records)
    assert {record.levelname for record in caplog.records if record.name == "node_agent"} == {"INFO"}


# Failures.


def test_a_crash_restarts_all_workers(method: str) -> None:
    assert elastic_launch(alone(2, start_method=method, max_restarts=2), functions.crash_in_round)(2) == {0: 2, 1: 2}


def test_restarts_come_to_an_end() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(2, max_restarts=1), functions.crash_in_round)(5)
    error = caught.value
    assert (error.name, list(error.failures)) == ("crash_in_round", [0])
    rank, failure = error.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (0, 0, 4)
    assert "crash_in_round FAILED" in str(error)
    assert "Restarts: 1 restart, 1 charged" in str(error)


def test_an_exception_arrives_with_its_traceback() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), functions.boom)("dear me")
    failure = caught.value.failures[0]
    assert failure.message["message"] == "ValueError: dear me"
    assert "in boom" in failure.message["extraInfo"]["py_callstack"]
    assert os.path.isfile(failure.error_file), "for torch's @record"
    assert "ValueError: dear me" in str(caught.value)


def test_a_launcher_within_a_worker_passes_its_workers_error_on() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), lambda: elastic_launch(alone(1), functions.boom)("dear me"))()
    assert caught.value.failures[0].message["message"] == "ValueError: dear me"


def test_a_function_needs_no_program_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert elastic_launch(alone(1, start_method="spawn"), functions.rank)() == {0: 0}


def test_a_node_that_a_check_finds_unfit_does_not_start_workers(tmp_path: Path) -> None:
    started = tmp_path / "started"
    checks = {"check": "ports,disk=0", "pre_join_check": "echo no GPU 3; exit 71", "pre_join_check_timeout": 60}
    with pytest.raises(LaunchError, match=r"is unfit: --pre-join-check .* rejected it: no GPU 3"):
        elastic_launch(alone(rdzv_configs=checks), "touch")(str(started))
    assert not started.exists()
    elastic_launch(alone(1, rdzv_configs={"check": "ports,disk=0"}), "touch")(str(started))
    assert started.exists()
    with pytest.raises(ValueError, match=pattern(check_words.not_a_check, names=CHECKS)):
        elastic_launch(alone(rdzv_configs={"check": "gpu"}), "touch")(str(started))


def test_flags_of_node_agent_protect_a_programs_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`rdzv_configs` and variables accept each of them."""
    starts, command = tmp_path / "starts", "echo >>$0; echo bad record 7 >&2; exit 3"
    config = alone(1, max_restarts=3, rdzv_configs={"fatal_rule": ["never", "bad record"]})
    with pytest.raises(ChildFailedError, match="bad record 7"):
        elastic_launch(config, ["sh", "-c", command, starts])()
    assert len(starts.read_text().splitlines()) == 1
    monkeypatch.setenv("PET_SILENCE_TIMEOUT", "1")
    with pytest.raises(ChildFailedError, match=f"hang: {pattern(hang_words.no_output, limit_s=1.0)}"):
        elastic_launch(alone(1, rdzv_configs={"on_hang": "fail", "metrics_port": 0}), ["sleep", "1000"])()


@pytest.mark.parametrize("entrypoint", [None, 7])
def test_an_entrypoint_of_a_wrong_type_is_refused_by_name(entrypoint: Any) -> None:
    with pytest.raises(TypeError, match=pattern(words.api.not_an_entrypoint, given=entrypoint)):
        elastic_launch(alone(1), entrypoint)()


def test_an_empty_list_as_entrypoint_is_refused() -> None:
    with pytest.raises(ValueError, match=words.api.NO_PROGRAM):
        elastic_launch(alone(1), [])()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing") as caught:
        elastic_launch(alone(1), str(tmp_path / "nothing"))()
    assert has_message(caught.value.__cause__, words.workers.cannot_start)
    (tmp_path / "text").touch()
    with pytest.raises(PermissionError):
        launch_agent(alone(1), [str(tmp_path / "text")], [])


def test_events_go_to_a_handler_that_the_program_has_registered_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    module = SimpleNamespace(_log_handlers={"mine": handler})
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.events.handlers", module)
    elastic_launch(alone(1, event_log_handler="mine"), "true")()
    states = [json.loads(record.getMessage())["metadata"]["state"] for record in records]
    assert states == ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED", "SUCCEEDED"]


def test_a_script_is_named_not_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(ChildFailedError, match=r"train\.py FAILED"):
        elastic_launch(alone(1), sys.executable)("-u", str(tmp_path / "train.py"))


# Several nodes.


async def test_two_nodes_are_one_run(method: str, server: Server) -> None:
    nodes = [elastic_launch(at(server, name, nproc=2, start_method=method), functions.ranks_and_sizes) for name in "ab"]
    one, other = await together(*nodes)
    assert {**one, **other} == {0: (0, 0, 4), 1: (1, 0, 4), 2: (2, 1, 4), 3: (3, 1, 4)}
    assert sorted([*one, *other]) == [0, 1, 2, 3]
    assert len(one) == len(other) == 2, "each has its own"


async def test_the_servers_name_may_be_in_any_script(server: Server) -> None:
    port = server.endpoint.rpartition(":")[2]
    config = LaunchConfig(1, 1, 1, rdzv_backend="rdzv-server", rdzv_endpoint=f"ｌocalhost:{port}", run_id="named")
    assert await elastic_launch(config, functions.rank).launch_async() == {0: 0}


async def test_name_resolution_does_not_block_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """c10d checks whether its host is this one. The resolver answers once the loop has had its turn."""
    may_answer, resolve = threading.Event(), socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert may_answer.wait(PATIENCE_S), "the loop stands still"
        return resolve(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.get_running_loop().call_later(0.01, may_answer.set)
    config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint=server.endpoint, run_id="slow")
    assert await elastic_launch(config, functions.rank).launch_async() == {0: 0}


async def test_a_crash_on_one_node_restarts_both(server: Server) -> None:
    nodes = [elastic_launch(at(server, name, max_restarts=1), functions.crash_in_round) for name in "ab"]
    assert sorted(await together(*nodes, args=(1,)), key=list) == [{0: 1}, {1: 1}]


async def test_the_failure_of_another_node_is_reported_here(server: Server) -> None:
    def fail_on_rank_1() -> None:
        if os.environ["RANK"] == "1":
            raise ValueError("dear me")
        signal.pause()

    nodes = [elastic_launch(at(server, name), fail_on_rank_1) for name in "ab"]
    for error in await together(*nodes):
        assert isinstance(error, ChildFailedError)
        assert list(error.failures) == [1]
        assert error.failures[1].message["message"] == "ValueError: dear me"


async def test_nodes_meet_where_torch_would_host_the_store(unused_tcp_port: int) -> None:
    """c10d without a server: the node that the endpoint names hosts it."""
    nodes = [
        elastic_launch(
            LaunchConfig(
                2, 2, 1, rdzv_backend="c10d", rdzv_endpoint=f"localhost:{unused_tcp_port}", run_id="hosted",
                rdzv_configs={"node_id": name}, start_method="fork",
            ),
            functions.rank,
        )
        for name in "ab"
    ]  # fmt: skip
    assert sorted(await together(*nodes), key=list) == [{0: 0}, {1: 1}]


async def test_a_run_that_has_succeeded_is_over(server: Server) -> None:
    config = LaunchConfig(1, 1, 1, rdzv_endpoint=server.endpoint, run_id="nightly", start_method="fork")
    assert await elastic_launch(config, functions.rank).launch_async() == {0: 0}
    assert await elastic_launch(config, functions.rank).launch_async() == {}, "this node had no part in it"
    config.rdzv_configs["rerun"] = True
    assert await elastic_launch(config, functions.rank).launch_async() == {0: 0}


async def test_nodes_that_never_come_end_it(server: Server) -> None:
    launch = elastic_launch(at(server, "a", rdzv_configs={"join_timeout": 0.2}), functions.rank)
    with pytest.raises(LaunchError, match=r"join timeout.*1 of 2"):
        await launch.launch_async()


def test_an_exception_in_the_agents_own_thread_is_a_launch_error(monkeypatch, caplog):
    def boom(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("node_agent.kernel.workers.spec_maker.SpecMaker.specs", boom)
    with pytest.raises(LaunchError, match=pattern(words.agent.internal_error, kind="RuntimeError", error="boom")):
        elastic_launch(alone(), functions.add)(1, 2)
    assert "in boom" in caplog.text


async def test_a_refusal_by_the_server_ends_the_handler(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "node_agent")
    waiting = asyncio.create_task(elastic_launch(at(server, "a", max_restarts=1), functions.rank).launch_async())
    await until(lambda: f"{completion.waiting_for(1)}: 1 of 2" in caplog.text)
    with pytest.raises(LaunchError, match="--max-restarts is 1 in the run, but 2 here"):
        await elastic_launch(at(server, "b", max_restarts=2), functions.rank).launch_async()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_absent_server_ends_the_command(unused_tcp_port: int) -> None:
    config = LaunchConfig(1, 1, 1, rdzv_endpoint=f"127.0.0.1:{unused_tcp_port}", rdzv_configs={"connect_timeout": 0.1})
    with pytest.raises(LaunchError, match=pattern(words.connection.server_given_up, stage="connect")):
        await elastic_launch(config, functions.rank).launch_async()


# asyncio and threads.


def launching(listener: WorkerListener, config: LaunchConfig, *args: Any) -> "asyncio.Task[dict[int, Any]]":
    return asyncio.create_task(elastic_launch(config, functions.report_and_wait).launch_async(listener.path, *args))


async def test_the_async_form_lets_the_loop_continue(listener: WorkerListener) -> None:
    launch = launching(listener, alone(2))
    await asyncio.to_thread(listener.pids, 2)
    listener.close_connections()
    assert await asyncio.wait_for(launch, PATIENCE_S) == {0: None, 1: None}


@pytest.mark.parametrize(("times", "ignored"), [(1, ()), (2, (signal.SIGTERM,))], ids=["it stops", "twice kills"])
async def test_cancelling_the_launch_ends_the_workers(
    times: int, ignored: tuple[int, ...], listener: WorkerListener
) -> None:
    launch = launching(listener, alone(2, shutdown_timeout=500), ignored)
    pids = await asyncio.to_thread(listener.pids, 2)
    for _ in range(times):
        launch.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(launch, PATIENCE_S)
    assert not any(map(is_running, pids))


async def test_the_blocking_form_works_within_a_running_loop() -> None:
    assert elastic_launch(alone(1), functions.rank)() == {0: 0}


@dataclass
class Sent:
    """Signals to this process: the pids of its workers, and the time of the first signal."""

    pids: set[int] = field(default_factory=set)
    at: float = 0.0


@contextmanager
def signalled(listener: WorkerListener, signum: signal.Signals, times: int = 1) -> Iterator[Sent]:
    """Send this process a signal when both workers have connected to the listener."""
    sent = Sent()

    def send() -> None:
        sent.pids.update(listener.pids(2))
        sent.at = time.monotonic()
        for _ in range(times):
            os.kill(os.getpid(), signum)
            time.sleep(0.2 * (times > 1))  # otherwise the main thread would see the two as one

    sender = threading.Thread(target=send)
    sender.start()
    yield sent
    sender.join()


def test_a_signal_stops_the_workers_and_is_raised(listener: WorkerListener) -> None:
    before = signal.getsignal(signal.SIGHUP)
    with signalled(listener, signal.SIGHUP) as sent, pytest.raises(SignalException) as caught:
        elastic_launch(alone(2), functions.report_and_wait)(listener.path)
    assert not any(map(is_running, sent.pids))
    assert caught.value.sigval is signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_signal_that_also_comes_from_the_programs_parent_leaves_workers_their_grace(listener: WorkerListener) -> None:
    with signalled(listener, signal.SIGHUP, times=2) as sent, pytest.raises(SignalException):
        elastic_launch(alone(2, shutdown_timeout=1), functions.report_and_wait)(listener.path, (signal.SIGHUP,))
    assert time.monotonic() - sent.at >= 1.0


def test_handlers_of_the_programs_own_stay(listener: WorkerListener) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda signum, frame: (seen.append(signum), listener.close_connections()))
    try:
        with signalled(listener, signal.SIGHUP):
            assert elastic_launch(alone(2), functions.report_and_wait)(listener.path) == {0: None, 1: None}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIGHUP]


@pytest.mark.parametrize(("times", "ignored"), [(1, ()), (2, (signal.SIGINT,))], ids=["it stops", "a second one kills"])
def test_ctrl_c_ends_the_workers_and_is_raised_again(
    times: int, ignored: tuple[int, ...], listener: WorkerListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave_signals, "ONE_REQUEST_S", 0.0)
    began = time.monotonic()
    with signalled(listener, signal.SIGINT, times) as sent, pytest.raises(KeyboardInterrupt):
        elastic_launch(alone(2, shutdown_timeout=500), functions.report_and_wait)(listener.path, ignored)
    assert not any(map(is_running, sent.pids))
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("gap_s", [0.0, 0.2])
async def test_workers_that_exit_0_by_a_signal_shortly_before_the_agents_own_have_not_succeeded(
    server: Server, listener: WorkerListener, gap_s: float, signum: signal.Signals
) -> None:
    """A scheduler signals every process of a node."""
    config = LaunchConfig(
        1, 1, 1, rdzv_backend="rdzv-server", rdzv_endpoint=server.endpoint, start_method="fork",
        signals_to_handle="SIGTERM,SIGUSR1",
    )  # fmt: skip
    launch = asyncio.ensure_future(elastic_launch(config, functions.exit_upon).launch_async(signum, listener.path))
    (pid,) = await asyncio.to_thread(listener.pids, 1)
    os.kill(pid, signum)
    await ended(pid)
    await asyncio.sleep(gap_s)
    launch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(launch, PATIENCE_S)
    assert (await server.run())["phase"] not in ("succeeded", "failed")


def test_the_child_of_a_worker_that_returns_can_save(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    assert elastic_launch(alone(1), functions.leave_a_child)(str(path)) == {0: None}
    assert path.read_text() == "saved"


def test_elastic_launch_works_in_a_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(elastic_launch(alone(1), functions.rank)).result(PATIENCE_S) == {0: 0}
