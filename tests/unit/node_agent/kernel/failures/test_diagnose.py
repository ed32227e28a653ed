"""Diagnosis of a worker's end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.messages import Failure, ReportRequest
from rdzv_protocol.node_conditions import condition

from node_agent import words
from node_agent.kernel.failures import diagnose
from node_agent.kernel.failures.diagnose import SEARCHED_LINES, examine, exit_status, look_at_disk
from node_agent.kernel.failures.error_file import ErrorFile
from node_agent.kernel.worker_spec import WorkerSpec

TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: boom")
WHOLE = ("All of it", "KeyError")
ABORT = "terminate called without an active exception"


def evidence(exit_code: int = 1, *stderr: str, recorded: ErrorFile | None = None, oom: str = "") -> Failure:
    ended = Failure(node_id="a", rank=0, local_rank=0, pid=1, exit_code=exit_code, cause="")
    return diagnose.diagnose(ended, stderr, recorded, out_of_memory=oom)


@pytest.mark.parametrize(
    ("exit_code", "status", "meaning"),
    [
        (1, "exit code 1", ""),
        (3, "exit code 3", ""),
        (120, "exit code 120", words.failures.OUTPUT_NOT_WRITTEN),
        (126, "exit code 126", words.failures.NOT_EXECUTABLE),
        (127, "exit code 127", words.failures.PROGRAM_NOT_FOUND),
        (128, "exit code 128", ""),
        (137, words.failures.exit_code_of_signal(137, 9, "SIGKILL"), words.failures.KILLED_FROM_OUTSIDE),
        (139, words.failures.exit_code_of_signal(139, 11, "SIGSEGV"), words.failures.SEGMENTATION_FAULT),
        (255, "exit code 255", ""),
        (-9, "signal 9 (SIGKILL)", words.failures.KILLED_FROM_OUTSIDE),
        (-11, "signal 11 (SIGSEGV)", words.failures.SEGMENTATION_FAULT),
        (-7, "signal 7 (SIGBUS)", words.failures.BUS_ERROR),
        (-6, "signal 6 (SIGABRT)", words.failures.ABORTED),
        (-8, "signal 8 (SIGFPE)", words.failures.ARITHMETIC_ERROR),
        (-4, "signal 4 (SIGILL)", words.failures.ILLEGAL_INSTRUCTION),
        (-13, "signal 13 (SIGPIPE)", words.failures.BROKEN_PIPE),
        (-14, "signal 14 (SIGALRM)", words.failures.ALARM),
        (-15, "signal 15 (SIGTERM)", words.failures.TERMINATED),
        (-10, "signal 10 (SIGUSR1)", words.failures.NOT_HANDLED),
        (140, words.failures.exit_code_of_signal(140, 12, "SIGUSR2"), words.failures.NOT_HANDLED),
        (-3, "signal 3 (SIGQUIT)", words.failures.QUIT),
        (-35, "signal 35 (unknown)", ""),
    ],
)
def test_an_exit_status_in_words(exit_code, status, meaning):
    found = exit_status(exit_code)
    assert (found.status, found.meaning) == (status, meaning)
    assert found.cause == (words.failures.with_meaning(status, meaning) if meaning else status)


@pytest.mark.parametrize(("exit_code", "is_crash"), [(-11, True), (139, True), (1, False)])
def test_the_signal_decides_whether_a_crash_after_other_text_ended_the_worker(exit_code: int, is_crash: bool) -> None:
    """Children of a crashed worker write tracebacks too, because they have lost their parent."""
    crash = ("50%|###  |Fatal Python error: Segmentation fault", "", "Current thread 0x7f00 (most recent call first):")
    found = evidence(exit_code, *crash, '  File "train.py", line 7 in step', "", *TRACEBACK)
    assert found.error == ("Fatal Python error: Segmentation fault" if is_crash else "ValueError: boom")


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_a_kill_for_lack_of_memory_is_named_where_it_is_known(exit_code):
    out_of_memory = words.failures.out_of_memory("2 GiB")
    found = evidence(exit_code, oom=out_of_memory)
    assert found.cause == words.failures.with_meaning(exit_status(exit_code).status, out_of_memory)
    assert found.hint == words.failures.MORE_MEMORY
    assert evidence(exit_code).hint == words.failures.ASK_WHO_KILLED


@pytest.mark.parametrize(
    ("exit_code", "stderr", "recorded", "cause", "error", "traceback"),
    [
        (1, ("step 1", *TRACEBACK), None, "exit code 1", "ValueError: boom", TRACEBACK),
        (3, ("no data", "giving up"), None, "exit code 3", "", ()),
        (1, TRACEBACK, ErrorFile("KeyError: 'x'\nand", "All of it\nKeyError"), "exit code 1", "KeyError: 'x'", WHOLE),
        (
            1,
            TRACEBACK,
            ErrorFile(problem=words.failures.NOT_JSON),
            words.failures.with_broken_error_file("exit code 1", words.failures.NOT_JSON),
            "ValueError: boom",
            TRACEBACK,
        ),
        (
            -6,
            (*TRACEBACK, ABORT),
            None,
            exit_status(-6).cause,
            "ValueError: boom",
            (*TRACEBACK, ABORT),
        ),
    ],
    ids=[
        "an-exception", "no-exception", "an-error-file-counts-more", "a-broken-error-file",
        "torchs-threads-abort-an-interpreter-that-ends",
    ],
)  # fmt: skip
def test_the_evidence_of_an_end(exit_code, stderr, recorded, cause, error, traceback):
    found = evidence(exit_code, *stderr, recorded=recorded)
    assert (found.cause, found.error, found.traceback, found.stderr_tail) == (cause, error, traceback, stderr)


@pytest.mark.parametrize("exit_code", [-9, -15, 137, 143])
def test_an_exception_that_was_logged_before_does_not_explain_a_kill(exit_code):
    assert evidence(exit_code, *TRACEBACK).error == ""
    assert evidence(exit_code, *TRACEBACK).stderr_tail == TRACEBACK


THREAD = """
import functools, json, sys, threading
sys.path.insert(0, {libraries!r})
def save(): raise {error}
thread = threading.Thread(target={target}, name="ckpt")
thread.start()
thread.join()
print("step 7", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("error", "target", "found"),
    [
        ("OSError('disk')", "save", "OSError: disk"),
        ("SystemExit(3)", "save", ""),
        ("RuntimeError('gloo: Connection closed by peer')", "save", ""),
        ("None", "functools.partial(json.loads, '{')", ""),
        ("None", "__import__('library').send", ""),
    ],
    ids=["own", "ended-on-purpose", "lost-peer", "python-s-own", "library"],
)
def test_an_exception_that_has_ended_a_thread_of_the_script_is_found(
    error: str, target: str, found: str, tmp_path: Path
) -> None:
    """Threads of libraries often fail while Python exits."""
    script, libraries = tmp_path / "train.py", tmp_path / "site-packages"
    libraries.mkdir()
    (libraries / "library.py").write_text("def send(): raise BrokenPipeError")
    script.write_text(THREAD.format(libraries=str(libraries), error=error, target=target))
    ended = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0 and ("Exception in thread" in ended.stderr) == ("SystemExit" not in error)
    expected = words.failures.error_of_thread(found, "ckpt") if found else ""
    assert diagnose.lost_thread(ended.stderr.splitlines()) == expected


def test_a_script_that_ends_with_its_process_group_open_is_told_what_to_do():
    assert evidence(-6, "done", ABORT).hint == words.failures.END_PROCESS_GROUP
    assert evidence(-6, *TRACEBACK, ABORT).hint == words.failures.SEE_STDERR, "the exception is the reason"
    assert evidence(-6, "done", "double free or corruption (out)").hint == words.failures.SEE_STDERR
    assert evidence(-9, "done", ABORT).hint == words.failures.ASK_WHO_KILLED


def test_an_error_that_follows_from_another_workers_end_is_a_consequence():
    closed = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:6058."
    found = evidence(1, *TRACEBACK[:2], closed)
    assert found.consequence
    assert found.hint == words.hints.SEE_THE_OTHERS
    assert not evidence(1, *TRACEBACK).consequence
    assert not evidence(-9, *TRACEBACK[:2], closed).consequence, "killed is killed"


def test_a_consequence_is_recognized_although_the_script_wrapped_its_error():
    stack = "RuntimeError: gloo: Connection closed by peer\n\nThe above ...\n\nRuntimeError: epoch 3 failed"
    found = evidence(1, recorded=ErrorFile("RuntimeError: epoch 3 failed", stack))
    assert found.error == "RuntimeError: epoch 3 failed"
    assert found.consequence


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:6058."


def chain(first: str, last: str) -> tuple[str, ...]:
    again = "During handling of the above exception, another exception occurred:"
    return (*TRACEBACK[:2], first, "", again, "", *TRACEBACK[:2], last)


@pytest.mark.parametrize("in_file", [False, True], ids=["on-stderr", "in-the-error-file"])
def test_the_first_exception_of_a_chain_decides_what_to_blame(in_file):
    def of(first: str, last: str) -> Failure:
        written = chain(first, last)
        return evidence(1, recorded=ErrorFile(last, "\n".join(written))) if in_file else evidence(1, *written)

    lost = of(CLOSED, "ValueError: epoch 3 failed")
    assert lost.consequence, "the script wrapped the error of a lost peer"
    assert lost.error == words.failures.error_after("ValueError: epoch 3 failed", CLOSED)

    own = of("ValueError: bad batch", CLOSED)
    assert not own.consequence, "the others had left because of the bad batch, before this one cleaned up"
    assert own.error == words.failures.error_after(CLOSED, "ValueError: bad batch")
    assert not own.hint

    full = of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", CLOSED)
    assert (full.hint, full.blame, full.consequence) == (words.hints.GPU_MEMORY_FULL, "program", False)


@pytest.mark.parametrize(
    "before", ["Exception in thread Thread-1 (watch):", "Exception ignored in: <function Group.__del__>"]
)
def test_a_peer_that_is_lost_while_python_exits_does_not_make_the_own_error_a_consequence(before):
    found = evidence(1, *TRACEBACK, before, *TRACEBACK[:2], CLOSED)
    assert (found.error, found.consequence, found.hint) == (TRACEBACK[-1], False, "")
    assert evidence(1, *TRACEBACK[:2], CLOSED, before, *TRACEBACK).consequence
    caught = evidence(3, *TRACEBACK, "Exception in thread Thread-1 (watch):", *TRACEBACK[:2], CLOSED)
    assert caught.consequence, "no uncaught exception ends a process with 3"


def test_old_output_is_not_searched_for_a_known_error():
    old = "n7:77:150 [1] NCCL WARN socketProgress: Connection closed by remote peer n8<42830>"
    assert evidence(1, old, *map(str, range(SEARCHED_LINES - 1))).consequence
    assert not evidence(1, old, *map(str, range(SEARCHED_LINES))).consequence


def test_a_crash_in_native_code_after_a_consequence_is_a_consequence_too():
    said = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(...)"
    assert evidence(-6, said, "terminate called after throwing an instance of 'c10::DistBackendError'").consequence


anything = st.text(st.characters(codec=None), max_size=40)
long_texts = st.builds(lambda text, times: text * times, anything, st.sampled_from([1, 1, 1_000, 10_000]))


@given(
    exit_code=st.integers(-255, 255),
    stderr=st.lists(long_texts, max_size=30),
    recorded=st.one_of(st.none(), st.builds(ErrorFile, long_texts, long_texts, st.none(), anything)),
    oom=long_texts,
)
def test_any_output_of_a_worker_fits_into_a_report(exit_code, stderr, recorded, oom):
    found = evidence(exit_code, *stderr, recorded=recorded, oom=oom)
    report = ReportRequest(run_id="run", agent_id="a", round=1, failure=found)
    encoded = encode(report)
    assert decode(ReportRequest, encoded) == report
    assert len(encoded) < MAX_MESSAGE_BYTES / 8
    shown = [found.cause, found.error, found.hint, *found.traceback, *found.stderr_tail]
    assert all(text.isprintable() for text in shown)


def a_spec(folder: str) -> WorkerSpec:
    return WorkerSpec(
        node_id="a",
        rank=3,
        local_rank=1,
        title="train.py",
        start=None,
        open_streams=None,
        error_file=f"{folder}/e.json",
    )


class Killed:
    """A kernel that has killed a process of the workers for lack of memory."""

    advice = words.failures.killed_beside("2 GiB")

    def killed_any(self, pid: int) -> str:
        return self.advice

    def verdict(self, pid: int) -> str:
        raise AssertionError("no worker was killed")


@pytest.mark.parametrize(
    ("stderr", "hint", "blame"),
    [
        ((), Killed.advice, "program"),
        (
            (*TRACEBACK[:2], "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."),
            Killed.advice,
            "program",
        ),
        ((*TRACEBACK[:2], CLOSED), words.hints.SEE_THE_OTHERS, "unknown"),
        ((*TRACEBACK[:2], "OSError: [Errno 28] No space left on device"), words.hints.DISK_FULL, "unknown"),
    ],
    ids=["no-exception", "a-data-loader", "a-lost-peer", "a-known-error"],
)
def test_a_child_that_was_killed_for_lack_of_memory_explains_a_worker_that_ends_without_it(
    tmp_path, stderr, hint, blame
):
    found = examine(a_spec(str(tmp_path)), 1, 1, stderr, Killed())
    assert (found.hint, found.blame) == (hint, blame)


def test_a_full_disk_of_the_node_itself_is_named_and_its_node_is_to_blame():
    ended = Failure(node_id="a", rank=0, local_rank=0, pid=1, exit_code=1, cause="")
    stderr = (*TRACEBACK[:2], "OSError: [Errno 28] No space left on device: '/tmp/ckpt'")
    found = diagnose.diagnose(ended, stderr, is_node_full=True)
    assert (found.hint, found.blame) == (words.hints.NODE_DISK_FULL, "node")
    assert condition(found.hint) == ("DiskFull", "temporary")


def test_a_full_log_disk_explains_missing_last_lines(tmp_path, monkeypatch):
    path = str(tmp_path / "e.json")
    assert examine(a_spec(tmp_path), 7, 3, (), None, look_at_disk(path)).hint == ""
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    hint = examine(a_spec(tmp_path), 7, 3, (), None, look_at_disk(path)).hint
    assert hint == words.failures.disk_full(str(tmp_path))
    assert examine(a_spec(tmp_path), 7, 1, TRACEBACK, None, look_at_disk(path)).hint == "", "it has said why"
    left = look_at_disk(path)._replace(is_node_full=True)
    found = examine(a_spec(tmp_path), 7, 3, ("cannot write: No space left on device",), None, left)
    assert (found.hint, found.blame) == (words.hints.NODE_DISK_FULL, "node")
