"""Why an agent waits, in a forming round or beside a running one, and why a round starts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from rdzv_protocol.text import count, span

from rdzv_server.words import silent_runs

NAMES = 4
"""Number of names that a message lists before it says how many more there are, so that its size is limited."""

# Phrases that other messages contain.


def names(node_ids: Iterable[str], number: int) -> str:
    """Return the first `number` of these nodes; only the first few are named, each once."""
    more = f" and {number - NAMES} more" if number > NAMES else ""
    agents = Counter(islice(node_ids, min(number, NAMES)))
    return (
        ", ".join(
            f"{count(times, 'agent')} of {node_id}" if times > 1 else node_id for node_id, times in agents.items()
        )
        + more
    )


def joined(nodes: int, names: str) -> str:
    return f"{nodes} ({names}) joined" if names else f"{nodes} joined"


def waiting_for(nodes: int) -> str:
    """A round is `nodes` nodes below its minimum."""
    return f"waiting for {count(nodes, 'more node')}"


def to_stop(names: str, ended_round: int) -> str:
    """Participants of the previous round still stop their workers."""
    return f"{names} to stop the workers of round {ended_round}"


def unfit(node_id: str, evidence: str) -> str:
    """Evidence from a node's agent, always as a sentence about this node."""
    subject = f"node {node_id} is unfit: "
    return evidence if evidence.startswith(subject) else subject + evidence


def all_unfit(evidence: Iterable[str], number: int) -> str:
    """Evidence against the first few unfit nodes."""
    more = f"; and {number - NAMES} more" if number > NAMES else ""
    return "; ".join(islice(evidence, NAMES)) + more


def refused(why: Mapping[str, str]) -> str:
    """`why`: nodes whose agents may not join, each with the reason. Only the first few are named."""
    more = f" and {len(why) - NAMES} more" if len(why) > NAMES else ""
    return ", ".join(f"{node_id} ({each})" for node_id, each in islice(why.items(), NAMES)) + more


# Reasons why a round starts.


def more_than_seats(nodes: int, seats: int) -> str:
    return f"{nodes} nodes joined, and the run takes {seats}"


def all_joined(nodes: int) -> str:
    return f"all {nodes} nodes joined" if nodes > 1 else "its one node joined"


def all_rejoined(ended_round: int, joined: str) -> str:
    return f"every remaining node of round {ended_round} rejoined: {joined}"


def no_replacement(within_s: float, nodes: int) -> str:
    return f"no replacement joined within {within_s:g} s: continuing with {count(nodes)}"


def last_call_ended(nodes: int) -> str:
    return f"last call ended with {count(nodes)}"


def admitting(nodes: int, names: str) -> str:
    return f"admitting {nodes} more: {names}"


NOTHING_TO_ADMIT = "the nodes that arrived have left"


# Waits of a forming round.


def held(joined: str, awaits: str) -> str:
    """A policy keeps the round from starting. `awaits`: what the policy waits for."""
    return f"{joined}; {awaits}"


def last_call(joined: str, low: int, high: int, sizes: str, awaits: str) -> str:
    """`sizes`: the legal sizes, empty if all are legal; `awaits`: what the last call waits for."""
    wanted = f"{low} to {high}" if low != high else f"{high}"
    return f"{joined} of {wanted}{sizes and ', '}{sizes}; {awaits}"


def awaits_stops(to_stop: str) -> str:
    return f"waiting for {to_stop}"


def awaits_signs_of_life(names: str) -> str:
    return f"waiting for a sign of life from {names}"


def awaits_replacement(names: str) -> str:
    return f"waiting for a replacement for {names}"


def awaits_backoff(restarts: int) -> str:
    before = f"{count(restarts, 'restart')} in a row did not help"
    return f"waiting before the next restart: {before} (--restart-backoff)"


def awaits_more(high: int) -> str:
    """The round starts before the end of the last call if this many nodes join."""
    return f"waiting for more nodes, up to {high}"


def too_few(
    missing: int,
    nodes: int,
    low: int,
    names: str,
    *,
    sizes: str = "",
    to_stop: str = "",
    gone: str = "",
    cordoned: str = "",
    excluded: str = "",
    refused: str = "",
    unfit: str = "",
) -> str:
    """A round is below its minimum. Each text is a phrase; empty if there is nothing to say."""
    who = f" ({names})" if names else ""
    text = f"{waiting_for(missing)}: {nodes} of {low} joined{who}{sizes and ', '}{sizes}"
    text += to_stop and f"; {to_stop}"
    text += gone and f"; gone: {gone}"
    text += cordoned and f"; cordoned: {cordoned}"
    text += excluded and f"; excluded: {excluded}"
    text += refused and f"; refused: {refused}"
    return text + (unfit and f"; {unfit}")


def too_few_fit(fit: int, fixed_nodes: int, low: int, unfit: str) -> str:
    """A run with a fixed number of nodes can never reach its minimum."""
    there = f"only {fit} of the run's {fixed_nodes} nodes" if fit else f"none of the run's {fixed_nodes} nodes"
    return f"{there} can take part, but the run needs {low}: {unfit}"


# Waits of a node that stands by.


def admits_soon(round_: int) -> str:
    return f"round {round_} ends to admit this node"


def standby_some_finished(finished: int, nodes: int) -> str:
    return f"standing by: {finished} of {count(nodes)} finished their work"


def standby_full(round_: int, nodes: int, sizes: str = "") -> str:
    return f"standing by: round {round_} already has its {count(nodes)}{sizes and ', '}{sizes}"


def standby_scale_up(round_: int, scale_up: str) -> str:
    return f"standing by: round {round_} is running, and --scale-up is {scale_up}"


def standby_kept_out(node_id: str, reason: str, *, excluded: bool) -> str:
    """A node is cordoned. `excluded`: whether by the server itself."""
    kept_out = "excluded" if excluded else "cordoned"
    return f"standing by: node {node_id} is {kept_out}{reason and ': '}{reason}"


# A running round.


def ends_soon(why: str, in_s: float | None = None) -> str:
    """The workers have a notice. `why`: which node leaves or arrives, and why; empty if that is no longer so."""
    within = "soon" if in_s is None else f"within {in_s:.0f} s"
    return f"its workers know that it ends {within}{why and ': '}{why}"


def no_agent_heard(most_s: float) -> str:
    """`most_s`: seconds of silence after which the run ends. It does not contain a time that passes, so that it changes
    only when something happens.
    """
    return (
        f"the server does not hear from any agent of the run: {silent_runs.NODES_OR_PATH_GONE}; the server waits for "
        f"them, and ends the run after {span(most_s)} of silence"
    )


def running(round_: int, nodes: int, *, of: int | None = None, sizes: str = "", also: Iterable[str] = ()) -> str:
    """`of`: number of nodes, of which not all could take part, given the legal `sizes`; `also`: further phrases."""
    spare = "" if of is None else f" of {of}, {sizes}"
    return "; ".join((f"round {round_} runs on {count(nodes)}{spare}", *also))
