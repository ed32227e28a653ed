"""Messages about workers that hang, and about what all ranks of a run do."""

from collections.abc import Callable, Mapping, Sequence

from rdzv_protocol import hang_sources
from rdzv_protocol.evidence import ProcessState
from rdzv_protocol.text import clip, printable
from rdzv_protocol.text import ranks as ranks_as_text

MOST_RANKS = 3
"""Number of ranks that are named one by one."""

# Suspicions and the verdict.


def may_hang_before_start(reason: str) -> str:
    """`reason`: what the agent says about a node that does not start its workers; it names the node."""
    return f"possible hang: {reason}"


def may_hang(ranks: Sequence[int], node_id: str, reason: str) -> str:
    return f"{ranks_as_text(sorted(ranks))} on node {node_id} may hang: {reason}"


def hang(reason: str, evidence: str = "") -> str:
    """Return the cause of the failure that represents a hang."""
    return f"hang: {reason}; {evidence}" if evidence else f"hang: {reason}"


def reported(node_id: str, rank: int, cause: str, error: str, *, singled_out: bool) -> str:
    """A hang that does not end the round, from the fields of `Failure` with these names. `cause`: message `hang`."""
    which = f"worker rank {rank} on node {node_id}: " if singled_out else ""
    return printable(f"{which}{cause}{f': {clip(error, 240)}' if error else ''}")


def of_unknown_rank(hang: str) -> str:
    """`hang`: message `reported` about a hang of which no rank is singled out."""
    return f"the rank to blame is unknown: {hang}"


def untold(node_id: str) -> str:
    return (
        f"the workers of node {node_id} report no progress, but the workers of other nodes do. So --progress-timeout "
        "watches only the nodes whose workers report it"
    )


def silence_unwatched(node_id: str, more: int) -> str:
    """A node, and `more` others, lack the flag that other nodes have."""
    who = _lacking(node_id, more)
    return f"--silence-timeout finds no hang, because {who} it: start the agents of all nodes with it"


def log_rules_unwatched(node_id: str, more: int) -> str:
    who = _lacking(node_id, more)
    return f"--log-rule watches only some nodes, because {who} it: start the agents of all nodes with it"


UNWATCHED: Mapping[str, Callable[[str, int], str]] = {
    hang_sources.SILENCE: silence_unwatched,
    hang_sources.LOG_RULE: log_rules_unwatched,
}
"""Messages about sources of hangs that some nodes have and others lack, by source."""


def _lacking(node_id: str, more: int) -> str:
    others = f" and {more} more node{'s' * (more != 1)}" if more else ""
    return f"node {node_id}{others} {'have not' if more else 'has not'} set"


NEVER_TOLD = (
    "if the script does not call node_agent.progress, use --silence-timeout in place of --progress-timeout; if it "
    "does, look in its output for a line that begins with node_agent.progress"
)


def evidence_in(folder: str, node_id: str) -> str:
    return f"read the evidence, in {folder} on node {node_id}"


def round_is_over(round_: int, run_id: str) -> str:
    return f"round {round_} of run {run_id} is over"


def too_many_sources(node_id: str, most: int) -> str:
    return f"node {node_id} already reports suspected hangs from {most} sources, the most that a node can report"


def limit_doubted(in_row: int, setting: str, limit_s: float, standstill_s: float) -> str:
    """Return a warning about a limit that has repeatedly found hangs. `setting`: its flag, or `limit_of` its source."""
    return (
        f"{setting} (limit {limit_s:g} s) caused {in_row} restarts in a row, so the limit may be too short. From now "
        f"on the server only reports hangs that this limit finds, unless they last {standstill_s:g} s longer. If the "
        "workers do not hang, raise the limit"
    )


def limit_of(source: str) -> str:
    return f"the limit of {source!r}"


# The state of health.


def hung(found: str, follows: str = "") -> str:
    """`found`: the server's verdict; message `may_hang` until there is one. `follows`: what the server does then."""
    return f"{found}; {follows}" if follows else found


ONLY_REPORTED = "the server only reports it (--on-hang report)"
RAISE_LIMIT = "If the workers do not hang, start the agents with a higher limit."


# Examinations.

HANG_IS_OVER = "the hang is over"
NO_AGENT_TO_ASK = "no agent of this run can report stacks"
FOREIGN_RANKS = "it reported ranks of other nodes"
WORKERS_GONE = "their agent has left the run"


def examined_just_now(run_id: str, again_in_s: float) -> str:
    return f"the server has just examined the workers of run {run_id}: try again in {again_in_s:.0f} s"


def run_is_over(run_id: str, stage: str) -> str:
    return f"run {run_id} has {stage}, and its workers are gone"


def no_workers(run_id: str) -> str:
    return f"run {run_id} has no workers now: a round is forming"


def agent_is_too_old(node_id: str) -> str:
    return f"the agent of node {node_id} is older than this server and cannot answer: upgrade node-agent there"


def operator_asks(by: str, why: str) -> str:
    """Return the reason for asking agents. `why`: what the operator wrote; empty if nothing."""
    return f"{by} asked for the stacks: {why}" if why else f"{by} asked for the stacks"


def operator_examines(rank: int | None, why: str) -> str:
    """Return the sentence of the run's event. `rank`: the only rank that is examined; None if all are."""
    what = "all workers" if rank is None else f"the worker of rank {rank}"
    return f"an operator examines {what}: {why}" if why else f"an operator examines {what}"


# The summary of all ranks' stacks, in parts.

NO_EVIDENCE = "no node sent evidence"
CULPRIT_UNKNOWN = "the stacks do not show which rank the others wait for"
DOES_NOT_RUN = "does not run"
HAS_RAISED = "has raised an exception, and its process does not end"
OUTSIDE_COLLECTIVE = "is not in the collective that the others wait in"
IN_ANOTHER_COLLECTIVE = "is in a different collective than the others"
DID_NOT_ANSWER = "did not answer while the others wait in a collective"
FEWER_COLLECTIVES = "has started fewer collectives than the others"
LOWER_STEP = "is at a lower step than the others"
LOST_THREAD = "has lost a thread"
ELSEWHERE = "is not where most ranks are"
_HALTED = {
    ProcessState.STOPPED: "stopped (SIGSTOP) ",
    ProcessState.TRACED: "held by a debugger ",
    ProcessState.UNINTERRUPTIBLE: "in uninterruptible sleep ",
    ProcessState.ENDED: "ended ",
}


def ranks_at(ranks: Sequence[int], count: int, place: str, state: ProcessState, wchan: str = "") -> str:
    """Return the phrase about ranks of `count`. `place`: where they are in the code, empty without a stack."""
    halted = _HALTED.get(state, "")
    where = f"in {place}" if place else "without a Python stack"
    kernel = f" (kernel: {wchan})" if wchan and (halted or not place) else ""
    return f"{_who(ranks, count)} {halted}{where}{kernel}"


def place(operation: str, file: str, line: int) -> str:
    return f"{operation} at {file}:{line}"


def interpreter_shutdown(file: str, line: int) -> str:
    return f"interpreter shutdown at {file}:{line}"


def more_elsewhere(ranks: int) -> str:
    return f"{ranks} more elsewhere"


def no_answer_from(ranks: Sequence[int], count: int, node_id: str, more_nodes: int = 0) -> str:
    """Return ranks of `count` whose nodes did not answer, with the first of these nodes and the number of others."""
    others = f" and {more_nodes} more node{'s' * (more_nodes != 1)}" if more_nodes else ""
    return f"no answer for {_who(ranks, count)} (node {node_id}{others})"


def thread_ended(rank: int, thread: str, error: str, more_ranks: int) -> str:
    """Return the phrase about a rank whose `thread` an exception has ended, and `more_ranks` others."""
    others = f", and {more_ranks} more rank{'s' * (more_ranks != 1)} lost one" if more_ranks else ""
    return printable(f"rank {rank} lost its thread {clip(thread, 64)} by {clip(error, 160)}{others}")


def blame(ranks: Sequence[int], why: str) -> str:
    """Return the ranks that the others wait for, with one of the marks above."""
    plural = why.replace("is ", "are ", 1).replace("has ", "have ", 1) if len(ranks) > 1 else why
    plural = plural.replace("its process does", "their processes do") if len(ranks) > 1 else plural
    return f"{_who(ranks)} {plural}"


def nccl_says(lines: Sequence[str]) -> str:
    return f"NCCL says: {', '.join(lines)}"


def _who(ranks: Sequence[int], count: int = 0) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == count:
        return f"all {count} ranks"
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
