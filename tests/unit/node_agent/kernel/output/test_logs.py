"""Output of a round's workers: real workers, real pipes and files, a console that keeps its output."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.messages import Assignment

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.log_options import NO_FILES, PREFIX_NAMES, PREFIX_TEMPLATE, LogOptions, Std
from node_agent.kernel.output.logs import AgentLogs
from node_agent.kernel.processes.process import CommandProcess
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.worker_spec import WorkerSpec
from node_agent.kernel.workers.group import WorkerGroup
from tests.support.changes import PATIENCE_S
from tests.support.console import FakeConsole
from tests.support.message_search import has_message, message_fields
from tests.unit.node_agent.story import an_assignment, join

OUT, ERR = 1, 2
SAYS_WHO = """
import os, sys
print("out", os.environ["RANK"])
print("err", os.environ["RANK"], file=sys.stderr)
"""


class Agent:
    """The logs of one agent, and workers that write to them."""

    def __init__(
        self, folder: Path, *, nproc: int = 2, environment: dict[str, str] | None = None, **flags: Any
    ) -> None:
        self.console = FakeConsole()
        self.nproc = nproc
        self.scratch = TempDir()
        options = LogOptions(**{"log_dir": str(folder / "logs"), **flags})
        config = AgentConfig(
            command=Command(()), join=join(run_id="nightly", node_id="gpu-a", role="trainer", local_world_size=nproc),
            logs=options, environment=environment or {},
        )  # fmt: skip
        self.logs = AgentLogs(config, self.console, self.scratch, pytest.fail)
        self.environments: list[dict[str, str]] = []

    async def round(self, program: str = SAYS_WHO, number: int = 1) -> None:
        """Run one round of workers to their end."""
        assignment = _assignment(number, self.nproc)
        logs = await self.logs.open(assignment, list)
        self.environments = [dict(logs.environment(local_rank)) for local_rank in range(self.nproc)]
        specs = [
            WorkerSpec(
                node_id="gpu-a",
                rank=4 + local_rank,
                local_rank=local_rank,
                title="python",
                start=partial(
                    CommandProcess, (sys.executable, "-c", program), {**os.environ, "RANK": str(4 + local_rank)}
                ),
                open_streams=partial(logs.open_streams, local_rank),
            )
            for local_rank in range(self.nproc)
        ]
        done = asyncio.Event()
        group = WorkerGroup(specs, signals=(), succeeded=done.set, failed=pytest.fail, stopped=print)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        del group
        copied = threading.Event()
        self.logs._files.do(copied.set)  # after the copies of lines
        await asyncio.to_thread(copied.wait)

    def out(self) -> list[bytes]:
        return sorted(self.console.text(OUT).splitlines())

    def err(self) -> list[bytes]:
        return sorted(self.console.text(ERR).splitlines())

    def files(self, folder: Path) -> dict[str, str]:
        """Return the text of every log file, by its path below the run's folder."""
        (run,) = (folder / "logs").iterdir()
        return {str(path.relative_to(run)): path.read_text() for path in sorted(run.rglob("*.log"))}


def _assignment(round_: int, nproc: int) -> Assignment:
    return an_assignment(round_, first_rank=4, local_world_size=nproc)


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Agent]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    agents: list[Agent] = []

    def make_agent(**flags: Any) -> Agent:
        agents.append(Agent(tmp_path, **flags))
        return agents[-1]

    before = len(os.listdir("/proc/self/fd"))
    yield make_agent
    for agent in agents:
        await agent.logs.close()
        agent.scratch.remove()
    assert len(os.listdir("/proc/self/fd")) == before, "everything is closed"


Make = Callable[..., Agent]


IN_TURNS = """
import sys
for number in range(200):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("flags", "marks"),
    [
        ({"nproc": 1}, [""]),
        ({"prefix": "[$rank] "}, ["[4] ", "[5] "]),
        ({"nproc": 1, "log_dir": NO_FILES, "tee": Std.ALL}, [""]),
    ],
    ids=["one-worker", "the-users-template", "no-files"],
)
async def test_with_stdout_and_stderr_in_one_stream_output_keeps_its_order(
    make: Make, flags: dict[str, Any], marks: list[str]
) -> None:
    agent = make(**flags)
    agent.console.is_one = True
    await agent.round(IN_TURNS)
    shown, written = agent.console.text(OUT).decode().splitlines(), range(200)
    for mark in marks:
        own = [line.removeprefix(mark) for line in shown if line.startswith(mark)]
        assert own == [f"{stream} {number}" for number in written for stream in ("out", "err")]
    assert agent.console.text(ERR) == b""


async def test_streams_are_separate_if_anything_needs_that(make: Make) -> None:
    """These need separate streams: separate files, filters, and a console whose stdout and stderr are two places."""
    for flags in ({"redirects": Std.OUT}, {"tee": Std.ERR}, {"stdout_filters": ("out",)}, {}):
        agent = make(nproc=1, **flags)
        agent.console.is_one = bool(flags)
        logs = await agent.logs.open(_assignment(1, 1), list)
        streams = logs.open_streams(0)
        assert streams[0].writable() != streams[1].writable(), flags
        for stream in streams:
            stream.finish()
        logs.close_files()


@pytest.mark.parametrize(
    ("flags", "out", "err", "files"),
    [
        ({}, "out 4, out 5", "err 4, err 5", {}),
        (
            {"tee": Std.ALL},
            "[trainer0]:out 4, [trainer1]:out 5",
            "[trainer0]:err 4, [trainer1]:err 5",
            {"0/stdout": "out 4", "0/stderr": "err 4", "1/stdout": "out 5", "1/stderr": "err 5"},
        ),
        (
            {"redirects": {0: Std.ALL, 1: Std.ERR}},
            "out 5",
            "",
            {"0/stdout": "out 4", "0/stderr": "err 4", "1/stderr": "err 5"},
        ),
        ({"ranks": frozenset({5}), "tee": {0: Std.OUT}}, "out 5", "err 5", {"0/stdout": "out 4"}),
        (
            {"prefix": "[${node_id} $rank ${group_rank}|$$|${unknown}|$] ", "tee": {0: Std.OUT}},
            "[gpu-a 4 1|$|${unknown}|$] out 4, [gpu-a 5 1|$|${unknown}|$] out 5",
            "[gpu-a 4 1|$|${unknown}|$] err 4, [gpu-a 5 1|$|${unknown}|$] err 5",
            {"0/stdout": "out 4"},
        ),
        (
            {"environment": {PREFIX_TEMPLATE: "<${role_name}|${rank}|${local_rank}> "}, "tee": {0: Std.OUT}},
            "<trainer|4|0> out 4, out 5",
            "err 4, err 5",
            {"0/stdout": "out 4"},
        ),
    ],
    ids=["plain", "teed", "redirected", "ranks-not-shown", "the-users-template", "torchruns-template"],
)
async def test_output_is_where_the_flags_say(
    make: Make, tmp_path: Path, flags: dict[str, Any], out: str, err: str, files: dict[str, str]
) -> None:
    agent = make(**flags)
    await agent.round()
    assert [b", ".join(lines).decode() for lines in (agent.out(), agent.err())] == [out, err]
    assert agent.files(tmp_path) == {f"attempt_0/{name}.log": f"{text}\n" for name, text in files.items()}
    assert len(agent.console.lines) == bool(files), "the agent logs once where the files are, if there are any"
    assert all(line.startswith(f"logs: {tmp_path}/logs/nightly_") for line in agent.console.lines)


async def test_a_template_may_use_all_names_that_there_are(make: Make) -> None:
    agent = make(prefix="|".join(f"${{{name}}}" for name in PREFIX_NAMES) + "|", nproc=1)
    await agent.round()
    assert agent.out() == [f"trainer|4|0|{os.uname().nodename.partition('.')[0]}|gpu-a|1|out 4".encode()]


async def test_the_only_worker_that_is_shown_writes_as_it_comes(make: Make) -> None:
    """A worker shown by itself has no prefix: no other lines can mix with its own, and its last one may stay open."""
    agent = make(local_ranks=frozenset({1}))
    await agent.round("print('.', end='')")
    assert agent.console.text() == b"."
    both = make()
    await both.round("print('.', end='')")
    assert both.console.text() == b".\n.\n"


@pytest.mark.parametrize("flags", [{}, {"tee": Std.OUT}, {"redirects": Std.OUT}, {"local_ranks": frozenset({0})}])
async def test_filters_copy_lines_wherever_they_go(make: Make, tmp_path: Path, flags: dict[str, Any]) -> None:
    agent = make(stdout_filters=("5", "nobody"), **flags)
    await agent.round()
    files = agent.files(tmp_path)
    assert files["attempt_0/filtered_stdout.log"] == "[trainer1]:out 5\n"
    assert "attempt_0/filtered_stderr.log" not in files


async def test_every_round_has_files_of_its_own(make: Make, tmp_path: Path) -> None:
    agent = make(redirects=Std.OUT, nproc=1)
    await agent.round(number=1)
    await agent.round(number=3)
    assert agent.files(tmp_path) == {"attempt_0/0/stdout.log": "out 4\n", "attempt_2/0/stdout.log": "out 4\n"}
    assert agent.environments[0]["TORCHELASTIC_ERROR_FILE"].endswith("/attempt_2/0/error.json")
    assert len(agent.console.lines) == 1, "the agent logs once where they are"


async def test_dev_null_turns_files_off(make: Make, tmp_path: Path) -> None:
    agent = make(log_dir=NO_FILES, tee=Std.ALL, stdout_filters=("out",))
    await agent.round()
    assert agent.out() == [b"out 4", b"out 5"]
    assert agent.environments == [{"TORCHELASTIC_ERROR_FILE": ""}] * 2
    assert os.listdir(tmp_path) == [os.path.basename(agent.scratch.folder)]


async def test_without_a_log_dir_files_that_were_asked_for_are_kept_and_named(make: Make, tmp_path: Path) -> None:
    agent = make(log_dir=None, tee=Std.OUT, nproc=1)
    await agent.round()
    (said,) = agent.console.lines
    agent.scratch.remove()
    assert (
        Path(message_fields(said, words.progress.logs_are_in)["folder"]) / "attempt_0" / "0" / "stdout.log"
    ).read_text() == "out 4\n"


# A problem with files does not stop a run.


async def test_a_log_dir_that_cannot_be_written_sends_everything_to_the_console(make: Make, tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    agent = make(redirects=Std.OUT)
    for number in (1, 2):
        await agent.round(number=number)
    assert agent.out() == [b"[trainer0]:out 4"] * 2 + [b"[trainer1]:out 5"] * 2
    assert agent.err() == [b"err 4"] * 2 + [b"err 5"] * 2
    assert agent.environments == [{"TORCHELASTIC_ERROR_FILE": ""}] * 2
    trouble = words.output.file_trouble(f"{tmp_path}/logs", "File exists", words.output.RUN_CONTINUES, False)
    assert agent.console.lines == [trouble]


async def test_a_file_that_cannot_be_opened_sends_its_stream_to_the_console(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_space_for(monkeypatch, "/0/stdout.log")
    agent = make(redirects=Std.OUT)
    await agent.round()
    assert agent.out() == [b"[trainer0]:out 4"]
    assert list(agent.files(tmp_path)) == ["attempt_0/1/stdout.log"]
    fields = {"problem": "No space left on device", "outlook": words.output.RUN_CONTINUES, "loses_lines": True}
    assert has_message(agent.console.lines[-1], words.output.file_trouble, **fields)


async def test_a_stderr_that_cannot_be_opened_closes_stdout(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(tee=Std.OUT)
    logs = await agent.logs.open(_assignment(1, 2), list)
    monkeypatch.setattr(os, "pipe", lambda: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many"):
        logs.open_streams(0)
    logs.close_files()


@pytest.mark.parametrize("flags", [{}, {"tee": Std.OUT}, {"prefix": "${rank}: "}], ids=["plain", "teed", "prefixed"])
async def test_lines_of_eight_workers_are_never_torn_however_long_they_are(make: Make, flags: dict[str, Any]) -> None:
    program = """
import os
me = bytes([ord("a") + int(os.environ["RANK"])])
for length in (10, 70_000, 1, 300_000, 4_000, 150_000) * 3:
    line = me * length + b"\\n"
    for at in range(0, len(line), 9_999):
        os.write(1, line[at:at + 9_999])
"""
    agent = make(nproc=8, **flags)
    await agent.round(program)
    lines = [line.rpartition(b":")[2].strip() for line in agent.console.text().splitlines()]
    assert len(lines) == 8 * 18
    assert all(len(set(line)) == 1 for line in lines)


def _no_space_for(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    really_open = os.open

    def full(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(end):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
