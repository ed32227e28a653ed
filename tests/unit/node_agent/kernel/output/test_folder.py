"""Places of log files and error files: never overwritten, never outside, and removed only if no user asked for them."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node_agent import words
from node_agent.kernel.core.log_options import LogOptions, Std
from node_agent.kernel.output.folder import LONGEST_NAME, RunFolder, folder_name, wants_files, why_unusable
from node_agent.kernel.processes.temp_dir import TempDir


@pytest.fixture(autouse=True)
def tmpdir_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def folder(log_dir: Path | None = None, run_id: str = "nightly", **flags: object) -> RunFolder:
    options = LogOptions(log_dir=log_dir and str(log_dir), **flags)
    return RunFolder(options, run_id, TempDir())


def test_the_folder_is_named_after_the_run(tmp_path: Path) -> None:
    attempt = Path(folder(tmp_path / "logs" / "deeper").open_attempt(1, 2))
    assert attempt.is_dir()
    assert attempt.name == "attempt_0"
    assert attempt.parent.name.startswith("nightly_")
    assert attempt.parent.parent == tmp_path / "logs" / "deeper"


def test_two_agents_with_one_log_dir_do_not_share_a_folder(tmp_path: Path) -> None:
    assert folder(tmp_path).make() != folder(tmp_path).make()


def test_a_relative_log_dir_stays_where_it_is_when_the_folder_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = folder(Path("logs"))
    monkeypatch.chdir("/")
    assert Path(run.make()).parent == tmp_path / "logs"


@pytest.mark.parametrize(
    ("rounds", "attempts"),
    [((1, 2, 5), (0, 1, 4)), ((1, 2, 1, 2), (0, 1, 2, 3))],
    ids=["torchruns-numbers", "rounds-that-are-counted-again"],
)
def test_every_round_has_an_attempt_of_its_own(
    tmp_path: Path, rounds: tuple[int, ...], attempts: tuple[int, ...]
) -> None:
    run = folder(tmp_path)
    opened = [Path(run.open_attempt(round_, 2)) for round_ in rounds]
    assert [path.name for path in opened] == [f"attempt_{number}" for number in attempts]
    assert all(sorted(os.listdir(path)) == ["0", "1"] for path in opened), "with a folder for each worker"


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    run = folder(tmp_path / "logs")
    run.open_attempt(1, 2)
    os.rename(tmp_path / "logs", tmp_path / "moved")
    assert Path(run.open_attempt(2, 2)).is_dir()


@pytest.mark.parametrize(
    ("log_dir", "flags", "is_told"),
    [("logs", {"tee": Std.OUT}, True), (None, {"redirects": Std.ALL}, True), ("logs", {}, False), (None, {}, False)],
    ids=["log dir", "temporary", "error files alone", "no files"],
)
def test_the_folder_of_log_files_is_known_before_it_exists(
    tmp_path: Path, log_dir: str | None, flags: dict[str, Std], is_told: bool
) -> None:
    run = folder(log_dir and tmp_path / log_dir, **flags)
    told = run.will_have
    assert bool(told) == is_told and not os.path.exists(told)
    assert not told or Path(run.open_attempt(1, 1)).parent == Path(told)


def test_without_a_log_dir_error_files_go_with_the_agent(tmpdir_of_the_agent: Path) -> None:
    scratch = TempDir()
    run = RunFolder(LogOptions(), "nightly", scratch)
    assert Path(run.open_attempt(3, 2)).parent.parent == tmpdir_of_the_agent
    assert not run.is_kept
    scratch.remove()
    assert list(tmpdir_of_the_agent.iterdir()) == []


@pytest.mark.parametrize(
    "flags", [{"tee": Std.OUT}, {"redirects": {1: Std.ERR}}, {"stdout_filters": ("loss",)}], ids=str
)
def test_without_a_log_dir_requested_files_are_kept(tmpdir_of_the_agent: Path, flags: dict[str, object]) -> None:
    run = folder(**flags)
    attempt = Path(run.open_attempt(1, 2))
    assert run.is_kept and wants_files(LogOptions(**flags))
    assert attempt.parent.name.startswith("nightly_")
    assert attempt.parent.parent.parent == tmpdir_of_the_agent
    assert stat.S_IMODE(attempt.parent.parent.stat().st_mode) == 0o700, "it is in a folder that others can read"


def test_an_empty_map_does_not_request_a_file() -> None:
    assert not wants_files(LogOptions(tee={0: Std.NONE}, redirects=Std.NONE))


@pytest.mark.parametrize(
    ("log_dir", "problem"),
    [
        ("{}/a/b", None),
        ("{}/file", words.output.log_dir_is_a_file("{}/file")),
        ("{}/file/x", words.output.log_dir_not_made("{}/file/x", "Not a directory")),
        ("/proc/x", words.output.log_dir_not_made("/proc/x", "No such file or directory")),
    ],
)
def test_a_log_dir_is_created_or_the_problem_is_reported(tmp_path: Path, log_dir: str, problem: str | None) -> None:
    (tmp_path / "file").touch()
    path = log_dir.format(tmp_path)
    assert why_unusable(path) == (problem and problem.format(tmp_path))
    assert os.path.isdir(path) == (problem is None)


def test_a_log_dir_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root can access everything
    assert why_unusable(str(tmp_path)) == words.output.log_dir_not_writable(str(tmp_path))


# Names.

RUN_IDS = st.text(st.characters().filter(str.isprintable), min_size=1, max_size=128)


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("nightly", "nightly"),
        ("job:12@cluster,a=b+c_d-e.f", "job:12@cluster,a=b+c_d-e.f"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        ("/abs/olute", "_abs_olute"),
        (".hidden", "_hidden"),
        ("-rf *", "_rf__"),
        ("~root", "_root"),
        ("two words $(rm x)", "two_words___rm_x_"),
        ("Müller 训练", "Müller_训练"),
    ],
)
def test_a_run_id_stays_readable(run_id: str, name: str) -> None:
    assert folder_name(run_id) == name


@given(RUN_IDS)
@example("/etc/x")
@example("a/../../b")
@example("..")
@example("训" * 128)
def test_no_run_id_reaches_outside_its_folder_or_is_too_long_for_a_file_system(run_id: str) -> None:
    name = folder_name(run_id)
    path = os.path.normpath(os.path.join("/logs", f"{name}_0"))
    assert os.path.dirname(path) == "/logs"
    assert not os.path.basename(path).startswith((".", "-"))
    assert len(os.fsencode(name)) <= LONGEST_NAME
