"""Messages about the server's work: log lines about runs, and reasons why it refuses or stops."""

from collections.abc import Sequence

from rdzv_protocol.text import count

AGENTS_TRY_AGAIN = "workers keep running, and agents retry"
CLOSING = "shutting down"
SHUTTING_DOWN = f"the server is shutting down; {AGENTS_TRY_AGAIN}"
CONNECTION_CLOSED = "the connection is closed"
TOO_MANY_WATCH = "too many clients watch this server: there will be room when one of them closes its page"

# The store, while it cannot be written.

NOTHING_DECIDED = "the server makes no decisions until it can write; workers keep running"
STORE_IS_BACK = "the server can write to the store again"


def store_hangs(for_s: float) -> str:
    return f"the store has not answered for {for_s:g} s: check its disk, or etcd"


# Files that the server reads again.


def files_hang(paths: Sequence[str], for_s: float) -> str:
    """After SIGHUP."""
    return (
        f"SIGHUP: the disk of {', '.join(paths)} has not answered for {for_s:g} s: check it; runs continue, and the "
        "server keeps what it has read before"
    )


# The limit of processes.

NO_THREAD = "cannot start a thread: the limit of processes is reached; raise it (ulimit -u, TasksMax of a service)"

# Lines of the log.

PAGE_NOT_UPDATED = "cannot keep a page up to date; retrying"


def happened(run_id: str, attempt: int, round_: int, sentence: str) -> str:
    """An event of a run."""
    which = f" (attempt {attempt})" if attempt > 1 else ""
    return f"run {run_id}{which} round {round_}: {sentence}"


def of_run(run_id: str, sentence: str) -> str:
    return f"run {run_id}: {sentence}"


def lines_left_out(number: int, per_s: float, *, has_events: bool = True) -> str:
    """`per_s`: lines a second that the log takes of one run in the long run. `has_events`: whether the server has the
    run's events."""
    where = "; rdzvctl events shows all events" if has_events else ""
    return f"{count(number, 'line')} left out: this log takes {per_s:g} lines a second of one run on average{where}"


def done_by(sentence: str, by: str) -> str:
    return f"{sentence} (by {by})"


def log_was_read(run_id: str, rank: int, node_id: str, by: str) -> str:
    return f"run {run_id}: {by} read the log of rank {rank} on node {node_id}"


def event_failed(run_id: str, observer: str, error: str) -> str:
    """`run_id`: empty for an event of a node. `observer`: name of the function that raised."""
    of_what = f"run {run_id}" if run_id else "a node"
    return (
        f"{observer} missed an event of {of_what} after {error}. It gets the events that follow. Later errors of "
        "this kind are only counted"
    )


# Errors of the server itself.


def cannot_continue(kind: str, error: object) -> str:
    return f"this server cannot continue ({kind}: {error}); {AGENTS_TRY_AGAIN}"


def run_cannot_be_shown(error: str) -> str:
    return (
        f"cannot show this run after {error}. Its agents and workers are not affected. Report this with the "
        "server's log"
    )


# Refusals.


def no_stacks(why: str) -> str:
    return f"no stacks to show: {why}"


def agent_did_not_answer(node_id: str, limit_s: float) -> str:
    return f"the agent of node {node_id} did not answer within {limit_s:g} s"


def another_query(node_id: str) -> str:
    return f"the agent of node {node_id} answered a different query"


# The end of a server that is idle.

ALL_RUNS_OVER = "every run has ended, and every agent knows it"


def last_agent_left(run_id: str) -> str:
    return f"run {run_id} has not ended, but its last agent has left"


def no_agents(for_s: float) -> str:
    return f"no agent for {for_s:g} s"


# `--event-log`

EVENTS_WAIT = "runs continue, and events wait"


def event_log_failed(path: str, why: object) -> str:
    return f"--event-log {path}: {why}"


def disk_hangs(for_s: float) -> str:
    return f"its disk did not answer within {for_s:g} s; the last events may be missing"


def event_log_is_back(path: str) -> str:
    return f"the server can write to --event-log {path} again"


def log_lines_lost(lines: int) -> str:
    taker = "the terminal or program that shows this log"
    return f"{count(lines, 'line')} left out, because {taker} accepted none for a while"


def events_left_out(path: str, events: int) -> str:
    return f"--event-log {path}: {count(events, 'event')} missing"


# `--on-exclude`

WROTE_NOTHING = "no output"


def on_exclude_not_started(node_id: str, why: object) -> str:
    return f"--on-exclude for node {node_id}: {why}"


def on_exclude_done(node_id: str) -> str:
    return f"--on-exclude for node {node_id} has finished"


def on_exclude_not_needed(node_id: str, why: str) -> str:
    """`why`: reason why the exclusion has ended."""
    return f"--on-exclude does not run for node {node_id}, which is no longer excluded: {why}"


def on_exclude_left(node_id: str) -> str:
    """The server ends."""
    return f"--on-exclude has not run for node {node_id}, because the server ends: check whether the node is drained"


def on_exclude_failed(node_id: str, how: str, wrote: str) -> str:
    """`how`: one of the next two messages; `wrote`: the end of the command's output."""
    return f"--on-exclude for node {node_id} {how}: check whether the node is drained. Its output: {wrote}"


def fails_with(code: int) -> str:
    return f"failed with exit code {code}"


def was_killed_after(limit_s: float) -> str:
    return f"took more than {limit_s:g} s and was killed"
