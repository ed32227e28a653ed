"""Network test of the nodes that would get a seat, in pairs, before the round starts: see `network_pairs`.

Agents that know the query `PairTest` are tested once. They are tested again after a round that ended because of a lost
node, a failure or a hang. Which pairs were asked, and what they answered, are signs; the result is a fact,
`NetworkTested`. A node that is unfit leaves, as if a check of its own had found it unfit. The round waits for the tests
for at most `LONGEST_S`, and then for those that are still running.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import ClassVar

from msgspec import Struct, field
from rdzv_protocol.queries import PairTest, PairTested, Query, QueryAnswer, Refused
from rdzv_protocol.shell import quoted
from rdzv_protocol.text import clip, printable

from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import admission, agent_secrets, completion, queries, rank_assignment
from rdzv_server.core.kernel.policy import IMMEDIATELY, Finding, Policy, Rule, Rules
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.run import Agent, Cause, PolicyState, Run
from rdzv_server.core.policies.network_check import words
from rdzv_server.core.policies.network_check.network_pairs import Figures, NetworkPairs, Pair

LIMIT_S = 8.0
"""Longest time of one pair's test in seconds, on each of the two agents."""
ANSWERED_WITHIN_S = LIMIT_S + 2.0
LONGEST_S = 30.0
"""Seconds from the first test of a forming round after which further tests do not begin."""
PROBLEM_BYTES = 240
MOST_BROKEN = 8
"""Most failed pairs that one test records."""
_TAG = PairTest.__struct_config__.tag
_CAUSES_OF_KNOWN_NODES = (Cause.NODE_LEFT, Cause.NODE_ARRIVED, Cause.NODE_DRAINED, Cause.RUN_RESIZED)
"""Causes of a new round that say nothing about the network."""


class NetworkTested(PolicyFact, frozen=True):
    """The network between the nodes of the forming round has been tested; `reason` describes the result."""

    reason: str
    unfit: tuple[tuple[str, str], ...] = ()
    """Agents whose nodes are unfit, each with the evidence."""
    warning: str = ""
    """Warning about a failed test that does not show which node is at fault; empty if there is none."""
    broken: tuple[tuple[str, str, str], ...] = ()
    """Pairs that have failed although both nodes take part: the two agents' ids, and the reason."""


class Measured(Struct):
    """Answers so far in the running test of one pair."""

    test: NetworkPairs
    pair: Pair
    left: int = 2
    answers: dict[str, PairTested] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_void: bool = False
    """Whether the test shows nothing, because one of the two nodes is gone or could not measure."""


class BrokenLink(Struct, frozen=True):
    """Failed network test of two agents, by their ids, with the reason."""

    agents: tuple[str, str]
    problem: str


class NetworkState(PolicyState):
    broken_links: list[BrokenLink] = field(default_factory=list)
    """Pairs of agents between which the last network test has failed although both take part."""


class NetworkTest(Struct):
    """Test of the network between the nodes of the forming round.

    Agents are given by id; times are by the server's clock.
    """

    fit: set[str] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)
    """Ids of the agents that need no further test: those in `fit`, and those for which the result stayed undecided."""
    pairs: NetworkPairs | None = None
    """Test that is running; None if none is."""
    open: int = 0
    """Number of pairs that have not answered yet."""
    until: float | None = None
    """Time after which no test begins; None if the forming round has had no test."""
    began_at: float = 0.0
    slowest: Figures | None = None
    result: NetworkTested | None = None
    """Result of a test that is over, until it is applied."""


class NetworkCheck(Policy[NetworkState, NetworkTest]):
    name = "network_check"
    State = NetworkState
    Signs = NetworkTest

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        links = list(broken_links(run))
        if not links:
            return None
        one, other = (run.agents[each].node_id for each in links[0].agents)
        sentence = words.unreachable(one, other, links[0].problem, len(links) - 1)
        steps = words.MEND_LINK, words.restart_tests_network(quoted(run.run_id))
        return Finding("unreachable", printable(sentence), run.stage_since, steps)

    def holds_round(self, now: float) -> bool:
        """Return whether nodes that would get a seat need a test, and there is time for it."""
        until = self.signs.until
        if until is not None and now >= until:
            return False
        able = _able(self.run)
        return len(able) > 1 and not self.signs.tested.issuperset(able)

    def prepare_round(self, now: float) -> None:
        """Begin a test of the nodes that would get a seat."""
        signs = self.signs
        if signs.until is None:
            signs.until = now + LONGEST_S
        signs.pairs, signs.began_at, signs.slowest = NetworkPairs(_able(self.run), signs.fit), now, None
        self.kernel.hold(words.UNDER_TEST)
        self._ask(signs.pairs, signs.pairs.begin_step(), now)  # never empty, since not all agents are fit

    def attend(self, now: float) -> None:
        """Begin a further step of the test if one is needed, else conclude the test."""
        signs, run = self.signs, self.run
        pairs = signs.pairs
        if pairs is None or signs.open:
            return
        for agent_id in [each for each in pairs.order if each not in run.waiting]:
            pairs.forget(agent_id)
        if signs.until is not None and now < signs.until and (further := pairs.begin_step()):
            self._ask(pairs, further, now)
            return
        signs.pairs = None
        signs.fit |= pairs.fit
        signs.tested |= set(pairs.order)
        unfit = tuple((each, _unfit(run, pairs, each)) for each in pairs.unfit)
        sentence = _sentence(pairs, now - signs.began_at, signs.slowest)
        signs.result = NetworkTested(sentence, unfit, _warning(run, pairs), tuple(islice(pairs.broken(), MOST_BROKEN)))

    def deadline(self) -> float | None:
        """Return the deadline: at once if a step is over. A step ends by the deadlines of its queries."""
        signs = self.signs
        return IMMEDIATELY if signs.result or (signs.pairs and not signs.open) else None

    def due(self, now: float) -> NetworkTested | None:
        return self.signs.result

    def round_opened(self, cause: Cause, now: float) -> None:
        """Test the nodes of a new round again, unless its cause says nothing about the network."""
        before = self.signs
        self.begin_signs()
        if cause in _CAUSES_OF_KNOWN_NODES:
            self.signs.fit = {each for each in before.fit if each in self.run.agents}
            self.signs.tested = {each for each in before.tested if each in self.run.agents}
        else:
            self.state.broken_links.clear()

    def run_ended(self, now: float) -> None:
        self.begin_signs()

    # Signs.

    def _ask(self, test: NetworkPairs, pairs: list[Pair], now: float) -> None:
        for pair in pairs:
            listener, other = (self.run.agents[each] for each in pair.both)
            closed = partial(self._closed, Measured(test, pair))
            self.signs.open += 1
            for agent, peer in ((listener, other), (other, listener)):
                queries.ask(
                    self.kernel, agent, PairTest, ANSWERED_WITHIN_S, closed, now,
                    listens=agent is listener, peer=peer.node_id, addr=listener.join.addr, port=listener.join.port,
                    nonce=_nonce(listener, other, now), limit_s=LIMIT_S,
                )  # fmt: skip

    def _closed(
        self, measured: Measured, kernel: Kernel, agent: Agent, query: Query, answer: QueryAnswer | None, now: float
    ) -> None:
        """Handle the answer of one of the two agents; the second answer completes the pair's result."""
        measured.left -= 1
        match answer:
            case PairTested(problem=""):
                measured.answers[agent.agent_id] = answer
            case PairTested(problem=problem):
                # The connecting side knows more, so its problem comes first.
                at = len(measured.problems) if agent.agent_id == measured.pair.listens else 0
                measured.problems.insert(at, clip(printable(problem), PROBLEM_BYTES))
            case Refused():
                measured.is_void = True
            case _:
                measured.problems.append(words.no_answer(agent.node_id, ANSWERED_WITHIN_S))
        if not measured.left and measured.test is self.signs.pairs:
            self._conclude(measured)

    def _conclude(self, measured: Measured) -> None:
        run, signs, pair = self.run, self.signs, measured.pair
        signs.open -= 1
        if measured.is_void or not all(each in run.agents for each in pair.both):
            return
        measured.test.note(pair, measured.problems[0] if measured.problems else "")
        if not measured.problems:
            figures = Figures(
                min(each.mb_per_s for each in measured.answers.values()),
                max(each.latency_s for each in measured.answers.values()),
                " and ".join(run.agents[each].node_id for each in pair.both),
            )
            if signs.slowest is None or figures.mb_per_s < signs.slowest.mb_per_s:
                signs.slowest = figures

    # The result.

    def _tested(self, fact: NetworkTested, now: float) -> None:
        """Emit the result, and tell the agents of unfit nodes to leave."""
        self.signs.result = None
        self.kernel.release()
        self.kernel.record_event("network_tested", fact.reason, now)
        if fact.warning:
            self.kernel.record_event("warning", fact.warning, now)
        self.state.broken_links = [
            *broken_links(self.run), *(BrokenLink((one, other), why) for one, other, why in fact.broken)
        ]  # fmt: skip
        for agent_id, why in fact.unfit:
            if agent := self.run.agents.get(agent_id):
                self.kernel.record_event("node_unfit", why, now, node_id=agent.node_id)
                self.kernel.note_unfit(agent.node_id, why)
                self.kernel.drain(agent, now, Cause.NODE_LEFT, why, now, unfit=True)

    rules: ClassVar[Rules] = {NetworkTested: Rule(apply=_tested)}


def broken_links(run: Run) -> Iterator[BrokenLink]:
    """Yield the failed pairs of the last test in which both agents are still part of the run."""
    links = NetworkCheck.of(run).broken_links
    return (link for link in links if all(each in run.agents for each in link.agents))


def _able(run: Run) -> list[str]:
    """Return the agents that would get a seat and can be tested, in the order of their ranks."""
    asked = (agent.join for agent in run.agents.values() if agent.join.queries)  # nearly always all agents, or none
    able = {join.agent_id for join in asked if join.secret and _TAG in join.queries}
    if len(able) < 2:
        return []
    return [agent.agent_id for agent in rank_assignment.order(run, admission.choose(run)) if agent.agent_id in able]


def _nonce(listener: Agent, other: Agent, now: float) -> str:
    """Return the nonce with which the connection of this test begins. Only the two agents know it."""
    return agent_secrets.nonce(listener.join.secret, f"{other.agent_id} {now}")


# Sentences.


def _sentence(pairs: NetworkPairs, took_s: float, slowest: Figures | None) -> str:
    nodes = len(pairs.order)
    if slowest is None:
        return words.none_passed(nodes, took_s)
    latency_ms = slowest.latency_s * 1000
    return printable(words.tested(nodes, took_s, slowest.between, slowest.mb_per_s, latency_ms))


def _unfit(run: Run, pairs: NetworkPairs, agent_id: str) -> str:
    failed = [words.failed_with(run.agents[peer].node_id, why) for peer, why in pairs.failed[agent_id].items()]
    return printable(words.unfit(run.agents[agent_id].node_id, failed))


def _warning(run: Run, pairs: NetworkPairs) -> str:
    if not pairs.undecided:
        broken = next(pairs.broken(), None)
        return _path_warning(run, *broken) if broken else ""
    nodes = completion.names({each: run.agents[each] for each in pairs.undecided})
    why = next(iter(pairs.failed[pairs.undecided[0]].values()))
    return printable(words.undecided(nodes, why))


def _path_warning(run: Run, one: str, other: str, why: str) -> str:
    return printable(words.broken_path(run.agents[one].node_id, run.agents[other].node_id, why))
