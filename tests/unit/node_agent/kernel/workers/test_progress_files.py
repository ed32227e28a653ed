"""Progress files: what workers report with `node_agent.progress`, and what the agent reads."""

import errno
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.messages import PollRequest

from node_agent import in_worker, words
from node_agent.in_worker import (
    FILE_BYTES,
    HEADER,
    KINDS,
    MAGIC,
    NOTICE_ACK,
    NOTICE_FILE,
    PROGRESS_FILE,
    RECORD,
    RESUMED,
    RESUMED_AT,
)
from node_agent.kernel.workers import progress_files
from node_agent.kernel.workers.progress_files import ProgressFiles

PATIENCE_S = 30.0
NOW = 1e6
"""Time of a read, later than all reports."""
TELL = "from node_agent import progress\nimport time\n"
STEP_S, CHECKPOINT_S = 0.02, 0.05
STEPS = f"""
from types import SimpleNamespace
from node_agent import in_worker
now = time.monotonic() - 1.0
in_worker.time = SimpleNamespace(monotonic=lambda: now)
progress(step=4)
now += {STEP_S}
progress(step=5)
now += {CHECKPOINT_S}
progress(step=5, kind="checkpoint")
"""
ALONE = "import sys; from node_agent import progress; progress(step=1); print(*sorted({'torch', 'msgspec', 'asyncio'} "
ALONE += "& set(sys.modules)))"


@pytest.fixture
def files() -> Iterator[ProgressFiles]:
    files = ProgressFiles(7, 2)
    yield files
    files.close()


@pytest.fixture
def tell(files: ProgressFiles, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function with which this process reports progress as a worker, at a given time."""
    monkeypatch.setattr(in_worker, "_memory", in_worker._open(files.environment(0)[PROGRESS_FILE], warns=True))
    monkeypatch.setattr(in_worker, "_is_looked_for", True)

    def tell(now: float, *told: Any, **named: Any) -> None:
        monkeypatch.setattr(in_worker, "time", SimpleNamespace(monotonic=lambda: now))
        in_worker.progress(*told, **named)

    return tell


def run(script: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        (sys.executable, "-c", script), env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_agent_reads_each_workers_progress(files: ProgressFiles) -> None:
    assert files.summary(time.monotonic()) is None, "nothing has been told"
    run(TELL + STEPS, **files.environment(0))
    run(TELL + "progress(step=3)", **files.environment(1))
    found = files.summary(time.monotonic())
    assert found and (found.round, found.lowest_step, found.highest_step) == (7, 3, 5)
    assert (found.checkpoint_step, found.checkpoint_s) == (5, pytest.approx(CHECKPOINT_S))
    assert found.step_s == pytest.approx(STEP_S), "the checkpoint is no step"
    assert found.age_s > 0


def test_the_agent_knows_when_the_first_progress_was_reported(files: ProgressFiles, tell: Callable[..., None]) -> None:
    tell(100.0, step=1)
    for at, kind in ((103.0, "work"), (104.0, "step"), (109.0, "checkpoint")):
        tell(at, kind=kind)
    found = files.summary(110.0)
    assert found and (found.telling_s, found.age_s) == (10.0, 1.0)


@pytest.mark.parametrize("shift", [-99.0, 0.0, 1e6], ids=["behind", "same", "ahead"])
def test_a_worker_whose_clock_differs_from_the_agents_reports_progress_at_the_time_of_the_report(
    tell: Callable[..., None], files: ProgressFiles, shift: float
) -> None:
    """As in a time namespace. A record that was not there at the last look is not older than that look."""
    files.read(100.0)
    tell(101.0 + shift, kind="imported")
    tell(102.0 + shift, 1)
    (first,) = files.read(104.0).values()
    tell(107.0 + shift, 2)
    (second,) = files.read(109.0).values()
    (third,) = files.read(120.0).values()
    assert 100.0 <= first.at <= 104.0 <= second.at <= 109.0
    assert first.starts["imported"] == pytest.approx(first.at - 1.0)
    assert third == second, "no record is new"
    assert shift or (first.at, second.at) == (102.0, 107.0)


def test_a_checkpoint_saved_beside_the_steps_does_not_show_how_long_a_save_takes(
    files: ProgressFiles, tell: Callable[..., None]
) -> None:
    for at, kind in ((100.0, "step"), (101.0, "step"), (101.1, "saving"), (102.0, "step"), (102.3, "checkpoint")):
        tell(at, 7, kind)
    reading = files.read(NOW)[0]
    assert (reading.checkpoint_step, reading.first_at) == (7, pytest.approx(100.0))
    assert (reading.spent["checkpoint"].times, reading.spent["step"].total_s) == (0, pytest.approx(2.2))
    for at, kind in ((103.0, "step"), (103.0, "saving"), (133.0, "checkpoint")):
        tell(at, 8, kind)
    assert files.read(NOW)[0].spent["checkpoint"].longest_s == pytest.approx(30.0)


def test_a_worker_whose_loop_is_over_need_not_report_steps(files: ProgressFiles, tell: Callable[..., None]) -> None:
    tell(0.1, step=1)
    tell(0.2, kind="end")
    assert (found := files.summary(1.0)) and found.is_over
    run(TELL + "progress(step=2)", **files.environment(1))
    now, of_other = time.monotonic(), files.read(time.monotonic())[1].at
    assert (found := files.summary(now)) and (found.is_over, found.age_s) == (False, pytest.approx(now - of_other))
    run(TELL + "progress(kind='end')", **files.environment(1))
    assert (found := files.summary(time.monotonic())) and found.is_over


def test_the_agent_knows_after_which_step_a_worker_continues(files: ProgressFiles, tell: Callable[..., None]) -> None:
    tell(100.0, 500, "loaded")
    assert files.summary(101.0) is None, "no step has been taken yet"
    for step in (501, 502):
        tell(102.0, step)
        found = files.summary(103.0)
        assert found and (found.resumed_step, found.highest_step) == (500, step)


@pytest.mark.parametrize("number", [0, 2**53 + 2, 2**64 - 1])
def test_an_impossible_step_after_which_a_worker_continues_is_ignored(
    number: int, files: ProgressFiles, tell: Callable[..., None]
) -> None:
    tell(100.0, 1)
    with open(files.environment(0)[PROGRESS_FILE], "r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), RESUMED.pack(number), RESUMED_AT)
    found = files.summary(101.0)
    assert found and found.resumed_step is None


def test_workers_start_without_a_progress_file_if_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    create = progress_files.memfd_create

    def only_one(*args: Any) -> int:
        monkeypatch.setattr(progress_files, "memfd_create", none_left)
        return create(*args)

    def none_left(*args: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(progress_files, "memfd_create", only_one)
    files = ProgressFiles(7, 2)
    assert [list(files.environment(rank)) for rank in range(2)] == [[PROGRESS_FILE], []]
    assert files.read(NOW) == {}
    files.close()


def test_the_longest_of_each_kind_is_remembered(files: ProgressFiles, tell: Callable[..., None]) -> None:
    for now, kind in ((10.0, "step"), (11.0, "step"), (14.0, "step"), (15.0, "step"), (25.0, "lunch")):
        tell(now, step=int(now), kind=kind)
    reading = files.read(NOW)[0]
    assert (reading.spent["step"].times, reading.spent["step"].total_s, reading.spent["step"].longest_s) == (3, 5, 3)
    assert reading.spent["other"].longest_s == 10 and reading.at == 25.0 and reading.step == 25
    tell(26.0)
    assert files.read(NOW)[0].step == 25, "no other step was named"


def test_own_work_is_a_part_of_each_step(files: ProgressFiles, tell: Callable[..., None]) -> None:
    tell(10.0, 0, "step")
    for step in range(1, 9):  # 2 s of work in two parts, and 1 s of waiting
        tell(7.0 + 3.0 * step + 1.0, None, "work")
        tell(7.0 + 3.0 * step + 2.0, None, "work")
        if step == 5:  # the work of a step has been reported, but not the step
            files.summary(30.0)
        tell(7.0 + 3.0 * step + 3.0, step, "step")
    found = files.summary(40.0)
    assert found and found.work_s is not None and found.step_s is not None
    assert found.work_s == pytest.approx(2.0, rel=0.2) and found.step_s == pytest.approx(3.0, rel=0.2)
    assert found.lowest_step == 8


@pytest.mark.parametrize("path", ["", __file__], ids=["none", "other"])
def test_without_an_agent_nothing_happens(path: str) -> None:
    before = Path(__file__).read_bytes()
    assert run(TELL + "progress(step=1); print('goes on')", **{PROGRESS_FILE: path}) == "goes on"
    assert Path(__file__).read_bytes() == before


def test_a_report_while_the_first_one_looks_for_the_memory_is_not_lost(
    files: ProgressFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler or another thread makes that report."""
    open_ = in_worker._open

    def open_and_report(path: str, *, warns: bool) -> mmap.mmap | None:
        monkeypatch.setattr(in_worker, "_open", open_)
        in_worker.progress(step=3)
        return open_(path, warns=warns)

    monkeypatch.setenv(PROGRESS_FILE, files.environment(0)[PROGRESS_FILE])
    monkeypatch.setattr(in_worker, "_memory", None)
    monkeypatch.setattr(in_worker, "_is_looked_for", False)
    monkeypatch.setattr(in_worker, "_open", open_and_report)
    in_worker.continues_after(2)
    assert {rank: reading.step for rank, reading in files.read(NOW).items()} == {0: 3}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_worker_may_become_another_user_before_it_reports(files: ProgressFiles) -> None:
    run("import os; from node_agent import progress; os.setresuid(1, 1, 1); progress(step=3)", **files.environment(1))
    assert {rank: reading.step for rank, reading in files.read(NOW).items()} == {1: 3}


@pytest.mark.parametrize(("local_rank", "is_told"), [("0", True), ("1", False)])
def test_one_worker_of_a_node_warns_that_it_cannot_reach_its_agent(
    tmp_path: Path, local_rank: str, is_told: bool
) -> None:
    script = TELL + "progress(step=1); progress(step=2); import node_agent; node_agent.notice(); node_agent.notice()"
    hidden, gone = "/proc/0/fd/9", str(tmp_path / "gone" / "ack")
    place = {PROGRESS_FILE: hidden, NOTICE_FILE: gone, NOTICE_ACK: gone, "LOCAL_RANK": local_rank}
    done = subprocess.run((sys.executable, "-c", script), env={**os.environ, **place}, capture_output=True, text=True)
    why = os.strerror(errno.ENOENT)
    told = words.workers.progress_is_hidden(hidden, why), words.workers.notices_are_hidden(gone, why)
    assert (done.returncode, done.stderr.splitlines()) == (0, list(told) * is_told)


@pytest.mark.parametrize("size", [len(MAGIC), FILE_BYTES, 2 * FILE_BYTES])
def test_a_script_with_another_library_version_gets_one_warning(tmp_path: Path, size: int) -> None:
    file = tmp_path / "memory"
    file.write_bytes(MAGIC.replace(b"2", b"3").ljust(size, b"\0"))
    script = TELL + "progress(step=1); progress(step=2); print('goes on')"
    done = subprocess.run(
        (sys.executable, "-c", script), env={**os.environ, PROGRESS_FILE: str(file)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    told = words.workers.progress_of_another_version(in_worker.__file__)
    assert (done.stdout, done.stderr) == ("goes on\n", f"{told}\n")
    assert file.read_bytes() == MAGIC.replace(b"2", b"3").ljust(size, b"\0")


@pytest.mark.parametrize(("local_rank", "is_told"), [("", True), ("0", True), ("1", False)])
def test_one_worker_of_a_node_warns_once_that_its_steps_fall(
    files: ProgressFiles, local_rank: str, is_told: bool
) -> None:
    script = TELL + "[progress(step=step) for epoch in range(3) for step in range(1, 5)]; progress(3, 'checkpoint')"
    place = {**files.environment(0), **({"LOCAL_RANK": local_rank} if local_rank else {})}
    done = subprocess.run((sys.executable, "-c", script), env={**os.environ, **place}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, f"{words.workers.steps_fall(4, 1)}\n" * is_told)
    assert files.read(NOW)[0].number == 13


@pytest.mark.parametrize("closes", ["sys.stderr = None", "sys.stderr.close()", "import os; os.close(2)"])
def test_a_script_without_stderr_continues_without_that_line(tmp_path: Path, closes: str) -> None:
    file = tmp_path / "memory"
    file.write_bytes(MAGIC.replace(b"2", b"3"))
    script = f"import sys; {closes}\n{TELL}progress(step=1); print('goes on')"
    assert run(script, **{PROGRESS_FILE: str(file)}) == "goes on"


def test_a_pipe_in_place_of_the_memory_does_not_block_the_worker(tmp_path: Path) -> None:
    """/proc/PID/fd/N is a pipe if PID is another process than the agent, as in a script's own container."""
    os.mkfifo(tmp_path / "pipe")
    assert run(TELL + "progress(step=1); print('goes on')", **{PROGRESS_FILE: str(tmp_path / "pipe")}) == "goes on"


def test_a_worker_that_was_stopped_while_it_wrote_leaves_the_record_before(files: ProgressFiles) -> None:
    run(TELL + "progress(step=1); progress(step=2)", **files.environment(0))
    descriptor = os.open(files.environment(0)[PROGRESS_FILE], os.O_RDWR)
    os.pwrite(descriptor, b"\xff" * 20, in_worker.offset(3))  # the next slot, half written
    assert files.read(NOW)[0].step == 2
    os.pwrite(descriptor, HEADER.pack(MAGIC, 3), 0)
    assert files.read(NOW) == {}, "a record that does not bear its number is none"
    os.ftruncate(descriptor, FILE_BYTES // 2)
    assert files.read(NOW) == {}, "nor is one that is cut off"
    os.close(descriptor)


whole = st.integers(0, 2**64 - 1)
steps = st.integers(-(2**63), 2**63 - 1)
records = st.tuples(steps, steps, whole, st.floats(), *[whole, st.floats(), st.floats()] * len(KINDS))
"""All possible contents of a record, after its number."""
STEPPED = (5, -1, 0, 50.0, *[5, 5.0, 1.0] * len(KINDS))
WENT_BACK = (5, -1, 0, 60.0, *[0, 0.0, 0.0] * len(KINDS))
SILENT_FOR_MONTHS = (5, -1, 0, 0.0, *[0, 0.0, 0.0] * len(KINDS))


@given(st.lists(records, min_size=1, max_size=3))
@example([STEPPED, WENT_BACK])
@example([SILENT_FOR_MONTHS])
@example([(2**53 + 1, *STEPPED[1:])])
def test_the_server_accepts_progress_even_if_a_worker_overwrites_its_record(told: list[Any]) -> None:
    files = ProgressFiles(7, 1)
    descriptor = os.open(files.environment(0)[PROGRESS_FILE], os.O_RDWR)
    for number, record in enumerate(told, 1):
        os.pwrite(descriptor, RECORD.pack(number, *record), in_worker.offset(number))
        os.pwrite(descriptor, HEADER.pack(MAGIC, number), 0)
        poll = PollRequest(run_id="r", agent_id="a", revision=0, progress=files.summary(2e7))
        assert decode(PollRequest, encode(poll)) == poll
    os.close(descriptor)
    files.close()


def test_progress_reports_need_no_expensive_import() -> None:
    assert run(ALONE) == ""


def test_phases_of_the_start_are_not_progress_and_are_sent_with_the_first_progress(
    files: ProgressFiles, tell: Callable[..., None]
) -> None:
    files.spawned_at = 8.0
    for at, phase in ((10.0, "imported"), (12.0, "initialized"), (13.0, "loaded"), (15.0, "loaded")):
        tell(at, kind=phase)
    assert files.summary(15.0) is None and files.read(15.0) == {}, "the hang detector's limits are those of a start"
    tell(18.0, step=1)
    tell(19.0, kind="loaded")
    found = files.summary(20.0)
    assert found is not None and found.telling_s == 2.0
    assert (found.spawned_ago_s, found.imported_ago_s, found.initialized_ago_s, found.loaded_ago_s) == (12, 10, 8, 5)


def test_the_last_worker_ends_a_phase_and_an_unreported_phase_is_unknown(
    files: ProgressFiles, tell: Callable[..., None]
) -> None:
    run(TELL + "progress(kind='imported'); progress(step=1)", **files.environment(1))
    tell(1.0, kind="imported")
    tell(2.0, step=1)
    found = files.summary(time.monotonic())
    assert found is not None and found.imported_ago_s is not None and found.imported_ago_s < PATIENCE_S
    assert found.initialized_ago_s is found.loaded_ago_s is found.spawned_ago_s is None


def test_the_last_times_are_those_of_progress_and_of_the_phases_of_a_start(files, tell):
    assert files.last_times(NOW) == {}
    tell(10.0, kind="imported")
    assert files.last_times(NOW) == {0: 10.0}
    tell(12.0, kind="initialized")
    assert files.last_times(NOW) == {0: 12.0}
    tell(15.0, step=1)
    assert files.last_times(NOW)[0] >= 15.0
