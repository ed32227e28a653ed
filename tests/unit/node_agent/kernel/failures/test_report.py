"""The final report of a failed run, as people read it."""

import os
import pty
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.messages import Failure, Finish, RestartEntry

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.failures.report import WIDEST, Mark, local_time, name_of, paint, report, show, wants_colour
from rdzv_server.words.failures import no_restarts_left
from tests.support.console import FakeConsole
from tests.unit.node_agent.story import a_failure, finish, join
from tests.unit.protocol.test_codec import values

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    main()",
    "ValueError: boom",
)

OUT_OF_MEMORY = words.failures.with_meaning("signal 9 (SIGKILL)", words.failures.out_of_memory(""))


def boom(**changes) -> Failure:
    return a_failure(
        **({"error": "ValueError: boom", "traceback": TRACEBACK, "failed_at": 12.0, "exit_code": 1} | changes)
    )


def text(end: Finish, *advice: str) -> list[str]:
    return [line for _, line in report(end, "train.py", advice)]


def test_the_report_shows_every_part_of_a_run():
    end = Finish(
        succeeded=False,
        reason=f"worker rank 3 on node a failed: exit code 1: ValueError: boom; {no_restarts_left(1, None)}",
        first_failure=a_failure(
            node_id="b",
            rank=5,
            exit_code=-9,
            cause=OUT_OF_MEMORY,
            hint="give the job more memory",
            failed_at=11.0,
        ),
        first_round=1,
        failure=boom(cause="exit code 1", error_file="/logs/run_1/attempt_2/1/error.json"),
        round=3,
        others=(a_failure(node_id="c", rank=9, failed_at=13.0, error="RuntimeError: gone", consequence=True),),
        more_failures=2,
        restarts=(
            RestartEntry(round=2, cause="worker_failure", charged=True, reason="worker rank 5 failed", at=11.5),
            RestartEntry(round=3, cause="node_lost", charged=False, reason="node d lost", at=None),
            RestartEntry(round=4, cause="node_lost", charged=False, reason="node d lost", at=None),
            RestartEntry(round=5, cause="worker_failure", charged=True, reason="worker rank 5 failed", at=None),
        ),
        restart_total=4,
        charged_restarts=3,
    )
    assert text(end, words.failures.logs_of("a", "/logs/run_1")) == [
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "[1]:",
        f"  time      : {local_time(12)}",
        "  host      : a",
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : 1 (pid: 77)",
        f"  round     : {words.failures.round_that_ended_the_run(3)}",
        "  error_file: /logs/run_1/attempt_2/1/error.json",
        "  traceback : Traceback (most recent call last):",
        '    File "train.py", line 7, in <module>',
        "      main()",
        "  ValueError: boom",
        "[2]:",
        f"  time      : {local_time(13)}",
        "  host      : c",
        "  rank      : 9 (local_rank: 1)",
        "  exitcode  : 5 (pid: 77)",
        f"  cause     : RuntimeError: gone ({words.failures.FOLLOWS})",
        "  and 2 more",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {local_time(11)}",
        "  host      : b",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : -9 (pid: 77)  (SIGKILL)",
        "  round     : 1",
        f"  cause     : {OUT_OF_MEMORY}",
        "  what to do: give the job more memory",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 77",
        "  stderr    : Traceback",
        "  Boom",
        "-" * 60,
        "Restarts: 4 restarts, 3 charged",
        f"  {local_time(11.5)}  round 2, charged: [0]",
        "  round 3, free: node d lost",
        "  round 4, free: as before round 3",
        "  round 5, charged: the same as [0]",
        "-" * 60,
        f"Ended: {no_restarts_left(1, None)}",
        words.failures.logs_of("a", "/logs/run_1"),
        "=" * 60,
    ]


@pytest.mark.parametrize(("both_streams", "label"), [(False, "stderr"), (True, "output")])
def test_the_last_lines_of_both_streams_are_not_called_stderr(both_streams, label):
    end = finish(succeeded=False, failure=a_failure(stderr_tail=("Boom",), both_streams=both_streams))
    assert f"  {label}    : Boom" in text(end)


@pytest.mark.parametrize("cause", ["worker_failure", "retried", "hang"])
def test_the_report_links_a_restart_to_its_root_cause(cause):
    restart = RestartEntry(round=2, cause=cause, charged=True, reason=boom().sentence, at=None)
    end = finish(succeeded=False, first_failure=boom(), first_round=1, restarts=(restart,), restart_total=1)
    assert "  round 2, charged: [0]" in text(end)


def test_the_report_counts_a_restart_that_did_not_complete():
    restarts = tuple(RestartEntry(round=n, cause="node_left", charged=False, reason="b left", at=None) for n in (2, 3))
    box = text(finish(succeeded=False, restarts=restarts, restart_total=1))
    assert f"Restarts: {words.progress.restarts_charged(2, 0)}" in box


def test_a_run_without_a_failure_shows_its_reason():
    assert text(finish(succeeded=False)) == ["=" * 15, "train.py FAILED", "-" * 15, "spent", "=" * 15]


ROOT = "Root Cause (first observed failure):"
PLAIN = boom(cause="exit code 1")
ENTRIES = tuple(RestartEntry(round=n, cause="worker_failure", charged=True, reason="boom") for n in range(13, 21))


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ({"failure": boom(), "round": 1}, ["Failures:", "  <NO_OTHER_FAILURES>", ROOT]),
        (
            {"failure": a_failure(singled_out=False)},
            ["[0]:", "  time      : <N/A>", f"  rank      : <N/A> ({words.failures.NO_SINGLE_RANK})"],
        ),
        ({"first_failure": boom(), "first_round": 1}, [ROOT, "Ended: spent"]),
        ({"first_failure": boom(), "failure": boom(rank=4)}, ["  traceback : the same as [0]", "  ValueError: boom"]),
        (
            {"failure": a_failure(stderr_tail=())},
            [
                "  time      : <N/A>",
                f"  cause     : {words.failures.no_exception('exit code 5')}",
                "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
            ],
        ),
        ({"failure": boom(traceback=())}, ["  traceback : ValueError: boom"]),
        (
            {"failure": PLAIN, "reason": f"{PLAIN.sentence}; {no_restarts_left(0, None)}", "round": 1},
            ["  ValueError: boom", f"Ended: {no_restarts_left(0, None)}"],
        ),
        (
            {"failure": boom(), "restarts": ENTRIES, "restart_total": 20, "charged_restarts": 20},
            ["Restarts: 20 restarts, 20 charged", "  the last 8:"],
        ),
    ],
    ids=[
        "one-failure", "a-hang-that-singles-out-no-rank",
        "starved-after-a-failure", "the-same-traceback-twice", "no-word-in-torchs-words",
        "an-error-without-a-traceback", "one-failure-is-told-once", "earlier-restarts-are-counted",
    ],
)  # fmt: skip
def test_the_box_shows_each_fact_once(end, lines):
    box = text(Finish(**({"succeeded": False, "reason": "spent"} | end)))
    assert [line for line in box if line in lines] == lines
    assert sum("ValueError: boom" in line for line in box) <= 1


def test_the_most_important_lines_are_marked():
    lines = report(finish(succeeded=False, failure=boom(hint="mind the gap")), "train.py")
    marks = {line.strip(): mark for mark, line in lines}
    assert marks["train.py FAILED"] is Mark.TITLE
    assert marks["ValueError: boom"] is Mark.ERROR
    assert marks["what to do: mind the gap"] is Mark.HINT


@given(st.builds(Finish, succeeded=st.just(False), reason=st.text(), failure=values(Failure | None)))
def test_no_line_of_the_box_moves_a_cursor(end):
    """Texts come from the server and through it from other nodes' scripts."""
    lines = text(end)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, (line for line in lines if set(line) <= {"=", "-"}))) <= WIDEST


@pytest.mark.torch
def test_the_box_has_torchs_headings_and_fields():
    """Compared in order, with values, because scripts that read logs rely on them."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {rank: ProcessFailure(local_rank=rank, pid=70 + rank, exitcode=1, error_file="-") for rank in (0, 1)}
    failures[1].timestamp += 5
    torchs = ChildFailedError("train.py", failures).format_msg().splitlines()
    ours = [
        boom(rank=rank, local_rank=rank, pid=70 + rank, failed_at=float(failure.timestamp))
        for rank, failure in failures.items()
    ]
    lines = [line for _, line in report(finish(succeeded=False, failure=ours[0], others=(ours[1],)), "train.py")]

    def heads(box: list[str]) -> set[str]:
        return {line for line in box if line.endswith((":", "FAILED")) and not line.startswith((" ", "["))}

    def fields(box: list[str]) -> list[str]:
        """Return label and value of the root cause. Values that differ between machines are omitted."""
        block = box[box.index("Root Cause (first observed failure):") + 1 :]
        shown = [line.rstrip() for line in block if line.startswith("  ") and ": " in line[:13]]
        return [line if line.split()[0] in ("time", "rank", "exitcode") else line.split()[0] for line in shown]

    assert heads(torchs) <= heads(lines)
    expected = fields(torchs)
    assert [field for field in fields(lines)[:20] if field in expected][: len(expected)] == expected


# The console.

LINES = [(Mark.TITLE, "train.py FAILED"), (Mark.TEXT, "[0]:")]


def config(**environment: str) -> AgentConfig:
    return AgentConfig(command=Command(("python", "-u", "train.py")), join=join(), environment=environment)


async def test_the_box_is_written_in_one_piece():
    console = FakeConsole()
    show(finish(succeeded=False, failure=a_failure()), config(), "/logs", console)
    ((fd, box),) = console.chunks
    assert fd == 2
    assert box.startswith(b"=====") and b"\ntrain.py FAILED\n" in box and box.endswith(b"=====\n")
    assert f"\n{words.failures.logs_of('a', '/logs')}\n".encode() in box
    assert b"\x1b" not in box


def test_a_terminal_gets_colours_and_a_pipe_does_not():
    assert paint(LINES, is_coloured=True) == b"\x1b[1;31mtrain.py FAILED\x1b[0m\n[0]:\n"
    assert paint(LINES, is_coloured=False) == b"train.py FAILED\n[0]:\n"


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_whether_colours_are_wanted(environment, coloured):
    ours, terminal = pty.openpty()
    reader, pipe = os.pipe()
    try:
        assert wants_colour(environment, terminal) is coloured
        assert not wants_colour(environment, pipe)
    finally:
        for descriptor in (ours, terminal, reader, pipe):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (("/usr/bin/python3", "-u", "train.py"), "train.py"),
        (("/usr/bin/python3", "-u", "-m", "train.main"), "train.main"),
        (("/usr/bin/train",), "/usr/bin/train"),
        ((), ""),
    ],
)
def test_the_box_is_named_after_the_script(program, name):
    assert name_of(Command(program)) == name


def test_event_times_equal_torchruns():
    assert local_time(1_750_000_000.9) == time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(1_750_000_000))
