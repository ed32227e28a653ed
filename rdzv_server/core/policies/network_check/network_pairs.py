"""Pairs of nodes between which the network is tested, step by step, and the nodes that the results speak against.

In the first step, each node of the first half is paired with one of the second half. A node that has passed with one
peer is fit. A node that has failed is then paired with other nodes, fit ones first, as people look for a broken node by
hand. A node that fails with two different peers, at least one of them fit, is unfit.

A node is in one test at a time. In a later test it listens if it has listened before. If no pair passes, no node is
blamed: then the nodes share the problem, such as a firewall.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

MOST_STEPS = 4
_NEAR = 8
"""Number of candidates that are tried as a node's peer: it has had at most `MOST_STEPS` peers."""


class Pair(Struct, frozen=True):
    """Agents of one test: one listens, the other connects."""

    listens: str
    connects: str

    @property
    def both(self) -> tuple[str, str]:
        return self.listens, self.connects


class Figures(Struct, frozen=True):
    """Measurements of a pair that has passed: bandwidth in 10^6 bytes a second, latency, and the two nodes' names."""

    mb_per_s: float
    latency_s: float
    between: str


class NetworkPairs:
    """One test of a round's nodes.

    Call `begin_step` and `note` in turn until there are no more pairs. All ids are agent ids.
    """

    def __init__(self, order: Sequence[str], fit: Collection[str] = ()) -> None:
        """Begin a test. `order`: ids of the agents. `fit`: agents that need no test and serve as peers of others."""
        self.order = tuple(order)
        self.fit = {each for each in order if each in fit}
        self.failed: dict[str, dict[str, str]] = {}
        """Reasons why the tests of each agent have failed, by peer."""
        self.steps = 0
        self._peers: dict[str, set[str]] = {}
        self._connects: set[str] = set()
        """Agents that did not listen when their test failed."""

    def begin_step(self) -> list[Pair]:
        """Begin the next step, and return its pairs; empty if no test can find out more."""
        undecided = [each for each in self.order if each not in self.fit and not self.is_unfit(each)]
        self.steps += 1
        if self.steps > MOST_STEPS:
            return []
        if self.steps == 1 and len(undecided) > 1:
            half = len(undecided) // 2
            pairs = [Pair(*both) for both in zip(undecided[:half], undecided[half:], strict=False)]
            undecided = undecided[2 * half :]
        else:
            pairs = []
        taken = {agent for pair in pairs for agent in pair.both}
        pairs += self._with_others(undecided, taken)
        for pair in pairs:
            self._peers.setdefault(pair.listens, set()).add(pair.connects)
            self._peers.setdefault(pair.connects, set()).add(pair.listens)
        return pairs

    def note(self, pair: Pair, problem: str) -> None:
        """Note the result of a pair. `problem`: why the test has failed; empty if it has passed."""
        if not problem:
            self.fit |= set(pair.both)
            return
        self.failed.setdefault(pair.listens, {})[pair.connects] = problem
        self.failed.setdefault(pair.connects, {})[pair.listens] = problem
        self._connects.add(pair.connects)

    def forget(self, agent_id: str) -> None:
        """Leave out an agent that is gone: its tests do not count against any node."""
        self.order = tuple(each for each in self.order if each != agent_id)
        self.fit.discard(agent_id)
        self.failed.pop(agent_id, None)
        for failures in self.failed.values():
            failures.pop(agent_id, None)

    def is_unfit(self, agent_id: str) -> bool:
        failures = self.failed.get(agent_id, {})
        return agent_id not in self.fit and len(failures) > 1 and any(peer in self.fit for peer in failures)

    @property
    def unfit(self) -> list[str]:
        return [each for each in self.order if self.is_unfit(each)]

    @property
    def undecided(self) -> list[str]:
        """Agents that have failed a test, without evidence that they are at fault."""
        return [
            each for each in self.order if each not in self.fit and self.failed.get(each) and not self.is_unfit(each)
        ]

    def broken(self) -> Iterator[tuple[str, str, str]]:
        """Yield each failed pair in which neither agent is unfit, once: the two agents, and why."""
        takes_part = [each for each in self.order if not self.is_unfit(each)]
        seen: set[str] = set()
        for one in takes_part:
            seen.add(one)
            for other, why in self.failed.get(one, {}).items():
                if other not in seen and not self.is_unfit(other):
                    yield one, other, why

    def _with_others(self, undecided: Iterable[str], taken: set[str]) -> list[Pair]:
        """Pair each of the `undecided` with a fit agent that is free, else with another undecided one."""
        pairs, left = [], deque(undecided)
        fit = deque(each for each in self.order if each in self.fit and each not in taken)
        while left:
            agent_id = left.popleft()
            peer = self._take_peer(agent_id, fit) or self._take_peer(agent_id, left)
            if peer:
                connects = agent_id in self._connects
                pairs.append(Pair(peer, agent_id) if connects else Pair(agent_id, peer))
        return pairs

    def _take_peer(self, agent_id: str, among: deque[str]) -> str | None:
        """Take the first agent in `among` that `agent_id` was not tested with; None if there is none."""
        known = self._peers.get(agent_id, ())
        for index in range(min(_NEAR, len(among))):
            if (peer := among[index]) not in known:
                del among[index]
                return peer
        return None
