"""Stragglers: nodes of a running round whose workers have taken much longer than those of the other nodes for a while.

If all nodes report it, the policy compares the part of a step that goes into each node's own work (`Progress.work_s`).
Otherwise it compares whole steps. In lockstep, whole steps take equally long on every node, since all wait for the
slowest: then only the nodes' own work shows a straggler. If one node reports an evaluation for which the others wait,
their steps only seem longer. So by whole steps a node is a straggler only if it also falls behind. That is, it makes
fewer steps than the others in the same time.

The policy compares the nodes once in a lease, while workers report steps. A node becomes a straggler after `LOOKS`
comparisons in a row, each with new steps, above the limit. It is no longer a straggler after as many below the limit.

The limit is `straggler_factor` times the median. If nodes differ more than that anyway, the limit is the median plus
`SPREAD` times the usual distance from it. How often a node was slow is a sign; that it is a straggler is a fact.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from msgspec import Struct, field
from rdzv_protocol.events import EventKind
from rdzv_protocol.exposition import Metric, Sample
from rdzv_protocol.messages import Progress
from rdzv_protocol.shell import quoted
from rdzv_protocol.text import printable

from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel import admission, completion
from rdzv_server.core.kernel.policy import IMMEDIATELY, Finding, Policy, Rule, Rules
from rdzv_server.core.kernel.run import Cause, PolicyState, Run, Stage
from rdzv_server.core.node_history import Fault
from rdzv_server.core.policies import words

SPREAD = 6.0
LEAST_S = 0.01
"""Smallest difference in seconds that counts, even if steps are very short."""
LOOKS = 6
MOST_FOUND = 32
"""Most stragglers that one comparison finds; later comparisons find the others."""
REPLACED_AGAIN_AFTER_S = 600.0
"""Least seconds between two replacements, since each costs a restart."""
SLOW = Fault("slow", words.WAS_SLOW, for_s=3_600.0)
"""Fault of a replaced straggler. Every server excludes it for a time: else it would get its seat back."""
FOUND = Metric(
    "rdzv_stragglers_found_total", "counter", "Nodes that the server has found to be much slower than the others."
)
PRESENT = Metric("rdzv_run_stragglers", "gauge", "Nodes of the run that are much slower than the others.", ("run_id",))


class Straggler(Struct, frozen=True):
    """A node whose workers take much longer than those of the other nodes."""

    agent_id: str
    node_id: str
    of: str
    """Time that is compared: "work" for a step's own work, "step" for a whole step."""
    own_s: float
    usual_s: float
    """Median of the times of all nodes, in seconds."""
    at: float

    @property
    def times(self) -> float:
        """Ratio of the node's time to the usual one."""
        return self.own_s / max(self.usual_s, 1e-6)

    @property
    def sentence(self) -> str:
        """The straggler in one line, for people."""
        return printable(words.slow(self.node_id, self.of == "work", self.own_s, self.times, self.usual_s))


class StragglersFound(PolicyFact, frozen=True):
    """Stragglers that have been found, and ids of agents whose nodes are no longer stragglers."""

    found: tuple[Straggler, ...]
    over: tuple[str, ...] = ()


class StragglerReplaced(PolicyFact, frozen=True):
    """A node that stands by will replace this agent's node, a straggler."""

    agent_id: str


class StragglersState(PolicyState):
    stragglers: dict[str, Straggler] = field(default_factory=dict)
    """Stragglers of the running round, by agent id."""
    replaced_at: float | None = None
    """Time at which a straggler was last replaced; None if none was."""


class Comparisons(Struct):
    """Comparisons of the running round's nodes. Times are by the server's clock."""

    look_at: float | None = None
    """Time of the next comparison; None if no node has reported how long a step takes."""
    steps: dict[str, int] = field(default_factory=dict)
    """Step of each agent's workers at the last comparison."""
    done: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Times and steps of each agent's workers at their last comparisons, up to `LOOKS`."""
    looks: dict[str, int] = field(default_factory=dict)
    """For each agent, the number of comparisons in a row that contradict whether it counts as a straggler."""
    conclusion: StragglersFound | StragglerReplaced | None = None
    """Fact that follows from the last comparison, until it is applied."""


class Stragglers(Policy[StragglersState, Comparisons]):
    name = "stragglers"
    State = StragglersState
    Signs = Comparisons
    faults = (SLOW,)
    metrics = (PRESENT,)
    counters: ClassVar[Mapping[Metric, EventKind]] = {FOUND: "straggler_found"}

    def progressed(self, agent_id: str, progress: Progress, now: float) -> None:
        """Start to compare nodes with the first report of a step time, if several nodes run workers."""
        if self.signs.look_at is not None or progress.step_s is None:
            return
        if self.run.stage is Stage.RUNNING and len(self.run.running) > 1:
            self.signs.look_at = now + self.run.settings.lease_s

    def attend(self, now: float) -> None:
        """Compare the nodes if that is due and the run judges workers; the next comparison is a lease later."""
        signs = self.signs
        if signs.look_at is None:
            signs.conclusion = None
        elif self.run.suspends_judgement:
            signs.look_at, signs.conclusion = now + self.run.settings.lease_s, None
        elif now >= signs.look_at:
            signs.look_at = now + self.run.settings.lease_s
            signs.conclusion = self._compare(now) or self._replaced(now)

    def deadline(self) -> float | None:
        return IMMEDIATELY if self.signs.conclusion else self.signs.look_at

    def due(self, now: float) -> StragglersFound | StragglerReplaced | None:
        return self.signs.conclusion

    def round_opened(self, cause: Cause, now: float) -> None:
        self.state.stragglers.clear()
        self.begin_signs()

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> Mapping[str, str]:
        straggler = cls.of(run).stragglers.get(agent_id)
        return {"slow": straggler.sentence} if straggler else {}

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        found = cls.of(run).stragglers.values()
        if not found or run.stage is not Stage.RUNNING:
            return None
        slowest = max(found, key=lambda each: each.times)
        remove = words.replace if admission.lacks(run, slowest.node_id) else words.drain
        sentence, since = words.slowest(slowest.sentence, len(found) - 1), min(each.at for each in found)
        return Finding("slow", sentence, since, (remove(quoted(slowest.node_id)),))

    @classmethod
    def samples(cls, run: Run, now: float, label: str) -> Iterator[Sample]:
        yield Sample(PRESENT, len(cls.of(run).stragglers), (label,))

    def _compare(self, now: float) -> StragglersFound | None:
        """Compare the nodes. Return what the last comparisons show; None if that is nothing new."""
        of, values = _times(self.run)
        if len(values) < 2:
            return None
        usual_s = _median(values.values())
        limit_s = max(_limit(values.values(), usual_s, self.run.settings.straggler_factor), usual_s + LEAST_S)
        compared = [agent_id for agent_id in values if self._has_new_step(agent_id)]
        for agent_id in compared:
            self._note_look(agent_id, is_slow=values[agent_id] > limit_s)
        changed = [agent_id for agent_id in compared if self.signs.looks[agent_id] >= LOOKS]
        over = tuple(agent_id for agent_id in changed if agent_id in self.state.stragglers)
        if of == "step" and len(over) < len(changed):
            behind = self._behind()
            changed = [agent_id for agent_id in changed if agent_id in over or agent_id in behind]
        found = tuple(
            Straggler(agent_id, self.run.agents[agent_id].node_id, of, values[agent_id], usual_s, now)
            for agent_id in changed
            if agent_id not in self.state.stragglers
        )
        return StragglersFound(found[:MOST_FOUND], over) if changed else None

    def _behind(self) -> set[str]:
        """Return the agents whose workers have lately made clearly fewer steps than those of the other nodes."""
        took_s = {}
        for agent_id, done in self.signs.done.items():
            (began_at, began), (ended_at, ended) = done[0], done[-1]
            if agent_id in self.run.running and ended > began:
                took_s[agent_id] = (ended_at - began_at) / (ended - began)
        if not took_s:
            return set()
        limit_s = _median(took_s.values()) * (1.0 + self.run.settings.straggler_factor) / 2.0
        return {agent_id for agent_id, each_s in took_s.items() if each_s > limit_s}

    def _has_new_step(self, agent_id: str) -> bool:
        """Return whether the agent's workers have made a step since their last comparison."""
        step = self.run.progress[agent_id].progress.lowest_step
        return step is not None and step != self.signs.steps.get(agent_id)

    def _note_look(self, agent_id: str, *, is_slow: bool) -> None:
        """Count the comparisons in a row that contradict whether the node counts as a straggler."""
        signs, sign = self.signs, self.run.progress[agent_id]
        step = sign.progress.lowest_step
        assert step is not None
        signs.steps[agent_id] = step
        signs.done[agent_id] = [*signs.done.get(agent_id, []), (sign.at - sign.progress.age_s, step)][-LOOKS:]
        contradicts = is_slow != (agent_id in self.state.stragglers)
        signs.looks[agent_id] = signs.looks.get(agent_id, 0) + 1 if contradicts else 0

    def _replaced(self, now: float) -> StragglerReplaced | None:
        """Return the worst straggler's replacement if a connected node stands by and the last was long ago; or None."""
        run, state = self.run, self.state
        if not run.settings.replace_stragglers or not completion.has_standby(run) or run.succeeded:
            return None
        if state.replaced_at is not None and now < state.replaced_at + REPLACED_AGAIN_AFTER_S:
            return None
        slow = [each for each in state.stragglers.values() if each.agent_id in run.running]
        return StragglerReplaced(max(slow, key=lambda each: each.times).agent_id) if slow else None

    # Facts.

    def _found(self, fact: StragglersFound, now: float) -> None:
        self.signs.conclusion = None
        for straggler in fact.found:
            self.state.stragglers[straggler.agent_id] = straggler
            self.signs.looks.pop(straggler.agent_id, None)
            self.kernel.record_event("straggler_found", straggler.sentence, now, node_id=straggler.node_id)
        for agent_id in fact.over:
            self.signs.looks.pop(agent_id, None)
            if was := self.state.stragglers.pop(agent_id, None):
                reason = printable(words.no_longer_slow(was.node_id))
                self.kernel.record_event("straggler_over", reason, now, node_id=was.node_id)

    def _replaced_one(self, fact: StragglerReplaced, now: float) -> None:
        """Have the straggler replaced: it is cordoned for the next round (see `registry`)."""
        self.signs.conclusion, self.state.replaced_at = None, now
        straggler = self.state.stragglers[fact.agent_id]
        self.kernel.replace_node(straggler.node_id, SLOW, straggler.sentence, now)

    rules: ClassVar[Rules] = {
        StragglersFound: Rule(apply=_found, may_end_round=False),
        StragglerReplaced: Rule(apply=_replaced_one),
    }


def _times(run: Run) -> tuple[str, dict[str, float]]:
    """Return which time is compared, "work" or "step", and its seconds by id of each agent whose workers run."""
    signs = [(agent_id, run.progress[agent_id].progress) for agent_id in run.running if agent_id in run.progress]
    reports = {agent_id: progress for agent_id, progress in signs if progress.step_s is not None}
    work = {agent_id: progress.work_s for agent_id, progress in reports.items() if progress.work_s is not None}
    if len(work) == len(reports):
        return "work", work
    return "step", {agent_id: progress.step_s or 0.0 for agent_id, progress in reports.items()}


def _limit(values: Collection[float], usual_s: float, factor: float) -> float:
    usual_distance_s = _median([abs(value - usual_s) for value in values])
    return max(factor * usual_s, usual_s + SPREAD * usual_distance_s)


def _median(values: Collection[float]) -> float:
    """Return the median, the lower of two middle values, so that the slower of two nodes can be a straggler."""
    return sorted(values)[(len(values) - 1) // 2]
