"""Sentences of the explanation of a run: its state, what is wrong with it, and what its time went into."""

from collections.abc import Mapping, Sequence

from rdzv_protocol.text import age, count

# The state.


def run(name: str) -> str:
    """The subject of a sentence about the state."""
    return f"Run {name}"


def has_been(run: str, phase: str, since_s: float, reason: str) -> str:
    return f"{run} has been {phase} for {age(since_s)}: {reason}."


def forms(run: str, phase: str, since_s: float, round: int, reason: str) -> str:
    return f"{run} has been {phase} for {age(since_s)}, in round {round}: {reason}."


def finishing(run: str, finished: str, ago_s: float, still_running: str) -> str:
    return f"{run} is finishing: {finished} finished {age(ago_s)} ago; still running: {still_running}."


def is_unhealthy(run: str, reason: str) -> str:
    return f"{run} is unhealthy: {reason}."


def has_ended(run: str, phase: str, ago_s: float, lasted_s: float, reason: str) -> str:
    return f"{run} {phase} {age(ago_s)} ago, after {age(lasted_s)}: {reason}."


def reason_of_restart(opened: str) -> str:
    return f"Reason of this restart: {opened}."


def round_ends(in_s: float, why: str) -> str:
    """The workers have a notice."""
    return f"Its workers know that the round ends within {age(in_s)}: {why}."


# Nodes.


def leave_together(nodes: str) -> str:
    """More than one node leaves when the round ends."""
    return f"When the round ends, these nodes leave: {nodes}."


def disconnected(node_id: str, unheard_s: float | None, left_s: float) -> str:
    return (
        f"Node {node_id} is disconnected, last heard {age(unheard_s)} ago; unless it returns, it is lost within "
        f"{age(left_s)}."
    )


def gone(node_id: str, for_s: float, cause: str) -> str:
    return f"Node {node_id} has been gone for {age(for_s)}: {cause}."


def more_disconnected(number: int) -> str:
    return f"{count(number, 'more node')} {'is' if number == 1 else 'are'} disconnected, too."


def network_test_failed(nodes: Sequence[str], problem: str) -> str:
    return f"The network test failed between {' and '.join(nodes)}: {problem}."


def gets_no_seat(node_id: str, cordon: str) -> str:
    return f"Node {node_id} is running, but does not take part in the next round: {cordon}."


def standing_by(nodes: str) -> str:
    return f"Standing by: {nodes}."


def more(number: int, noun: str, command: str) -> str:
    """`number`: number of things that are not shown."""
    return f"There {'is' if number == 1 else 'are'} {count(number, f'more {noun}')}: {command} shows all."


# Failures and restarts.


def that_failed_first(ago_s: float, round: int) -> str:
    """The state's reason is the first failure."""
    return f"That is the first failure, {age(ago_s)} ago in round {round}."


def failed_first(failure: str, ago_s: float, round: int) -> str:
    return f"First failure, {age(ago_s)} ago in round {round}: {failure}."


def rounds_have_failed(rounds: int, last: str) -> str:
    """`last`: message `failed_last`; empty if the state's reason is the last failure."""
    return f"{rounds} rounds have failed{last and f'; {last}'}."


def failed_last(failure: str, ago_s: float, round: int) -> str:
    return f"the last failure, {age(ago_s)} ago in round {round}: {failure}"


def earlier_failed(attempt: int, reason: str) -> str:
    """`attempt`: number of the attempt before the one that the explanation is about."""
    return f"Attempt {attempt} failed: {reason}."


def has_restarted(
    causes: Mapping[str, int], used: int, max_restarts: int, own_budgets: Mapping[str, tuple[int, int]]
) -> str:
    """`causes`: numbers of restarts by their causes. `own_budgets`: by cause, the used restarts and the most ones."""
    times = ", ".join(f"{cause}: {number}" for cause, number in causes.items())
    own = "".join(f"; {cause}: {spent} of at most {most}" for cause, (spent, most) in own_budgets.items())
    charged = f"Charged: {used} of at most {max_restarts}{own}."
    return f"It has restarted {count(sum(causes.values()), 'time')} ({times}). {charged}"


def time_went_into(spent_s: Mapping[str, float], ettr: float | None) -> str:
    """`spent_s`: seconds by what they went into."""
    shown = ", ".join(f"{age(seconds)} {name}" for name, seconds in spent_s.items())
    return f"Its time: {shown}.{f' ETTR {ettr:.3f}.' if ettr is not None else ''}"
