"""`start_processes`: functions and commands, with every start method, from their start until nothing is left."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from node_agent import (
    DefaultLogsSpecs,
    LaunchError,
    LogsDest,
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
    start_processes_async,
    words,
)
from tests.integration.api import functions
from tests.integration.api.conftest import METHODS
from tests.integration.api.worker_listener import PATIENCE_S, WorkerListener
from tests.support.message_search import pattern
from tests.support.process_info import is_running


def run(entrypoint: Any, *args: Sequence[Any], **options: Any) -> RunProcsResult:
    """Start one process for each of `args`, and return the result."""
    envs = options.pop("envs", {rank: {} for rank in range(len(args))})
    with start_processes("trainer", entrypoint, dict(enumerate(args)), envs, **options) as context:
        result = context.wait(PATIENCE_S)
    assert result is not None
    return result


def waiting(listener: WorkerListener, count: int = 1, *more: Any, **options: Any) -> PContext:
    """Start processes that connect to the listener and wait until it closes or a signal comes."""
    args, envs = dict.fromkeys(range(count), (listener.path, *more)), {rank: {} for rank in range(count)}
    return start_processes("trainer", functions.report_and_wait, args, envs, **options)


# Programs and results.


class Caller:
    """A callable without a name."""

    def __call__(self, word: str) -> str:
        return f"called with {word}"


@pytest.mark.parametrize(
    ("entrypoint", "args", "values"),
    [
        (functions.add, [(1, 2), ("a", "b"), ([3], [4])], [3, "ab", [3, 4]]),
        (functions.point, [(1, 2)], [functions.Point(1, 2)]),
        (lambda x, offset=40: x + offset, [(2,)], [42]),
        (Caller(), [("a",)], ["called with a"]),
        (functions.add, ["ab", "cd"], ["ab", "cd"]),
        (functions.leave, [(0,), (None,)], [None, None]),
        (functions.add, [], []),
    ],
    ids=["functions", "a program's own class", "a lambda", "a callable without a name",
         "texts in place of tuples are characters, as in torch", "one that exits well", "no processes"],
)  # fmt: skip
def test_return_values_by_local_rank(entrypoint: Any, args: Any, values: Any, method: str) -> None:
    result = run(entrypoint, *args, start_method=method)
    none = dict.fromkeys(range(len(args)), "")
    assert result == RunProcsResult(dict(enumerate(values)), {}, none, none)
    assert not result.is_failed()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_class_that_was_sent_returns_as_the_same_class(method: str) -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    result = run(lambda: Local(3), (), start_method=method)
    assert type(result.return_values[0]) is Local and result.return_values[0].value == 3


def test_a_class_known_only_to_the_worker_is_returned_with_the_value() -> None:
    assert run(functions.strange, ()).return_values[0].value == 7


def test_objects_that_multiprocessing_shares_can_be_arguments(method: str) -> None:
    queue = multiprocessing.get_context(method).SimpleQueue()
    result = run(functions.put, (queue, "hello"), (queue, "hello"), start_method=method)
    assert not result.is_failed()
    assert [queue.get() for _ in range(2)] == ["hello", "hello"]
    queue.close()


def test_a_large_value_arrives_whole() -> None:
    size = 100_000_000
    value = run(functions.big, (size,)).return_values[0]
    assert len(value) == size and not value.strip(b"x")


@pytest.mark.parametrize(
    ("command", "args", "lines"),
    [
        ("echo", [(1, "two", [3]), ("four",)], ["1 two [3]", "four"]),
        ([sys.executable, "-c", "import sys; print(sys.argv[1:])"], [("a b",)], ["['a b']"]),
        ("echo", ["xy"], ["x y"]),
    ],
    ids=["a program", "a list", "a text in place of a tuple"],
)
def test_commands_get_their_arguments_as_texts_and_return_nothing(
    command: Any, args: Any, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(command, *args).return_values == dict.fromkeys(range(len(args)))
    assert sorted(capfd.readouterr().out.splitlines()) == lines


# Where they run.


def test_each_has_the_environment_of_the_program_and_its_own(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_ALL", "all")
    monkeypatch.setenv("MINE", "the program's")
    names = ("OF_ALL", "MINE", "TORCHELASTIC_ERROR_FILE")
    result = run(functions.variables, names, names, envs={0: {"MINE": "zero"}, 1: {}}, start_method=method)
    zero, one = result.return_values[0], result.return_values[1]
    assert (zero["OF_ALL"], zero["MINE"], one["MINE"]) == ("all", "zero", "the program's")
    assert zero["TORCHELASTIC_ERROR_FILE"].endswith("/0/error.json")
    assert one["TORCHELASTIC_ERROR_FILE"].endswith("/1/error.json")
    assert os.environ["MINE"] == "the program's"


def test_functions_are_workers_like_commands(method: str) -> None:
    """They have a session and a group, Python's own signal handlers, and a main thread that can run asyncio."""
    assert run(functions.place, (), start_method=method).return_values[0] == {
        "leads": True, "main thread": True, "SIGTERM": True, "SIGINT": True, "loop": 42,
    }  # fmt: skip


def test_each_runs_on_the_cpus_that_it_is_given(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    sets = (frozenset(cpus[:1]), frozenset(cpus[-1:]))
    monkeypatch.setattr("node_agent.compat.api.processes.cpu_sets", lambda options, environment, workers: sets)
    result = run(os.sched_getaffinity, (0,), (0,), numa_options="node", start_method=method)
    assert result.return_values == dict(enumerate(sets))


def test_pids_match_the_processes(method: str, listener: WorkerListener) -> None:
    with waiting(listener, 2, start_method=method) as context:
        assert listener.pids(2) == set(context.pids().values())
        assert list(context.pids()) == [0, 1]
        listener.close_connections()
        assert context.wait(PATIENCE_S) == RunProcsResult({0: None, 1: None}, {}, {0: "", 1: ""}, {0: "", 1: ""})
        assert len(context.pids()) == 2, "also when they are gone"


# Output.


@pytest.mark.parametrize(
    ("streams", "files", "out", "err"),
    [
        ({}, {}, ["out 0", "out 1"], ["err 0", "err 1"]),
        ({"redirects": {0: Std.ALL, 1: Std.OUT}},
         {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n", "1/stdout.log": "out 1\n"}, [], ["err 1"]),
        ({"tee": Std.ALL},
         {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n", "1/stdout.log": "out 1\n", "1/stderr.log": "err 1\n"},
         ["<one> out 1", "[trainer0]:out 0"], ["<one> err 1", "[trainer0]:err 0"]),
        ({"local_ranks_filter": {1}}, {}, ["out 1"], ["err 1"]),
    ],
    ids=["the console by default", "redirected to files alone", "teed with prefixes", "some ranks"],
)  # fmt: skip
def test_output_goes_to_the_chosen_destinations(
    streams: Any, files: Any, out: list[str], err: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    specs = DefaultLogsSpecs(tmp_path / "logs", **streams)
    result = run(
        functions.say, ("out 0", "err 0"), ("out 1", "err 1"), logs_specs=specs, log_line_prefixes={1: "<one> "}
    )
    paths = [Path(path) for path in [*result.stdouts.values(), *result.stderrs.values()] if path]
    assert {"/".join(path.parts[-2:]): path.read_text() for path in paths} == files
    assert {path.parts[-3] for path in paths} <= {"attempt_0"}
    shown = capfd.readouterr()
    assert (sorted(shown.out.splitlines()), sorted(shown.err.splitlines())) == (out, err)


def test_output_is_never_lost_however_it_is_written(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    run(functions.say_by_every_way, ("by",), start_method=method)
    assert capfd.readouterr().out.splitlines() == ["by python", "by descriptor", "by child", "by unfinished"]


def test_filtered_lines_are_copied(tmp_path: Path) -> None:
    with start_processes(
        "trainer", functions.say, {0: ("loss 1", ""), 1: ("noise", "")}, {0: {}, 1: {}}, log_dir=tmp_path / "logs",
        tee=Std.OUT, duplicate_stdout_filters=["loss"],
    ) as context:  # fmt: skip
        file = context.filtered_stdout
        assert file and context.filtered_stderr is None
        assert context.wait(PATIENCE_S)
    assert file.closed
    assert Path(file.name) == Path(context.stdouts[0]).parents[1] / "filtered_stdout.log"
    assert Path(file.name).read_text() == "[trainer0]:loss 1\n"


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_positional", [True, False])
def test_a_log_dir_has_a_folder_for_each_process(is_positional: bool, tmp_path: Path) -> None:
    """As in torch before 2.3, whose argument it is."""
    folder = tmp_path / "logs"
    given = ([folder], {}) if is_positional else ([], {"log_dir": str(folder)})
    args = {0: ("o0", "e0"), 1: ("o1", "e1")}
    with start_processes(
        "trainer", functions.say, args, {0: {}, 1: {}}, *given[0], redirects={0: Std.ALL, 1: Std.OUT}, **given[1]
    ) as context:
        result = context.wait(PATIENCE_S)
    assert files_in(folder) == {"0/stdout.log": "o0\n", "0/stderr.log": "e0\n", "1/stdout.log": "o1\n"}
    assert result.stdouts == {rank: str(folder / str(rank) / "stdout.log") for rank in range(2)}
    with pytest.raises(RuntimeError, match=words.api.log_dir_not_empty(str(folder))):
        start_processes("trainer", functions.boom, {0: ("dear me",)}, {0: {}}, log_dir=folder)
    assert len(files_in(folder)) == 3


def test_the_error_of_a_process_is_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with start_processes("trainer", functions.boom, {0: ("dear me",)}, {0: {}}, log_dir=folder) as context:
        failure = context.wait(PATIENCE_S).failures[0]
    assert Path(failure.error_file) == folder / "0" / "error.json"
    assert "dear me" in files_in(folder)["0/error.json"]


def test_logs_specs_may_be_derived_from_ours(tmp_path: Path) -> None:
    class Own(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            destination = super().reify(envs)
            destination.stdouts = {rank: str(tmp_path / f"out{rank}") for rank in envs}
            return destination

    result = run(functions.say, ("one", ""), ("other", ""), logs_specs=Own(tmp_path / "logs"))
    assert [(tmp_path / f"out{rank}").read_text() for rank in range(2)] == ["one\n", "other\n"]
    assert list(result.stdouts.values()) == [str(tmp_path / "out0"), str(tmp_path / "out1")]


def test_without_files_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(functions.variables, ("TORCHELASTIC_ERROR_FILE",), log_dir="/dev/null", tee=Std.ALL)
    assert result.return_values == {0: {"TORCHELASTIC_ERROR_FILE": ""}}
    assert result.stdouts == {0: ""}


# How they fail.


def test_an_exception_is_a_failure_with_its_traceback(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(functions.boom, ("dear me",), start_method=method)
    failure = result.failures[0]
    assert (failure.exitcode, failure.local_rank) == (1, 0)
    assert failure.message["message"] == "ValueError: dear me"
    stack = failure.message["extraInfo"]["py_callstack"]
    assert "in boom" in stack and "child.py" not in stack
    assert json.loads(Path(failure.error_file).read_text()) == failure.error_file_data
    assert capfd.readouterr().err == stack
    assert result.return_values == {}


@pytest.mark.parametrize(
    ("function", "argument", "exit_code", "name", "err"),
    [
        (functions.leave, 3, 3, "<N/A>", ""),
        (functions.leave, "no disk", 1, "<N/A>", "no disk\n"),
        (functions.die, signal.SIGKILL, -9, "SIGKILL", ""),
        (functions.die, signal.SIGSEGV, -11, "SIGSEGV", ""),
    ],
    ids=["exit code", "exit with a text", "SIGKILL", "SIGSEGV"],
)
def test_the_exit_code_is_that_of_a_program(
    method: str, function: Any, argument: Any, exit_code: int, name: str, err: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failure = run(function, (argument,), start_method=method).failures[0]
    assert (failure.exitcode, failure.signal_name(), failure.error_file) == (exit_code, name, "<N/A>")
    assert (name in failure.message) == (exit_code < 0)
    assert capfd.readouterr().err == err


def test_a_value_that_cannot_be_pickled_is_its_workers_failure() -> None:
    failure = run(functions.unpicklable, ()).failures[0]
    assert failure.exitcode == 1
    reason = words.api.value_not_picklable("lock", "cannot pickle '_thread.lock' object")
    assert failure.message["message"] == f"TypeError: {reason}"


def test_one_failure_stops_the_others(method: str) -> None:
    def either(fails: bool) -> None:
        sys.exit(3) if fails else signal.pause()

    result = run(either, (False,), (True,), start_method=method)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 3}


ODD = "trap 'exit 5' TERM; echo '{' > $TORCHELASTIC_ERROR_FILE; (echo > ready; exec sleep 1000) & wait"
"""Command that leaves an unreadable error file, and has an exit code of its own when it is told to end.

Its child, which has no trap of its own by then, says that both are ready.
"""


def test_commands_that_were_stopped_are_failures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("ready")
    result = run("sh", ("-c", "exec sleep 1000"), ("-c", "read _ < ready; exit 3"), ("-c", ODD))
    assert next(iter(result.failures)) == 1, "first failed first"
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: -15, 1: 3, 2: 5}
    stopped = result.failures[0]
    assert stopped.message == f"Signal 15 (SIGTERM) received by PID {stopped.pid}", "torch's words"
    causes = {rank: failure.details and failure.details.cause for rank, failure in result.failures.items()}
    assert (causes[0], causes[2]) == (
        words.api.ended_by_agent("signal 15 (SIGTERM)"),
        words.api.ended_by_agent("exit code 5"),
    )


def test_a_grandchild_that_keeps_pipes_open_does_not_hide_the_workers_end(method: str, tmp_path: Path) -> None:
    """A forked child of the worker has all of its descriptors, including multiprocessing's own."""
    path = str(tmp_path / "grandchild")

    def fork_and_die() -> None:
        if (pid := os.fork()) == 0:
            os.setsid()
            time.sleep(20)
            os._exit(0)
        Path(path).write_text(str(pid))
        os._exit(5)

    began = time.monotonic()
    assert run(fork_and_die, (), start_method=method).failures[0].exitcode == 5
    assert time.monotonic() - began < 20
    os.kill(int(Path(path).read_text()), signal.SIGKILL)  # otherwise it keeps the sockets of this process open, too


def test_a_missing_program_is_an_error_before_anything_starts() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        start_processes("trainer", "/no/such/program", {0: (), 1: ()}, {0: {}, 1: {}})


@pytest.mark.parametrize(
    ("name", "entrypoint", "error", "says"),
    [
        ("trainer", [], ValueError, words.api.NO_PROGRAM),
        ("trainer", 3, TypeError, words.api.not_an_entrypoint(3)),
        (3, "true", TypeError, words.api.not_a_text("name", 3)),
    ],
)
def test_invalid_values_are_refused(name: Any, entrypoint: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{says}$"):
        start_processes(name, entrypoint, {0: ()}, {0: {}})


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_argument_that_cannot_be_sent_is_an_error_and_nothing_runs(method: str) -> None:
    with pytest.raises(TypeError, match=pattern(words.api.call_not_picklable, function="add")):
        start_processes("trainer", functions.add, {0: (threading.Lock(), 1)}, {0: {}}, start_method=method)


def test_a_value_that_cannot_be_unpickled_here_is_an_error() -> None:
    def in_a_module_of_the_workers_own() -> Any:
        import types

        module = sys.modules["only_there"] = types.ModuleType("only_there")
        exec("class Thing: pass", vars(module))
        return module.Thing()

    line = words.api.value_unreadable(0, "ModuleNotFoundError: No module named 'only_there'")
    with (
        start_processes("trainer", in_a_module_of_the_workers_own, {0: ()}, {0: {}}) as context,
        pytest.raises(LaunchError, match=f"^{line}$"),
    ):
        context.wait(PATIENCE_S)


# Waiting and closing.


def test_waiting_has_a_limit(listener: WorkerListener) -> None:
    with waiting(listener) as context:
        listener.pids(1)
        assert context.wait(0) is None
        assert context.wait(0.01) is None
        listener.close_connections()
        assert context.wait() is not None
        assert context.wait(0) is not None, "and again"


def test_a_signal_that_comes_twice_at_once_is_raised_once(method: str, listener: WorkerListener) -> None:
    """It comes to the program's process group, and from a job script in that group."""
    with waiting(listener, 1, start_method=method) as context:
        (pid,) = listener.pids(1)
        with pytest.raises(SignalException):
            os.kill(os.getpid(), signal.SIGHUP)
            context.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        assert is_running(pid)


def test_close_stops_processes_with_a_chosen_signal(method: str, listener: WorkerListener) -> None:
    context = waiting(listener, 2, start_method=method)
    pids = listener.pids(2)
    context.close(signal.SIGHUP)
    assert not any(map(is_running, pids))
    result = context.wait(0)
    assert result is not None and result.is_failed()
    assert {failure.exitcode for failure in result.failures.values()} == {-signal.SIGHUP}
    context.close()


def test_close_kills_the_remaining_workers(
    method: str, listener: WorkerListener, caplog: pytest.LogCaptureFixture
) -> None:
    context = waiting(listener, 1, (signal.SIGTERM,), start_method=method)
    (pid,) = listener.pids(1)
    began = time.monotonic()
    context.close(timeout=0.2)
    assert time.monotonic() - began < 10
    assert not is_running(pid)
    assert context.wait(0).failures[0].exitcode == -signal.SIGKILL
    assert caplog.messages == [words.workers.killed_late([0], "SIGTERM", 0.2, limit="")]


def test_children_of_a_process_end_with_it(method: str, listener: WorkerListener) -> None:
    def with_a_child(path: str) -> None:
        if os.fork() == 0:
            functions.report_and_wait(path)
            os._exit(0)
        functions.report_and_wait(path)

    with start_processes("trainer", with_a_child, {0: (listener.path,)}, {0: {}}, start_method=method):
        pids = listener.pids(2)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, pids))


def test_the_child_of_a_process_that_returns_can_save(method: str, tmp_path: Path) -> None:
    """Under torch the child is not told to end."""
    path = str(tmp_path / "saved")
    assert not run(functions.leave_a_child, (path,), start_method=method).is_failed()
    assert Path(path).read_text() == "saved"


def test_a_process_context_can_be_closed_from_any_thread(listener: WorkerListener) -> None:
    context = waiting(listener, start_method="fork")
    listener.pids(1)
    closer = threading.Thread(target=context.close)
    closer.start()
    assert context.wait(PATIENCE_S) is not None
    closer.join()


# Under asyncio.


async def test_the_async_form_lets_the_loop_continue(listener: WorkerListener) -> None:
    async with await start_processes_async(
        "trainer", functions.report_and_wait, {0: (listener.path,)}, {0: {}}
    ) as context:
        ending = asyncio.create_task(context.wait_async())
        await asyncio.to_thread(listener.pids, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await context.wait_async()
        assert not ending.done()
        listener.close_connections()
        result = await asyncio.wait_for(ending, PATIENCE_S)
    assert result.return_values == {0: None}


async def test_an_async_context_that_is_left_early_leaves_nothing(listener: WorkerListener) -> None:
    async with await start_processes_async(
        "trainer", functions.report_and_wait, {0: (listener.path,)}, {0: {}}
    ) as context:
        (pid,) = await asyncio.to_thread(listener.pids, 1)
    assert not is_running(pid)
    assert (await context.wait_async()).failures[0].exitcode == -signal.SIGTERM


async def test_a_bad_start_is_an_error_there_too() -> None:
    with pytest.raises(FileNotFoundError):
        await start_processes_async("trainer", "/no/such/program", {0: ()}, {0: {}})


async def test_the_blocking_form_works_within_a_running_loop() -> None:
    """It does not need the loop of the calling thread, such as a notebook's, which is blocked meanwhile."""
    assert run(functions.add, (1, 2)).return_values == {0: 3}


def test_contexts_do_not_disturb_each_other(listener: WorkerListener) -> None:
    contexts = [waiting(listener, start_method=method) for method in METHODS]
    assert listener.pids(3) == {context.pids()[0] for context in contexts}
    contexts[1].close()
    assert contexts[0].wait(0) is None and contexts[2].wait(0) is None
    listener.close_connections()
    for context in (contexts[0], contexts[2]):
        assert context.wait(PATIENCE_S) == RunProcsResult({0: None}, {}, {0: ""}, {0: ""})


@pytest.mark.parametrize(("entrypoint", "kind"), [("true", SubprocessContext), (functions.place, MultiprocessContext)])
def test_a_context_has_torchs_class_and_its_own_arguments(entrypoint: Any, kind: type[PContext]) -> None:
    args, envs = {0: ()}, {0: {"A": "1"}}
    with start_processes("name", entrypoint, args, envs, start_method="fork") as context:
        assert type(context) is kind
        assert (context.name, context.entrypoint, context.args, context.envs) == ("name", entrypoint, args, envs)
