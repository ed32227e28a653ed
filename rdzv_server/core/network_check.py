"""Network test of the nodes that would get a seat, in pairs, before the round starts: see `network_pairs`.

Agents that know the query `PairTest` are tested once, and again after a round that a lost node, a failure or a hang has
ended. Which pairs were asked, and what they answered, are signs; the result is a fact, `NetworkTested`. A node that
is unfit leaves like one that a check of its own has found unfit. The round waits for that, for `LONGEST_S` at most, and
for what is under way by then.
"""

from functools import partial
from hashlib import sha256
from hmac import new as hmac
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct, field
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.queries import PairTest, PairTested, Query, QueryAnswer, Refused
from rdzv_protocol.text import clip, count, printable

from rdzv_server.core import admission, completion, events, queries, rank_assignment
from rdzv_server.core.network_pairs import Figures, NetworkPairs, Pair
from rdzv_server.core.run import Agent, BrokenLink, Cause, Run, Stage

if TYPE_CHECKING:
    from rdzv_server.core.machine import RunMachine

LIMIT_S = 8.0
"""Longest time of one pair's test in seconds, at both agents."""
ANSWERED_WITHIN_S = LIMIT_S + 2.0
LONGEST_S = 30.0
"""Seconds from the first test of a forming round after which no further one begins."""
PROBLEM_BYTES = 240
MOST_BROKEN = 8
"""Most failed pairs that one test records."""
_TAG = PairTest.__struct_config__.tag
_CAUSES_OF_KNOWN_NODES = (Cause.NODE_LEFT, Cause.NODE_ARRIVED, Cause.NODE_DRAINED, Cause.RUN_RESIZED)
"""Causes of a new round that say nothing about the network."""


class Measured(Struct):
    """Answers so far of a pair whose test is under way."""

    pair: Pair
    left: int = 2
    answers: dict[str, PairTested] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_void: bool = False
    """Whether the test says nothing: one of the two nodes is gone, or could not measure."""


def forget_results(run: Run, cause: Cause) -> None:
    """Have the nodes of a new round tested again, unless its cause says nothing about the network."""
    run.network.until = None
    if cause not in _CAUSES_OF_KNOWN_NODES:
        run.network.fit.clear()
        run.network.tested.clear()
        run.broken_links.clear()


def joined(run: Run, join: JoinRequest) -> None:
    """Note whether this agent takes part in tests."""
    if _TAG in join.queries and join.secret:
        run.network.able.add(join.agent_id)


def is_done(machine: "RunMachine", now: float) -> bool:
    """Begin a test of the nodes that would get a seat, if they need one; return whether they have been tested."""
    run, state = machine.run, machine.run.network
    if state.pairs is not None:
        return False
    if len(state.able) < 2:
        return True
    seated = rank_assignment.order(run, admission.choose(run))
    able = [agent.agent_id for agent in seated if agent.agent_id in state.able]
    if len(able) < 2 or state.tested.issuperset(able):
        return True
    if state.until is None:
        state.until = now + LONGEST_S
    if now >= state.until:
        return True
    state.pairs, state.began_at, state.slowest = NetworkPairs(able, state.fit), now, None
    _ask(machine, state.pairs.next_pairs(), now)  # there are some: those that are not tested are not all fit
    return False


def over(machine: "RunMachine", now: float) -> events.NetworkTested | None:
    """Return the result of the test once it is over; begin a further step if one is needed."""
    run, state = machine.run, machine.run.network
    if state.pairs is None or state.open:
        return None
    pairs = state.pairs
    for agent_id in [each for each in pairs.order if each not in run.waiting]:
        pairs.forget(agent_id)
    may_go_on = run.stage is Stage.FORMING and state.until is not None and now < state.until
    if may_go_on and (further := pairs.next_pairs()):
        _ask(machine, further, now)
        return None
    state.pairs = None
    if run.stage is not Stage.FORMING:
        return None
    state.fit |= pairs.fit
    state.tested |= set(pairs.order)
    unfit = tuple((each, _unfit(run, pairs, each)) for each in pairs.unfit)
    return events.NetworkTested(
        _sentence(run, pairs, now), unfit, _warning(run, pairs), tuple(islice(pairs.broken(), MOST_BROKEN))
    )


def found(machine: "RunMachine", fact: events.NetworkTested, now: float) -> None:
    """Tell the result, and have the agents of unfit nodes leave."""
    run = machine.run
    machine.tell("network_tested", fact.reason, now)
    if fact.warning:
        machine.tell("warning", fact.warning, now)
    run.broken_links += [BrokenLink((one, other), why) for one, other, why in fact.broken]
    for agent_id, why in fact.unfit:
        agent = run.agents[agent_id]
        machine.tell("node_unfit", why, now, node_id=agent.node_id)
        machine.note_unfit(agent.node_id, why)
        machine.drain(agent, now, Cause.NODE_LEFT, why, now, unfit=True)


# Signs.


def _ask(machine: "RunMachine", pairs: list[Pair], now: float) -> None:
    run = machine.run
    for pair in pairs:
        listener, other = (run.agents[each] for each in pair.both)
        measured = Measured(pair)
        run.network.open += 1
        for agent, peer in ((listener, other), (other, listener)):
            queries.ask(
                machine, agent, PairTest, ANSWERED_WITHIN_S, partial(_closed, measured), now,
                listens=agent is listener, peer=peer.node_id, addr=listener.join.addr, port=listener.join.port,
                nonce=_nonce(listener, other, now), limit_s=LIMIT_S,
            )  # fmt: skip


def _nonce(listener: Agent, other: Agent, now: float) -> str:
    """Nonce with which the connection of this test begins: nobody can guess it."""
    return hmac(listener.join.secret.encode(), f"{other.agent_id} {now}".encode(), sha256).hexdigest()[:32]


def _closed(
    measured: Measured, machine: "RunMachine", agent: Agent, query: Query, answer: QueryAnswer | None, now: float
) -> None:
    """Take the answer of one of the two; that of the second is the pair's result."""
    measured.left -= 1
    match answer:
        case PairTested(problem=""):
            measured.answers[agent.agent_id] = answer
        case PairTested(problem=problem):
            at = len(measured.problems) if agent.agent_id == measured.pair.listens else 0  # who connects knows more
            measured.problems.insert(at, clip(printable(problem), PROBLEM_BYTES))
        case Refused():
            measured.is_void = True
        case _:
            measured.problems.append(f"node {agent.node_id} did not answer within {ANSWERED_WITHIN_S:g} s")
    if not measured.left:
        _conclude(machine, measured)


def _conclude(machine: "RunMachine", measured: Measured) -> None:
    run, state, pair = machine.run, machine.run.network, measured.pair
    state.open -= 1
    if state.pairs is None or measured.is_void or not all(each in run.agents for each in pair.both):
        return
    state.pairs.note(pair, measured.problems[0] if measured.problems else "")
    if not measured.problems:
        figures = Figures(
            min(each.mb_per_s for each in measured.answers.values()),
            max(each.latency_s for each in measured.answers.values()),
            " and ".join(run.agents[each].node_id for each in pair.both),
        )
        if state.slowest is None or figures.mb_per_s < state.slowest.mb_per_s:
            state.slowest = figures


# Words.


def _sentence(run: Run, pairs: NetworkPairs, now: float) -> str:
    state = run.network
    text = f"network tested between {count(len(pairs.order))}, in pairs, in {now - state.began_at:.1f} s"
    if state.slowest is None:
        return f"{text}: no pair passed"
    slowest = state.slowest
    figures = f"{slowest.mb_per_s:.0f} MB/s, {slowest.latency_s * 1000:.2f} ms"
    return printable(f"{text}; slowest of those that passed: {slowest.between} ({figures})")


def _unfit(run: Run, pairs: NetworkPairs, agent_id: str) -> str:
    with_peers = [f"with node {run.agents[peer].node_id}: {why}" for peer, why in pairs.failed[agent_id].items()]
    node_id = run.agents[agent_id].node_id
    return printable(f"node {node_id} is unfit: its network test failed {'; and '.join(with_peers)}")


def _warning(run: Run, pairs: NetworkPairs) -> str:
    if not pairs.undecided:
        broken = next(pairs.broken(), None)
        return _path_warning(run, *broken) if broken else ""
    who = completion.names({each: run.agents[each] for each in pairs.undecided})
    why = next(iter(pairs.failed[pairs.undecided[0]].values()))
    return printable(
        f"the network test failed between {who} ({why}), and it cannot be told whose fault that is: they take part"
    )


def _path_warning(run: Run, one: str, other: str, why: str) -> str:
    names = " and ".join(run.agents[each].node_id for each in (one, other))
    return printable(f"the network test failed between {names} ({why}); each has passed with another node")
