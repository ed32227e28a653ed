"""Health of a run that has not ended: what is wrong, without times, and what a person can do."""

from collections.abc import Sequence

from rdzv_protocol.text import NextStep, count, span

OK = "the server knows of no problem"
NO_ACTION = "the server takes no action"

# Problems.


def undecided(reason: str) -> str:
    """`reason`: why the server of the run can decide nothing now."""
    return f"the server can decide nothing now: {reason}"


def none_connected(nodes: Sequence[str], more: int) -> str:
    """`more`: number of nodes of the round besides the named ones."""
    if len(nodes) + more == 1:
        return f"the agent of node {nodes[0]} is not connected: the server waits for it"
    named = ", ".join(nodes) + (f" and {count(more, 'more node')}" if more else "")
    return f"no agent of the run is connected (nodes {named}): the server waits for them"


def looping(rounds: int, failure: str, last: str = "", *, tells_steps: bool) -> str:
    """`last`: message `worker_at` about the last of these failures, if its worker is known. `tells_steps`: whether the
    workers report their progress."""
    where = f", most recently {last}" if last else ""
    return f"the same failure ended {rounds} rounds in a row without {_progress(tells_steps)}{where}: {failure}"


def losing_nodes(rounds: int, node_id: str, times: int, *, tells_steps: bool) -> str:
    """`node_id`: the node that was lost or left most often, and how often; empty if no node stands out."""
    which = f"; node {node_id} was lost or left {times} times" if node_id else ""
    return f"{rounds} rounds in a row ended because a node was lost or left, without {_progress(tells_steps)}{which}"


def _progress(tells_steps: bool) -> str:
    return "a higher step or a later checkpoint" if tells_steps else "any progress"


def unstable(most: int, within_s: float, cause: str, reason: str) -> str:
    """`cause`: name of the cause of these restarts. `reason`: why the last one of them was necessary."""
    because = cause.replace("_", " ")
    return f"more than {most} restarts within {span(within_s)} with the cause {because}, most recently: {reason}"


def worker_at(rank: int, node_id: str) -> str:
    return f"on rank {rank} of node {node_id}"


def stalled(limit_s: float, step_s: float, step: int | None = None, node_id: str = "") -> str:
    """`step`: the last step. `node_id`: the node whose workers stand still; empty if all do."""
    after = "" if step is None else f" after step {step}"
    where = f" on node {node_id}" if node_id else ""
    return (
        f"no step{where}{after} for more than {span(round(limit_s))}, and a step takes about {step_s:.2g} s; "
        f"an evaluation or a checkpoint may take this long, so {NO_ACTION}"
    )


def stalled_early(limit_s: float, step: int | None = None) -> str:
    """`step`: the only step of this round; None if the workers reported none."""
    after = "" if step is None else f" after step {step}"
    return (
        f"no progress{after} for more than {span(round(limit_s))}, and no report shows yet how long a step takes; a "
        f"first evaluation or checkpoint may take this long, so {NO_ACTION}"
    )


def without_steps(limit_s: float, step: int) -> str:
    return (
        f"the workers report progress, but no step after step {step} for more than {span(round(limit_s))}; an "
        f"evaluation may take this long, so {NO_ACTION}"
    )


def loops_over(limit_s: float) -> str:
    return (
        f"all workers that report progress ended their loop more than {span(round(limit_s))} ago, and still run; a "
        f"last checkpoint may take this long, so {NO_ACTION}"
    )


def stalled_start(limit_s: float) -> str:
    return (
        f"no progress for more than {span(round(limit_s))} since the start of this round, and earlier rounds reported "
        f"some; loading a checkpoint may take this long, so {NO_ACTION}"
    )


def last_restart_spent(max_restarts: int, window_s: float | None = None) -> str:
    within = "" if window_s is None else f" allowed within {span(window_s)}"
    spent = "the only restart" if max_restarts == 1 else f"all {max_restarts} restarts"
    return f"{spent}{within} {'is' if max_restarts == 1 else 'are'} used: the next failure ends the run"


def below_size(nodes: int, largest: int) -> str:
    return f"the run uses {count(nodes)} and has room for {largest}"


# Next steps of a person.


def uncordon(node_id: str) -> NextStep:
    return NextStep(f"If node {node_id} is fit, admit it again:", f"rdzvctl uncordon {node_id}")


def start_nodes(more: int, run_id: str) -> NextStep:
    return NextStep(
        f"Start {count(more, 'more node')}. See which nodes are gone, and how to start one:", f"rdzvctl why {run_id}"
    )


_SEE_WORKERS = "See what the workers are doing:"


def stacks(run_id: str) -> NextStep:
    return NextStep(_SEE_WORKERS, f"rdzvctl stacks {run_id}")


def no_progress_reported(run_id: str) -> NextStep:
    """A run that seems to be well, as far as a server can know that does not hear of its workers' progress."""
    found = "The workers report no progress, so the server cannot tell whether they advance."
    return NextStep(f"{found} {_SEE_WORKERS}", f"rdzvctl stacks {run_id}")


def restart(run_id: str, lacks: int = 0) -> NextStep:
    """`lacks`: how many nodes the next round would lack, because nodes of this round are cordoned or leave."""
    if lacks:
        return NextStep(
            f"If the workers hang, first start {count(lacks, 'more node')}, or uncordon as many: the next round needs "
            "them. Then restart the workers:", f"rdzvctl restart {run_id}",
        )  # fmt: skip
    return NextStep("If the workers hang, restart them:", f"rdzvctl restart {run_id}")


MEND_SERVER = "Repair the server: it carries out nothing until it can decide. Workers keep running."
REPORT_ERROR = "Look for the error in the server's log, and report it."
FIXED_SERVER = "To continue the run, start a fixed version of rdzv-server: the workers keep running."
LOOK_AT_NODES = "Check the nodes, and the network between them and the server. Workers that are alive keep running."
START_AGENTS = "If the nodes are gone, start their agents again: they take the old agents' places at once."


def stop(run_id: str) -> NextStep:
    return NextStep("Or end the run:", f"rdzvctl stop {run_id}")


def forget(run_id: str) -> NextStep:
    return NextStep("Or start it again, which restarts its workers:", f"rdzvctl forget {run_id}")


def stop_and_mend(run_id: str) -> NextStep:
    return NextStep("If the run makes no progress, end it and fix the cause:", f"rdzvctl stop {run_id}")


def events(run_id: str) -> NextStep:
    return NextStep("See what used up its restarts:", f"rdzvctl events {run_id}")


def history(run_id: str) -> NextStep:
    return NextStep("See what its restarts have in common:", f"rdzvctl events {run_id}")


def losses(run_id: str, node_id: str) -> NextStep:
    """For a node that is lost again and again."""
    return NextStep(
        f"Find out what ended the agent of node {node_id}, for example memory that ran out or a machine that "
        "restarted. See when it was lost:",
        f"rdzvctl events {run_id}",
    )


def keep_out(node_id: str) -> NextStep:
    return NextStep(
        f"The run can do without node {node_id}. To keep it out of new rounds:", f"rdzvctl cordon {node_id}"
    )


def why(run_id: str) -> NextStep:
    return NextStep("See which nodes it could still use:", f"rdzvctl why {run_id}")
