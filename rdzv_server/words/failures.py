"""Workers' failures: which reports are refused, why a failure ends the run, and why a restart does not help."""

# Refused reports.


def other_node(agents_node: str, node_id: str) -> str:
    return f"the agent of node {agents_node} reports a failure on node {node_id}"


def foreign_rank(rank: int, node_id: str, first: int, last: int) -> str:
    """A failure names a rank that the node does not have: its ranks are `first` to `last`."""
    return f"node {node_id} has ranks {first} to {last}, not {rank}"


def round_over(round_: int, run_id: str, node_id: str) -> str:
    return f"round {round_} of run {run_id} is over for node {node_id}"


# Hints.


def with_hint(failure: str, hint: str) -> str:
    return f"{failure} ({hint})" if hint else failure


def restart_useless(why: str) -> str:
    return f"a restart would not help: {why}"


def exited_before(finished: str) -> str:
    """Return advice on a worker that has lost another one. `finished`: ranks that had exited with 0 before."""
    return (
        f"{finished} had already exited with 0: if that was too early, find out why; every worker must take part in "
        "the last collective"
    )


def exited_meanwhile(finished: str) -> str:
    """Return advice on a worker that has lost another one. `finished`: ranks that exited with 0, too."""
    return (
        f"{finished} exited with 0 at about the same time: if that was too early, find out why; every worker must take "
        "part in the last collective"
    )


def hints(of_agent: str, of_server: str) -> str:
    return f"{of_agent}; {of_server}" if of_agent else of_server


# Reasons why a restart does not help.

FAILED_AT_START = "the first round failed at its start, and the next one would fail the same way"


def failed_at_step(step: int) -> str:
    return f"the previous round failed at step {step}, too, in the same way"


# Reasons why a failure ends the run.


def ends_run(failure: str, verdict: str) -> str:
    return f"{failure}; {verdict}"


def fatal_rule(rule: str) -> str:
    return f"its output matches --fatal-rule {rule!r}"


def fatal_exit_code(exit_code: int) -> str:
    return f"exit code {exit_code} ends this run (--fatal-exit-codes)"


def hopeless(restart_useless: str) -> str:
    return f"{restart_useless} (--fail-when-hopeless)"


def no_restarts_left(most: int, within_s: float | None) -> str:
    if most == 0:
        return "no restarts allowed (--max-restarts 0)"
    within = "" if within_s is None else f" within {within_s:.0f} s"
    return f"no restarts left: {most} of {most} used{within}"


FATAL_HANG = "--on-hang fail"


def no_hang_restarts_left(used: int, most: int) -> str:
    return f"no restarts after hangs left: {used} of {most} used"


def no_progress(rounds: int, highest_step: int | None, checkpoint_step: int | None) -> str:
    return f"no progress: {_rounds(rounds)} failed{_reached(highest_step, checkpoint_step)}"


def no_steps(rounds: int, within_s: float, *, fall: bool = False) -> str:
    """Rounds fail quickly in a run whose workers report no steps, or steps that decrease within a round."""
    return f"no progress: {_rounds(rounds)} failed within {within_s:g} s each, and {_no_steps(fall=fall)}"


def _rounds(number: int) -> str:
    return "the last round" if number == 1 else f"{number} rounds in a row"


def _reached(highest_step: int | None, checkpoint_step: int | None) -> str:
    step = "" if highest_step is None else f", none beyond step {highest_step}"
    saved = "" if checkpoint_step is None else f"; the last checkpoint is of step {checkpoint_step}"
    return step + saved


def _no_steps(*, fall: bool) -> str:
    return "the steps that workers report decrease within a round" if fall else "workers report no steps"


# Reasons why a node's losses end the run.

_FIND_OUT = (
    "Find out what ended its agent, for example memory that ran out (OOMKilled, exit code 137, dmesg) "
    "or a machine that restarted"
)


def lost_without_progress(node_id: str, rounds: int, highest_step: int | None, checkpoint_step: int | None) -> str:
    return (
        f"no progress: node {node_id} was lost in {rounds} rounds{_reached(highest_step, checkpoint_step)}. {_FIND_OUT}"
    )


def lost_without_steps(node_id: str, rounds: int, within_s: float, *, fall: bool = False) -> str:
    """A node is lost soon after the start of several rounds, in a run whose workers report no steps, or steps that
    decrease within a round.
    """
    lost = f"node {node_id} was lost in {rounds} rounds, within {within_s:g} s each"
    return f"no progress: {lost}, and {_no_steps(fall=fall)}. {_FIND_OUT}"
