"""Messages about the server's work: log lines about runs, and reasons why it refuses or stops."""

AGENTS_TRY_AGAIN = "workers keep running, and agents try again"
SHUTTING_DOWN = f"the server is shutting down; {AGENTS_TRY_AGAIN}"
CONNECTION_CLOSED = "the connection is closed"
TOO_MANY_WATCH = "too many watch this server already: there is room when one of them closes its page"

# The store, while it cannot be written.

NOTHING_DECIDED = "nothing is decided until it can be written, and workers keep running"
STORE_IS_BACK = "the store can be written again"

# Lines of the log.

PAGE_NOT_UPDATED = "a page cannot be kept up to date; trying again"


def happened(run_id: str, round_: int, sentence: str) -> str:
    """An event of a run."""
    return f"run {run_id} round {round_}: {sentence}"


def of_run(run_id: str, sentence: str) -> str:
    return f"run {run_id}: {sentence}"


def done_by(sentence: str, by: str) -> str:
    return f"{sentence} (by {by})"


def log_was_read(run_id: str, rank: int, node_id: str, by: str) -> str:
    return f"run {run_id}: the log of rank {rank} on node {node_id} was read by {by}"


def observer_failed(observer: object) -> str:
    return f"{observer!r} failed; it gets no more events"


# Errors of the server itself.


def cannot_go_on(kind: str, error: object) -> str:
    return f"this server cannot go on ({kind}: {error}); {AGENTS_TRY_AGAIN}"


def run_cannot_be_shown(error: str) -> str:
    return (
        f"this run cannot be shown after {error}. Its agents and workers are not affected. Report this with the "
        "server's log"
    )


# Refusals.


def no_stacks(why: str) -> str:
    return f"no stacks to show: {why}"


def agent_did_not_answer(node_id: str, limit_s: float) -> str:
    return f"the agent of node {node_id} has not answered within {limit_s:g} s"


def another_question(node_id: str) -> str:
    return f"the agent of node {node_id} has answered another question"


# The end of a server that is idle.

ALL_RUNS_OVER = "every run is over, and every agent has heard so"


def no_agents(for_s: float) -> str:
    return f"no agent for {for_s:g} s"


# `--event-log`

EVENTS_WAIT = "runs go on, and events wait"


def event_log_failed(path: str, why: object) -> str:
    return f"--event-log {path}: {why}"


def event_log_is_back(path: str) -> str:
    return f"--event-log {path} can be written again"


def events_left_out(path: str, events: int) -> str:
    return f"--event-log {path}: {events} events were left out"


# `--on-exclude`

WROTE_NOTHING = "it wrote nothing"


def on_exclude_not_started(node_id: str, why: object) -> str:
    return f"--on-exclude for node {node_id}: {why}"


def on_exclude_done(node_id: str) -> str:
    return f"--on-exclude for node {node_id} is done"


def on_exclude_failed(node_id: str, how: str, wrote: str) -> str:
    """`how`: one of the next two messages; `wrote`: the end of the command's output."""
    return f"--on-exclude for node {node_id} {how}, and the node may not be drained: {wrote}"


def fails_with(code: int) -> str:
    return f"fails with {code}"


def was_killed_after(limit_s: float) -> str:
    return f"took more than {limit_s:g} s and was killed"
