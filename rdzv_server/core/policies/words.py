"""Messages of the policies that are single files."""

from rdzv_protocol.text import NextStep, count

WAS_SLOW = "it was slower than the other nodes"


def slow(node_id: str, is_own_work: bool, own_s: float, times: float, usual_s: float) -> str:
    """Return the sentence about a straggler. `is_own_work`: whether `own_s` is a step's own work, not a whole step."""
    what = "a step's own work" if is_own_work else "a step"
    return f"node {node_id} is slow: {what} takes {own_s:.3g} s, {times:.1f} times as long as usual ({usual_s:.3g} s)"


def slowest(worst: str, more: int) -> str:
    """`worst`: message about the slowest node."""
    return f"{worst}; {count(more, 'more node')} {'is' if more == 1 else 'are'} slow, too" if more else worst


def drain(node_id: str) -> NextStep:
    return NextStep("If the node is at fault, remove it from the run:", f"rdzvctl drain {node_id}")


def replace(node_id: str) -> NextStep:
    """Without the node, the run has too few nodes."""
    return NextStep(
        "If the node is at fault, first start an agent on another node, because the run stands still without a "
        "replacement. Then remove the node:", f"rdzvctl drain {node_id}",
    )  # fmt: skip


def console_held(node_id: str) -> str:
    """For a node whose agent's stdout or stderr is full."""
    return f"node {node_id}'s console takes no output, so workers wait when they write"


def consoles_held(first: str, more: int) -> str:
    """`first`: message `console_held` about the first of these nodes."""
    return f"{first}; so does that of {count(more, 'more node')}" if more else first


def console_continues(node_id: str) -> str:
    return f"node {node_id}'s console takes output again"


def free_console(node_id: str) -> str:
    return (
        f"Continue the terminal of the agent of node {node_id} (Ctrl-Q), or the program that reads the agent's output. "
        "To prevent this, start agents with output in files: node-agent --log-dir DIR -r 3"
    )


def script_ended(rank: int, node_id: str, error: str) -> str:
    """For a worker whose process continues, for example because of a thread that is not a daemon."""
    return f"the script of rank {rank} on node {node_id} has ended, but its process has not; its last error: {error}"


def scripts_ended(first: str, more: int) -> str:
    """`first`: message `script_ended` about the first of these nodes."""
    return f"{first}; {count(more, 'more node')} {'has' if more == 1 else 'have'} such a worker" if more else first


def script_continues(rank: int, node_id: str) -> str:
    return f"rank {rank} on node {node_id} works again, although its script seemed to have ended"


def see_ended(rank: int, run_id: str) -> NextStep:
    return NextStep("See what the process waits for:", f"rdzvctl stacks {run_id} {rank}")


def restart_ended(run_id: str) -> NextStep:
    return NextStep("If the process saves nothing any more, restart the workers:", f"rdzvctl restart {run_id}")


def resumed(step: int, repeated: int, kept: int, saved_step: int) -> str:
    """Return the sentence about the first progress of a new round. `saved_step`: the last checkpoint before it."""
    return (
        f"the workers continue after step {step}: they repeat {repeated} steps, and {kept} steps after the last "
        f"checkpoint (step {saved_step}) were kept"
    )


STEPS_FALL = (
    "the steps that workers report fall within a round, as if the script counted them from 0 in each epoch: report "
    "the number of steps done in all epochs. Until then, --max-restarts-without-progress judges by how long each round "
    "lasts"
)


def no_longer_slow(node_id: str) -> str:
    return f"node {node_id} is no longer slow"
