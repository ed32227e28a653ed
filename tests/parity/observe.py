"""A command line under one launcher, and everything that its user and its workers can see of it."""

import asyncio
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_agent.kernel.processes.ports import ReservedPort
from tests.support import forked

PROBE = Path(__file__).with_name("probe.sh")
PATIENCE_S = 100.0
HIDDEN_S = 1.0
"""Seconds after which a launcher counts as waiting if the kernel does not show where it waits."""
DYING_S = 5.0
"""Seconds in which the kernel ends a worker that dies with its launcher."""
TORCHRUN, NODE_AGENT = "torchrun", "node-agent"
MODULES = {
    (TORCHRUN, False): (forked.TORCHRUN, "torch.distributed.run"),
    (TORCHRUN, True): (forked.TORCHRUN, "torch.distributed.launch"),
    (NODE_AGENT, False): (forked.AGENT, "node_agent.__main__"),
    (NODE_AGENT, True): (forked.AGENT, "node_agent.launch"),
}
PROGRAMS = {
    "torchrun": False, "python -m torch.distributed.run": False, "python -m torch.distributed.launch": True,
}  # fmt: skip
"""Programs of a command line, and whether their twin is node_agent.launch."""
OF_A_WORKER = re.compile(r"\br(\d+) ")
"""Mark of a line from a worker."""
RANDOM = (
    (r"/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_", "/ID_"),
    (r"/[0-9a-f]{16}_", "/ID_"),
    (r"_[a-z0-9_]{8}(?=/attempt|$)|_[0-9a-f]{16}(?=/attempt|$)", "_RANDOM"),
    (r"/torchelastic_[a-z0-9_]{8}", "/torchelastic_RANDOM"),
    (r"/node-agent-([0-9a-f]{8}|logs)-[0-9a-f]{16}", "/node-agent-RANDOM"),
)
"""Names that launchers generate."""
REPORT = re.compile(r"^={8,60}\n", re.MULTILINE)
"""Border of the final report."""
SHARED = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
"""Variables that must be the same for every rank, with any values that a launcher generates."""
BETWEEN_NODES = " & "

Findings = dict[str, object]
"""All observations, by a name with slashes, such as `rank 0/environment/RANK`."""


@dataclass(frozen=True)
class Line:
    """A command line as a user types it. ` & ` separates several nodes, and variables may precede the program.

    `PORT` in it is a free port, `PROBE` a program that writes down what it finds, as Python does here.
    """

    text: str
    does: str = ""
    """Shell code of each worker, run after it has written down its findings. probe.sh has functions for it."""
    signals: str = ""
    """Signals to launchers, one each time that all workers are in `meet`. `SIGTERM@1` is only for node 1."""
    streams: str = "pipe"
    """Kind of stdout and stderr: `pipe`, `file`, `one pipe` for both, or `terminal`, for stdin too."""
    ignored: tuple[int, ...] = ()
    """Signals that the launcher starts with ignored."""

    @property
    def nodes(self) -> list[str]:
        return self.text.split(BETWEEN_NODES)

    @property
    def has_numbered_nodes(self) -> bool:
        """Return whether each node has its own command. For equal nodes it is unknown which one has which rank."""
        return len({*self.nodes}) > 1


@dataclass
class Ended:
    """A launcher's exit code and output."""

    code: int
    out: str
    err: str
    outliving: int
    """Workers that continue without it."""


async def observe(line: Line, launcher: str, folder: Path) -> Findings:
    """Run it in this folder, which is empty afterwards."""
    found, temporary = folder / "found", folder / "tmp"
    found.mkdir(parents=True)
    temporary.mkdir()
    port = ReservedPort()
    try:
        async with asyncio.timeout(PATIENCE_S):
            ended = await _run(line, launcher, folder, str(port.number))
    except TimeoutError:
        raise AssertionError(f"{launcher} hangs: {line.text}; {[each.name for each in found.iterdir()]}") from None
    finally:
        port.release()
        _end_workers(found)
    findings = {**_of_launchers(line, ended), **_of_workers(found), **_of_files(folder)}
    shutil.rmtree(folder)
    return {
        str(_plain(name, folder, port.number)): _plain(value, folder, port.number) for name, value in findings.items()
    }


async def _run(line: Line, launcher: str, folder: Path, port: str) -> list[Ended]:
    found = folder / "found"
    for name in ("meeting", "go", "never", "lost"):
        os.mkfifo(found / name)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "PYTHON_EXEC": str(PROBE),
        "FOUND": str(found), "DOES": line.does, "REAL_PYTHON": sys.executable,
    }  # fmt: skip
    launchers = []
    for node in line.nodes:
        words = shlex.split(re.sub(r"(?<![A-Z_])PORT", port, node).replace("PROBE", str(PROBE)))
        variables = {}
        while "=" in words[0]:
            name, _, variables[name] = words.pop(0).partition("=")
        length = 3 if words[0] == "python" else 1
        modules, module = MODULES[launcher, PROGRAMS[" ".join(words[:length])]]
        _make_scripts(words, folder)
        streams, reading = await _streams(line.streams, folder)
        pid, status = await forked.start(
            modules, module, words[length:], {**environment, **variables}, folder, streams, line.ignored
        )
        launchers.append((pid, status, reading))
    async with asyncio.TaskGroup() as group:
        meetings = group.create_task(_attend(found, launcher, [pid for pid, *_ in launchers], line.signals.split()))
        codes = [os.waitstatus_to_exitcode(int(await status.read())) for _, status, _ in launchers]
        outliving = _end_workers(found)
        texts = [[await text for text in reading] for *_, reading in launchers]
        meetings.cancel()
    return [Ended(code, *text, outliving) for code, text in zip(codes, texts, strict=True)]


def _make_scripts(words: Sequence[str], folder: Path) -> None:
    """Make each Python script that is named, except `no-such-script.py`. It is never executed."""
    for word in words:
        if word.endswith(".py") and "no-such" not in word:
            (folder / word).parent.mkdir(parents=True, exist_ok=True)
            (folder / word).touch()


async def _attend(found: Path, launcher: str, launchers: Sequence[int], signals: list[str]) -> None:
    """Each time that all workers have met, send the next signal to the launchers. After the last one, let them
    continue.

    If a signal reaches torchrun as it starts a worker, torchrun may leave that worker behind.
    """
    meeting = os.open(found / "meeting", os.O_RDWR | os.O_NONBLOCK)
    go = os.open(found / "go", os.O_RDWR)
    came = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(came), os.fdopen(meeting, "rb", buffering=0)
    )
    here = 0
    try:
        while True:
            size = int(await came.readline())
            here += 1
            if here < size:
                continue
            here = 0
            if signals:
                name, _, node = signals.pop(0).partition("@")
                signum = signal.Signals[name]
                for pid in [launchers[int(node)]] if node else launchers:
                    if launcher == TORCHRUN:
                        await _until_it_waits(pid)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signum)
            else:
                os.write(go, b"\n" * size)
    finally:
        transport.close()
        os.close(go)


async def _until_it_waits(launcher: int) -> None:
    """Return when a launcher sleeps between two looks at its workers, or is gone.

    A kernel may hide where a process waits. The function then returns after `HIDDEN_S`.
    """
    place = Path(f"/proc/{launcher}/wchan")
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(HIDDEN_S):
            while "nanosleep" not in place.read_text():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.001)


async def _streams(kind: str, folder: Path) -> tuple[list[int], list[Awaitable[str]]]:
    """Return descriptors for a launcher's stdin, stdout and stderr, and the output of the last two, to be awaited."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if kind == "file":
        names = [folder.with_suffix(".out"), folder.with_suffix(".err")]
        descriptors = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in names]
        return [nothing, *descriptors], [_content(name) for name in names]
    if kind == "terminal":
        os.close(nothing)
        ours, theirs = pty.openpty()
        return [theirs] * 3, [asyncio.create_task(_typed(ours)), _nothing()]
    out, its_out = await forked.pipe()
    if kind == "one pipe":
        return [nothing, its_out, its_out], [asyncio.create_task(_text(out)), _nothing()]
    err, its_err = await forked.pipe()
    return [nothing, its_out, its_err], [asyncio.create_task(_text(out)), asyncio.create_task(_text(err))]


async def _text(reader: asyncio.StreamReader) -> str:
    return (await reader.read()).decode(errors="backslashreplace")


async def _content(name: Path) -> str:
    return name.read_text(errors="backslashreplace")  # noqa: ASYNC240


async def _nothing() -> str:
    return ""


async def _typed(terminal: int) -> str:
    """Return all that is written to a terminal, until no process has it open any more."""
    loop, written, ended = asyncio.get_running_loop(), bytearray(), asyncio.Event()

    def read() -> None:
        try:
            written.extend(os.read(terminal, 1 << 16))
        except OSError:  # EIO: the last process has closed it
            loop.remove_reader(terminal)
            ended.set()

    loop.add_reader(terminal, read)
    await ended.wait()
    os.close(terminal)
    return written.decode(errors="backslashreplace").replace("\r\n", "\n")


def _of_launchers(line: Line, ended: Sequence[Ended]) -> Findings:
    """Return exit codes, the workers' output in order of arrival, and the final reports. Equal nodes are not
    distinguished.
    """
    codes = [each.code for each in ended]
    findings: Findings = {"exit code": codes if line.has_numbered_nodes else sorted({*codes})}
    findings["workers that outlive it"] = ended[0].outliving
    texts = {"stdout": [each.out for each in ended], "stderr": [REPORT.split(each.err)[0] for each in ended]}
    for stream, parts in texts.items():
        by_rank: dict[str, list[str]] = {}
        for written in "".join(parts).split("\n"):
            if mark := OF_A_WORKER.search(written):
                by_rank.setdefault(mark[1], []).append(written)
        findings |= {f"{stream}/rank {rank}": "\n".join(lines) for rank, lines in by_rank.items()}
    if line.streams in ("pipe", "file"):  # otherwise the launcher's own lines are in between
        findings["stdout/last character"] = [each.out[-1:] for each in ended]
    reports = {node: report for node, each in enumerate(ended) for report in REPORT.split(each.err)[1:2]}
    for node, report in reports.items() if line.has_numbered_nodes else [*reports.items()][:1]:
        above = f"node {node}/" if line.has_numbered_nodes else ""
        findings |= {f"{above}report/{name}": value for name, value in _report(report).items()}
    return findings


def _report(text: str) -> Findings:
    """Return the title, and the fields of the first failure."""
    others, _, root = text.partition("Root Cause")
    fields = dict(re.findall(r"^ +(\w+) *: (.*)$", root, re.MULTILINE))
    return {
        "title": text.partition("\n")[0],
        "rank": fields.get("rank"),
        "exit code": re.sub(r" +\(pid: \d+\) *", " ", fields.get("exitcode", "")).strip(),
        "error file": fields.get("error_file"),
        "traceback": re.sub(r"PID \d+", "PID", fields.get("traceback", "")),
        "ranks of the others": re.findall(r"^ +rank +: (\d+)", others, re.MULTILINE),
    }


def _of_workers(found: Path) -> Findings:
    """Return the arguments, environment and process of each worker of each round."""
    findings: Findings = {}
    arguments = sorted(found.glob("*.arguments"))
    findings["workers"] = [path.stem for path in arguments]
    for path in arguments:
        restarts, rank = path.stem.split("-")
        above = f"round {restarts}/rank {rank}/"
        findings[above + "arguments"] = path.read_text().split("\0")[:-1]
        streams, error_file = path.with_suffix(".kinds").read_text().splitlines()
        kinds = dict(each.split("=") for each in streams.split())
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            findings[f"{above}process/{name}"] = kinds.pop(str(number), "closed")
        findings[above + "process/other descriptors"] = sorted(kinds.values())
        findings[above + "process/folder of the error file"] = error_file
        environment, status, limits, numbers = _process(path.with_suffix(".process").read_text())
        findings |= {f"{above}environment/{name}": value for name, value in environment.items()}
        for field in ("Umask", "SigBlk", "SigIgn", "NoNewPrivs", "Cpus_allowed_list", "Seccomp"):
            findings[f"{above}process/{field}"] = status[field]
        findings[above + "process/limits"] = limits
        pid, group, session = numbers[0], numbers[4], numbers[5]
        findings[above + "process/leads its group and session"] = [pid == group, pid == session]
        findings[above + "process/nice"] = numbers[18]
    for restarts in {path.stem.partition("-")[0] for path in arguments}:
        given = {variable: set() for variable in SHARED}
        for name, value in findings.items():
            if (place := name.split("/"))[0] == f"round {restarts}" and place[-1] in SHARED:
                given[place[-1]].add(value)
        findings[f"round {restarts}/one value for all ranks"] = [name for name in SHARED if len(given[name]) == 1]
    return findings


def _process(text: str) -> tuple[dict[str, str], dict[str, str], str, list[str]]:
    """Return environment, status, limits, and the numbers of /proc/PID/stat, the pid first."""
    environment, _, rest = text.rpartition("Name:\t")
    status, _, rest = rest.partition("Limit  ")
    limits, _, numbers = rest.rstrip("\n").rpartition("\n")
    pid, _, rest = numbers.partition(" ")
    return (
        dict(each.split("=", 1) for each in environment.split("\0") if each),
        dict(line.split(":\t", 1) for line in status.splitlines()[1:]),
        limits,
        [pid, "", *rest.rpartition(")")[2].split()],
    )


def _of_files(folder: Path) -> Findings:
    """Return new files with their content, and remaining temporary files."""
    findings: Findings = {}
    left = {
        path.name.split("_")[0].rpartition("-")[0] or path.name.split("_")[0] for path in (folder / "tmp").iterdir()
    }
    findings["left in TMPDIR"] = sorted(left)
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(("found", "tmp")) or path.suffix == ".py":
            continue
        if path.is_dir():
            continue
        content = path.read_text(errors="backslashreplace") if path.suffix == ".log" else "..."
        if path.name.startswith("filtered"):
            content = "\n".join(sorted(content.splitlines()))  # from workers that write at the same time
        findings["file " + name] = content
    return findings


def _plain(value: object, folder: Path, port: int) -> object:
    """Return a value without what is generated for this run: folder, port, random names."""
    if isinstance(value, list):
        return [_plain(each, folder, port) for each in value]
    if not isinstance(value, str):
        return value
    for pattern, word in ((str(folder), "FOLDER"), (str(PROBE), "PROBE"), (rf"\b{port}\b", "PORT"), *RANDOM):
        value = re.sub(pattern, word, value)
    return value


def _end_workers(found: Path) -> int:
    """Kill the workers that do not end by themselves soon. Return their number."""
    mark, left = f"FOUND={found}\0".encode(), 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes() and b"probe.sh" in (process / "cmdline").read_bytes():
                pidfd = os.pidfd_open(int(process.name))
                if not select.select([pidfd], [], [], DYING_S)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    left += 1
                os.close(pidfd)
    return left
