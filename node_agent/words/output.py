"""Messages about the workers' output and its files."""

from collections.abc import Sequence

# A file of a worker.

RUN_CONTINUES = "the run continues"
RAISE_THE_LIMIT = "raise the limit on the size of files (ulimit -f, LimitFSIZE=)"
MAKE_ROOM = "free space (df -h) or inodes (df -i), or name another --log-dir"
WORKER_MAY_FAIL = f"a worker that writes to this disk may fail: {MAKE_ROOM}"
WORKER_AT_LIMIT = f"a worker that writes to it may fail: {RAISE_THE_LIMIT}"
LINES_LOST = "lines are lost: its disk does not accept them"
REMOVED = "it was removed while a worker wrote to it"
DISK_STILL_HANGS = "no answer since the last round: its disk hangs"


def file_trouble(path: str, problem: str, outlook: str, loses_lines: bool) -> str:
    """`loses_lines`: whether the agent's own copy is cut short because the disk is full."""
    advice = f" without these lines: {MAKE_ROOM}" if loses_lines else ""
    return f"log files: {path}: {problem}; {outlook}{advice}"


def disk_hangs(within_s: float) -> str:
    return f"no answer for {within_s:g} s: its disk hangs"


def at_limit(error: str, limit: int) -> str:
    return f"{error}: the limit is {limit:,} bytes"


def own_limit(error: str, limit: int) -> str:
    return f"{at_limit(error, limit)}; {RAISE_THE_LIMIT}"


def at_limit_of_file_system(error: str) -> str:
    return f"{error}: its file system allows no larger file"


# The folder of the files.


def log_dir_is_a_file(log_dir: str) -> str:
    return f"{log_dir} is a file"


def log_dir_not_made(log_dir: str, why: str) -> str:
    return f"cannot make {log_dir}: {why}"


def log_dir_not_writable(log_dir: str) -> str:
    return f"this user may not write to {log_dir}"


# The console.


def console_too_slow(behind: int, folder: str) -> str:
    return f"the console was too slow to show the last {behind:,} bytes of output: read them in {folder}"


def console_held(after_s: float) -> str:
    return (
        f"the console has been full for {after_s:g} s, so workers wait when they write. "
        "Continue the terminal (Ctrl-Q) or the program that reads the output, or write the output to a file"
    )


def console_full(stream: str, problem: str) -> str:
    return f"{stream}: {problem}: the run continues, but this output is lost until there is room; free space"


def console_lost(stream: str, size: int) -> str:
    return f"{stream}: {size:,} bytes of output were lost while its disk was full"


# A plug-in of `--logs-specs`.


def plugin_ended(name: str) -> str:
    return f"--logs-specs {name}: its process ended unexpectedly"


def plugin_failed(name: str, error: str) -> str:
    return f"--logs-specs {name}: {error}"


def wrong_local_ranks(name: str, found: Sequence[int], expected: Sequence[int]) -> str:
    """`name`: the field of torch's `LogsDest`, which `reify()` returns."""
    there = f"paths for the local ranks {_listed(found)}" if found else "no paths"
    return f"reify() returned {there} in {name}: it must return one for each local rank ({_listed(expected)})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
