"""Next steps of a person for a run, each with its command after a colon, but without `rdzvctl`'s own flags."""

from rdzv_protocol.shell import quoted
from rdzv_protocol.text import age, count

MEND_SERVER = "Repair the server first: until it can decide, nothing else helps. Workers keep running."

# If nothing has to be done.

ENDED = "Nothing: the run has ended."
STOPPED = "Nothing: an operator stopped the run. To begin a new attempt, start the agents with --rerun."
RUNS = "Nothing: it runs."
STARTS = "Nothing: the round will start by itself."


def ends_by_itself(in_s: float) -> str:
    """The workers have a notice."""
    return (
        f"Nothing: the workers save their work. The round ends within {age(in_s)}, and the next one starts by itself."
    )


def untold(run_id: str) -> str:
    """For a run about whose workers the server knows nothing."""
    told = "Nothing that the server knows of. The workers have reported no progress in this round"
    return f"{told}; to see what they do: rdzvctl stacks {quoted(run_id)}"


def told_once(run_id: str, age_s: float) -> str:
    """For a run whose workers have reported progress too rarely to show how long a step takes."""
    told = f"Nothing that the server knows of. The workers last reported progress {age(age_s)} ago"
    return f"{told}; to see what they do: rdzvctl stacks {quoted(run_id)}"


def uses(running: int, largest: int) -> str:
    return f"Nothing has to be done: the run uses {running} of at most {count(largest)}."


# After a failure.


START_AGAIN = "Fix the cause, then start the agents again: that begins a new attempt."

# For more nodes.


def agent(run_id: str, endpoint: str) -> str:
    """The command that starts an agent."""
    return f"node-agent --endpoint {endpoint} --run-id {quoted(run_id)} ... SCRIPT"


def admit(run_id: str) -> str:
    return f"Let standby nodes take the free places: rdzvctl admit {quoted(run_id)}"


def to_run_on(size: int, more: int, agent: str) -> str:
    return f"To run on {size}, start {count(more, 'more node')}: {agent}"


def to_run_on_all(more: int, agent: str) -> str:
    return f"To run on all, start {count(more, 'more node')}: {agent}"


def start_more(more: int, agent: str) -> str:
    return f"Start {count(more, 'more node')}: {agent}"


def start_before_end(more: int, in_s: float, agent: str) -> str:
    """The workers have a notice, and the next round has too few nodes."""
    nodes = count(more, "more node")
    return f"The round ends within {age(in_s)}, and the run then waits for nodes. Start {nodes}: {agent}"


def or_start_more(more: int, agent: str) -> str:
    return f"Or start {count(more, 'more node')}: {agent}"


def check_lost(nodes: str) -> str:
    return f"Check the lost nodes: {nodes}."


def wait_for(nodes: str, number: int) -> str:
    return f"Wait for {nodes} to stop {'its' if number == 1 else 'their'} workers, for --shutdown-timeout at most."


def start_if_fit(node_id: str, why: str) -> str:
    """`why`: why its agent left."""
    return f"If node {node_id} is fit (it left: {why}), start its agent again."


def start_agent_again(node_id: str, signal: str) -> str:
    return f"Start the agent of node {node_id} again (it left: {signal})."


def start_agents_again(nodes: str, signals: str) -> str:
    return f"Start the agents of nodes {nodes} again (they left: {signals})."


def uncordon(node_id: str, cordon: str) -> str:
    """`cordon`: empty if it is unknown."""
    return f"If node {node_id} is fit{cordon and f' ({cordon})'}: rdzvctl uncordon {quoted(node_id)}"


def uncordon_absent(node_id: str, cordon: str) -> str:
    steps = "uncordon it and start its agent again"
    return f"If node {node_id} is fit ({cordon}), {steps}: rdzvctl uncordon {quoted(node_id)}"
