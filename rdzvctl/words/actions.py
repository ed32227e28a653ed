"""Messages about actions on runs and nodes."""

from collections.abc import Sequence

from rdzv_protocol.shell import quoted
from rdzv_protocol.text import span
from rdzv_protocol.words.flags import did_you_mean

NOT_DONE = "not done"


def outcome_unknown(why: str) -> str:
    return f"the outcome is unknown: {why}"


def refused(why: str) -> str:
    """`why`: which servers cannot decide, or that none leads or answers."""
    return f"not done: {why}"


WHEN_IT_CAN = "try again when the server can decide; rdzvctl status shows whether it can"
MAY_BE_DONE_LATER = "the server may carry it out when it can decide again"


def ask_again(request_id: str) -> str:
    return f"to repeat it safely, add --request-id {request_id} to the same command"


def idle(why: str) -> str:
    return f"nothing to do: {why}"


def costs(sentence: str) -> str:
    return f"cost: {sentence}"


def asks(question: str) -> str:
    return f"{question} [y/N]"


def done(target: str, message: str) -> str:
    """`target`: the run or the node, with which the server's message may begin."""
    return message if message.startswith(target) else f"{target}: {message}"


def stays_cordoned(node_id: str, command: str, for_s: float | None) -> str:
    """After a drain. `command`: how to let the node join again."""
    time, earlier = (f" for {span(for_s)}", " earlier") if for_s is not None else ("", "")
    return f"node {node_id} stays cordoned{time}; to let it join again{earlier}: {command}"


def nothing_to_do(action: str, run: str) -> str:
    return f"nothing to {action}: {run}"


def stop_first(run_id: str) -> str:
    """For an action on ended runs that meets an active one."""
    return f"stop the active run first: rdzvctl stop {quoted(run_id)}"


def named_run(run_id: str) -> str:
    return f"run {run_id}"


def named_node(node_id: str) -> str:
    return f"node {node_id}"


def node_in_runs(node_id: str, states: Sequence[tuple[str, str]]) -> str:
    """`states`: the node's state in each run, and the run."""
    return f"node {node_id}: {'; '.join(f'{state} in run {run_id}' for state, run_id in states)}"


def no_run_has(node_id: str, known: Sequence[str]) -> str:
    return f"no run has a node {node_id} now{did_you_mean(node_id, known)}"


def in_no_run(node_id: str) -> str:
    return f"node {node_id}: no run has it now"
