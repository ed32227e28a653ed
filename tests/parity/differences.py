"""The reviewed table of differences from torchrun, and its place in the documentation.

Each difference that test_command_lines.py finds must be in the table, and each row must still occur. `python -m
tests.parity.differences` writes them to docs/how-to/migrate-from-torchrun.md.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parity.command_lines import (
    ALL_KINDS,
    C10D,
    FAIL,
    FAILS_WITH_REASON,
    HEARS,
    LEFT_ALONE,
    LEFT_TO_GO_ON,
    NO_END,
    OTHER_FAILS,
    STATIC,
    TWO_STREAMS,
    nodes,
    once_more,
)
from tests.parity.observe import Findings, Line

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate-from-torchrun.md"
BEGINS = "<!-- Made by python -m tests.parity.differences -->\n"
ENDS = "<!-- end -->\n"
OF_ONE = re.compile(r"^(round \d+/rank \d+|node \d+)/")
"""Worker or node of a finding."""


@dataclass(frozen=True)
class Difference:
    """One row of the table: what a user sees under each launcher, in a few words."""

    what: str
    torchrun: str
    here: str
    names: str
    """Pattern of the findings that it explains, without round and rank."""
    holds: Callable[[Any, Any], object]
    """Return whether the findings under torchrun and here show this difference."""
    seen_with: Line
    """A command line of command_lines.py that shows it."""
    lines: str = ""
    """Pattern of the command lines (`repr` of `Line`) that may show it."""

    def explains(self, line: Line, name: str, theirs: object, ours: object) -> bool:
        is_of_line = re.search(self.lines, repr(line)) and re.fullmatch(self.names, name)
        return bool(is_of_line and self.holds(theirs, ours))


def only_file_locks(theirs: str, ours: str) -> bool:
    """Return whether two texts of `/proc/PID/limits` differ only in the soft limit of file locks."""
    one, other = (re.sub(r"(?m)^(Max file locks +)\S+", r"\1", text).split() for text in (theirs, ours))
    return one == other


def only_here(pattern: str) -> Callable[[Any, Any], object]:
    """Return a check: torchrun has no such finding, and ours matches."""
    return lambda theirs, ours: theirs is None and re.search(pattern, ours)


def both(theirs: str, ours: str) -> Callable[[Any, Any], object]:
    """Return a check: each value matches its pattern."""
    return lambda one, other: re.search(theirs, str(one)) and re.search(ours, str(other))


STANDALONE = "torchrun --standalone train.py"
PLAIN = Line("torchrun train.py")
ERROR_FILE = r"attempt_\d+/\d+/error\.json$"

DIFFERENCES: Sequence[Difference] = (
    Difference(
        "`MASTER_ADDR`", "rank 0's host name, which other nodes may not resolve",
        "the address from which rank 0 reaches the server; with static, `--master-addr`",
        "environment/MASTER_ADDR", both(r"^[a-z]", r"^127\.0\.0\.1$"), PLAIN,
    ),
    Difference(
        "`MASTER_PORT`", "not reserved, so another program can take it; can be the previous round's",
        "reserved, and a new one in each round",
        "environment/MASTER_PORT", both(r"^\d{4,5}$", r"^\d{4,5}$"), PLAIN,
    ),
    Difference(
        "`MASTER_PORT` with several static nodes", "`--master-port`",
        "another port, because the server listens at `--master-port`", "environment/MASTER_PORT",
        both("^PORT$", r"^\d{4,5}$"),
        Line(nodes("torchrun --nnodes 2 --node-rank %d --rdzv-endpoint 127.0.0.1:PORT train.py")), " & ",
    ),
    Difference(
        "`TORCHELASTIC_RUN_ID`", "a UUID if you give none", "16 hexadecimal digits",
        "environment/TORCHELASTIC_RUN_ID", both(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-", r"^[0-9a-f]{16}$"),
        PLAIN,
    ),
    Difference(
        "`TORCHELASTIC_ERROR_FILE`", "in `/tmp/torchelastic_<random>/`; relative if `--log-dir` is",
        "in `/tmp/node-agent-<random>/`, with the same end; always absolute",
        "environment/TORCHELASTIC_ERROR_FILE", both(ERROR_FILE, "^FOLDER/.*" + ERROR_FILE), PLAIN,
    ),
    Difference(
        "`TORCHELASTIC_TIMER_FILE`", "`/tmp/watchdog_timer_<random>`", "`/tmp/node-agent-<random>/timer`",
        "environment/TORCHELASTIC_TIMER_FILE", both("watchdog_timer", "/timer$"),
        Line("TORCHELASTIC_ENABLE_FILE_TIMER=1 torchrun --standalone train.py"),
    ),
    Difference(
        "`PYTHONUNBUFFERED`", "",
        "`1` unless you set it ([why](logs.md#how-output-reaches-the-console))",
        "environment/PYTHONUNBUFFERED", only_here("^1$"), PLAIN,
    ),
    Difference(
        "`NODE_AGENT_ID`", "", "marks the processes that a worker starts",
        "environment/NODE_AGENT_ID", only_here(r"^\d+-\d+-[0-9a-f]{16}$"), PLAIN,
    ),
    Difference(
        "`NODE_AGENT_RUNS`", "", "for launchers that a worker starts ([below](#runs-within-runs))",
        "environment/NODE_AGENT_RUNS", only_here('^{"runs":'), PLAIN,
    ),
    Difference(
        "`NODE_AGENT_PROGRESS_FILE`", "", "memory for `node_agent.progress` ([detect-hangs.md](detect-hangs.md))",
        "environment/NODE_AGENT_PROGRESS_FILE", only_here(r"^/proc/\d+/fd/\d+$"), PLAIN,
    ),
    Difference(
        "`TORCH_WORKER_SERVER_SOCKET`", "",
        "where torch's worker server listens, if the script uses `worker_main` "
        "([the ways to its stacks](../explanation/hang-evidence.md#how-a-node-looks-at-its-workers))",
        "environment/TORCH_WORKER_SERVER_SOCKET", only_here(r"\.server$"), PLAIN,
    ),
    Difference(
        "`TORCH_FR_DUMP_TEMP_FILE`, `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`, `TORCH_FR_BUFFER_SIZE`", "",
        "set if you keep log files: NCCL's flight recorder writes beside them, with torch's own buffer size of 2000",
        "environment/TORCH_(FR|NCCL_DEBUG)_.*", only_here(r"^2000$|/flight_recorder_rank_$|/round_\d+_nccl_$"),
        Line("torchrun --nproc-per-node 2 -r 3 train.py", ALL_KINDS),
    ),
    Difference(
        "`TORCHELASTIC_RUN_ID` with `--rdzv-id ''`", "a random number", "`none`, the same on every node",
        "environment/TORCHELASTIC_RUN_ID", both(r"^\d{20,}$", "^none$"),
        Line("torchrun --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id '' train.py"),
    ),
    Difference(
        "`MASTER_PORT` with `--rdzv-endpoint HOST:0`", "0, where workers cannot connect", "a free port",
        "environment/MASTER_PORT", both("^0$", r"^\d{4,5}$"),
        Line("torchrun --rdzv-endpoint localhost:0 train.py"),
    ),
    Difference(
        "`TORCHELASTIC_SIGNALS_TO_HANDLE`", "as given", "without names that are not signals",
        "environment/TORCHELASTIC_SIGNALS_TO_HANDLE", both("^SIGNOPE$", "^$"),
        Line("torchrun --signals-to-handle SIGNOPE train.py"),
    ),
    Difference(
        "`TORCHINDUCTOR_CACHE_DIR`", "torch sets it when torchrun logs an exception", "never set",
        "environment/TORCHINDUCTOR_CACHE_DIR", lambda theirs, ours: ours is None,
        Line("torchrun --signals-to-handle SIGNOPE train.py"),
    ),
    Difference(
        "stdout, stderr", "the launcher's own; `/dev/null` if `--local-ranks-filter` hides them",
        "a pipe to the agent, or a file: `isatty()` is false", "process/std(out|err)",
        both("^(terminal|file|device)$", "^pipe$"),
        Line("torchrun --standalone --nproc-per-node 2 train.py", "say out; cry err", streams="terminal"),
    ),
    Difference(
        "order of stdout and stderr of one worker, with `-t`",
        "the order in which the two files are read", "the same, so often another order",
        "stdout/rank 0",
        lambda theirs, ours: theirs and ours and sorted(theirs.split("\n")) == sorted(ours.split("\n")),
        Line("torchrun --standalone -t 3 train.py", TWO_STREAMS, streams="one pipe"), "-t 3.*('one pipe'|'terminal')",
    ),
    Difference(
        "a last line without a newline", "unchanged", "gets a newline", "stdout/last character",
        lambda theirs, ours: theirs != ours == ["\n"],
        Line("torchrun --standalone --nproc-per-node 2 train.py", NO_END),
    ),
    Difference(
        "`--duplicate-stdout-filters` with `-r`", "an empty file", "the lines", "file .*/filtered_std(out|err).log",
        lambda theirs, ours: theirs == "" and ours,
        Line("torchrun --standalone --nproc-per-node 2 --log-dir logs -r 3 --duplicate-stdout-filters one,no train.py",
             ALL_KINDS),
    ),
    Difference(
        "signals that are ignored already (`nohup`)", "SIGHUP is handled anyway",
        "stay ignored, also in workers",
        "process/SigIgn", lambda theirs, ours: int(ours, 16) & ~int(theirs, 16) == 1, Line(STANDALONE, ignored=(1,)),
    ),
    Difference(
        "a signal that is not in `--signals-to-handle` ends the launcher", "workers keep running",
        "workers are killed, too", "workers that outlive it", lambda theirs, ours: theirs and not ours,
        Line(STANDALONE, HEARS, "SIGUSR1"),
    ),
    Difference(
        "a wrong value", "exit code 1 and a traceback; 2 for some flags",
        "exit code 2 and a line with the flag and the value",
        "exit code", lambda theirs, ours: theirs == [1] and ours == [2], Line("torchrun --nnodes 0 train.py"),
    ),
    Difference(
        "fractions of `--shutdown-timeout`; `true` and `yes` in the variable of a switch; variables that are empty",
        "refused", "accepted; an empty variable counts as not set", "exit code|workers",
        lambda theirs, ours: theirs in ([], [1], [2]) and ours in ([0], ["0-0"]),
        Line("PET_STANDALONE=true torchrun train.py"), r"PET_\w+=(true)? torchrun|shutdown-timeout 1\.5",
    ),
    Difference(
        "title of the final report", "the program; `PYTHON_EXEC`, if that is set",
        "the script or module; a program with its folder", "report/title", both(" FAILED$", " FAILED$"),
        Line(STANDALONE, "exit 3"),
    ),
    Difference(
        "`Failures:` in the final report", "includes workers that the launcher stopped",
        "only workers that failed by themselves, including those of earlier rounds", "report/ranks of the others",
        lambda theirs, ours: None not in (theirs, ours) and bool(theirs) != bool(ours),
        Line("torchrun --standalone --nproc-per-node 2 train.py", FAIL),
    ),
    Difference(
        "final report if a worker fails because a worker of another node has failed",
        "names the worker of its own node", "names the run's first failure, on every node",
        "report/(rank|exit code|traceback)",
        both(r"^0 \(local|^1$|see:", r"^1 \(local|^3$|^-9|received by PID$"), Line(STATIC, OTHER_FAILS), " & ",
    ),
    Difference(
        "final report of a node after another node has given up", "none",
        "names the run's first failure, on every node", "report/.*", lambda theirs, ours: theirs is None,
        Line(once_more(C10D), OTHER_FAILS), " & ",
    ),
    Difference(
        "final report of a static run whose other node was told to leave", "names the worker that lost its peer",
        "names no worker; its reason is that no node joined within `join_timeout`", "report/.*",
        lambda theirs, ours: theirs and not ours, LEFT_ALONE, "timeout=15",
    ),
    Difference(
        "`TORCHELASTIC_RESTART_COUNT` after another node has left",
        "one higher, because the worker that lost its peer fails",
        "unchanged, because a node that leaves does not cost a restart", "workers",
        lambda theirs, ours: theirs == [*ours, "1-0"], LEFT_TO_GO_ON, "--nnodes 1:2 .* & ",
    ),
    Difference(
        "`TORCHELASTIC_RESTART_COUNT` with c10d after a worker of another node has failed", "unchanged",
        "one higher, and the same on every node", "workers",
        lambda theirs, ours: "1-0" not in theirs and [*theirs[:2], "1-0", *theirs[2:]] == ours,
        Line(once_more(C10D), OTHER_FAILS), "max-restarts 1.* & ",
    ),
    Difference(
        "`error_file` in the final report",
        "a file in the launcher's temporary folder", "`<N/A>` unless you keep log files",
        "report/error file", both(ERROR_FILE, "^<N/A>$"), Line(STANDALONE, FAILS_WITH_REASON),
    ),
    Difference(
        "`TORCHELASTIC_ERROR_FILE` of the launcher", "written only if the worker has written its own", "always written",
        "file error.json", lambda theirs, ours: theirs is None,
        Line("TORCHELASTIC_ERROR_FILE=error.json torchrun --standalone train.py", "exit 3"),
    ),
    Difference(
        "the workers' limit of file locks (`ulimit -x`), which Linux ignores", "as the launcher's",
        "a number by which the agent recognizes its workers' processes", "process/limits", only_file_locks, PLAIN,
    ),
    Difference(
        "temporary files",
        "the launcher leaves its folder in `/tmp`", "the agent leaves only log files, if you gave `-r` or `-t`",
        "left in TMPDIR", lambda theirs, ours: "torchelastic" in theirs and set(ours) <= {"node-agent-logs"},
        PLAIN,
    ),
)  # fmt: skip

NOT_SHOWN = "no longer shows: "


def unexplained(line: Line, theirs: Findings, ours: Findings) -> Iterator[str]:
    """Yield findings that `DIFFERENCES` does not explain exactly once, and rows that this line no longer shows."""
    shown = set()
    for name in sorted(each for each in {*theirs, *ours} if _can_compare(each, theirs, ours)):
        one, other = theirs.get(name), ours.get(name)
        if one != other:
            plain = OF_ONE.sub("", name)
            found = [each for each in DIFFERENCES if each.explains(line, plain, one, other)]
            shown.update(found)
            if len(found) != 1:
                yield f"{name}: {len(found)} differences explain it\n    torchrun:   {one}\n    node-agent: {other}"
    for difference in DIFFERENCES:
        if difference.seen_with == line and difference not in shown:
            yield f"{NOT_SHOWN}{difference.what}"


def _can_compare(name: str, theirs: Findings, ours: Findings) -> bool:
    """Return whether a finding can be compared. It cannot if only one side has its worker, as `workers` shows."""
    if not name.startswith("round "):
        return True
    above, _, worker = name.partition("/")
    worker = worker.partition("/")[0] if worker.startswith("rank ") else "rank 0"
    return all(f"{above}/{worker}/arguments" in found for found in (theirs, ours))


def table() -> str:
    """Return the differences in Markdown."""
    lines = ["| | torchrun | node-agent | seen with |", "|---|---|---|---|"]
    for each in DIFFERENCES:
        row = f"| {each.what} | {each.torchrun} | {each.here} | `{each.seen_with.nodes[0]}` |"
        lines.append(row.replace("|  |", "| |"))
    return "".join(line + "\n" for line in lines)


def page(text: str) -> str:
    """Return the page with this table in its place."""
    before, _, rest = text.partition(BEGINS)
    return before + BEGINS + "\n" + table() + "\n" + ENDS + rest.partition(ENDS)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
