"""The rules of a run, written as simply as possible: lists that are searched, and no derived state.

It is a reference for `rdzv_server.core`, and so uses none of its code. It knows which agents live, the stage of the
run, who has a seat, and the cost of every restart. Ranks and sentences are left to the invariants and to the unit
tests.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from msgspec.structs import replace
from rdzv_protocol.settings import RunSettings

LEASE_S, GRACE_S = 20.0, 1.0
RETURN_S = 3.0
"""Seconds for which others may be away after one agent is back."""
OVERDUE_S = 12.0
"""Seconds of silence after which an agent is overdue."""
DAY_S = 86_400.0
"""Seconds after which a running round ends if no agent is heard."""
TOGETHER_S = 1.0
"""Nodes that vanish within fewer seconds than this vanish together."""
JOIN_TIMEOUT_S, LAST_CALL_S = 60.0, 5.0
QUIET_S, MOST_S = 5.0, 30.0
"""Default last call of a run in seconds: since the last join, and since it began."""
WINDOW_S, COOLDOWN_S = 0.5, 40.0
RECENTLY_S = 1.0
"""An agent that waits and was heard within this many seconds is not probed."""
CAUSE_S = 1.0
"""Seconds that a run without restarts left waits for the cause of a consequence."""
FATAL = 42
START_S = 600.0
"""A failure within this many seconds of the first round is one at its start."""
HUNG = "whoever hangs"
"""Placeholder for the agent that is blamed for a hang."""
SCALE_UP_NOTICE_S = 60.0
DRAIN_S = 30.0
"""Seconds that a drain leaves to workers. A notice takes four fifths of them."""
HANG_S = 2.0
"""Seconds from the first believed suspicion of a hang to the judgement."""
SOONER_S = 1.0
"""Workers get a new deadline if it is this many seconds earlier."""


class Refused(Exception):
    """A refusal. `str(refusal)` is the error's code."""


def legal_sizes_of(settings: RunSettings) -> list[int]:
    return [
        size
        for size in range(settings.min_nodes, settings.max_nodes + 1)
        if (size in settings.legal_sizes if settings.legal_sizes else size % settings.node_unit == 0)
    ]


@dataclass
class Agent:
    name: str
    node: str
    node_rank: int | None
    joined: int
    """Number of the join, in order."""
    heard: float
    state: str = "waiting"
    round: int = 0
    absent: float | None = None
    heard_turn: int = 0
    absent_turn: int = 0
    """Order of the two if the times are equal."""
    probed_until: float | None = None
    probe_turn: int = 0
    unheard: bool = False
    """Whether it has not been heard since the server's restart, or since none was heard for long."""
    before_restart: bool = False
    """Whether the server has not heard it since the server restarted."""
    cut: bool = False
    """Whether its connection has closed since it was heard, or the server has restarted."""
    proven: float | None = None
    """Time of its answer to a probe."""

    @property
    def idle(self) -> bool:
        """Whether it does not take part in the last round: it waits, or leaves."""
        return self.state in ("waiting", "cordoned", "draining")

    is_suspect: bool = False
    """Whether only its lease decides, because others vanished with it."""
    in_grace: bool = False
    """Whether its grace decides: it is absent, and nothing has been concluded from that yet."""
    spared_since: float | None = None
    """Time at which an agent of the run was last heard, if this one has a fresh lease because none was for long then.
    """

    @property
    def uncertain(self) -> bool:
        return self.absent is not None or self.probed_until is not None or self.unheard


@dataclass
class Model:
    settings: RunSettings
    stage: str = "forming"
    round: int = 1
    restart_count: int = 0
    cause: str = "first"
    turns: int = 0
    agents: list[Agent] = field(default_factory=list)
    departed: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    """Nodes."""
    unfit: set[str] = field(default_factory=set)
    """Nodes that a check has found unfit, and that have not joined since."""
    left: set[str] = field(default_factory=set)
    """Nodes with an agent that is gone."""
    requests: set[str] = field(default_factory=set)
    """Requests of operators that were carried out."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Group ranks of the last completed round. The model gets them, because it knows no rules of ranks."""
    seated: list[str] = field(default_factory=list)
    """Participants of the last completed round, including those that are gone."""
    nodes: set[str] = field(default_factory=set)
    """Nodes of these participants."""
    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    reports: list[tuple[str, bool]] = field(default_factory=list)
    """Reporters of failures of the last completed round, and whether each was a consequence."""
    reported_at: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Verdict of a rule on each reporter's failure, and whether such an error recurs."""
    ledger: list[tuple[str, bool]] = field(default_factory=list)
    charges: list[float] = field(default_factory=list)
    """Time of each charge."""
    reached: tuple[int, int] = (-1, -1)
    """Highest recorded step and checkpoint, which the model gets; -1 for none."""
    fall: bool = False
    """Whether steps have fallen within a round."""
    trained: int = 0
    """Latest round in which workers have reported progress."""
    reached_before: tuple[int, int] = (-1, -1)
    """The same at the start of the last round."""
    step: int | None = None
    """Recorded step of the last round, which the model gets."""
    recurring: int | None = None
    """Step at which the previous round failed by an error that recurs there."""
    in_row: int = 0
    """Consecutive charged restarts."""
    fruitless: int = 0
    """Charged restarts since a round made progress."""
    lost: set[str] = field(default_factory=set)
    """Nodes of the last round that were lost at its end, or after it, by their own fault."""
    losses: dict[str, int] = field(default_factory=dict)
    """Rounds that the loss of each node has ended since a round made progress."""
    waits_until: float = 0.0
    """Time before which restarts do not begin."""
    joins: int = 0
    joined_at: float = 0.0
    lost_at: float | None = None
    opened: float = 0.0
    ended: float = 0.0
    """End of the last round."""
    enough: float | None = None
    started: float = 0.0
    scale_up_at: float | None = None
    verdict_at: float | None = None
    leaving: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Participants that leave soon: until when the others' workers may save, and the cause."""
    is_noticed: bool = False
    """Whether workers of the running round have been told that it ends, which is never retracted."""
    told: tuple[int, float] | None = None
    """Round and deadline that the workers were told last."""
    unanswered: set[str] = field(default_factory=set)
    """Agents that were told, and have not answered."""

    closings: list[tuple[float, str]] = field(default_factory=list)
    """Closes of connections while a poll was parked: the time, and the node."""
    returned_at: float = -inf
    """Time at which an absent agent was last heard again."""

    heard_at: float = float("-inf")
    certain_at: float = float("-inf")
    """Time at which an agent was last heard."""
    unheard_since: float | None = None
    """The same while people know that none is heard, otherwise None."""

    suspected: dict[tuple[str, str], float] = field(default_factory=dict)
    """Source and agent of each suspicion of a hang, and its time."""
    untold: set[tuple[str, str]] = field(default_factory=set)
    """Ids of nodes whose workers have reported no progress."""
    judge_at: float | None = None
    hangs: int = 0
    """Number of judged hangs."""
    is_judged: bool = False
    """Whether the hang has been reported, and nothing follows."""

    def find(self, name: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.name == name), None)

    def in_state(self, *states: str) -> list[Agent]:
        return [agent for agent in self.agents if agent.state in states]

    def fitting(self, nodes: int) -> int:
        """Return the largest legal number of nodes up to `nodes`, 0 if there is none."""
        return max((size for size in self.legal if size <= nodes), default=0)

    @property
    def legal(self) -> list[int]:
        return legal_sizes_of(self.settings)

    @property
    def over(self) -> bool:
        return self.stage in ("succeeded", "failed")

    @property
    def root(self) -> str | None:
        """Return the agent whose failure is blamed for the round's end."""
        primary = [name for name, is_consequence in self.reports if not is_consequence]
        return (primary or [name for name, _ in self.reports] or [None])[0]

    # Events.

    def join(
        self, name: str, node: str, node_rank: int | None, after_round: int, now: float, *, is_unfit: bool = False
    ) -> None:
        agent = self.find(name)
        if agent is None:
            self._newcomer(name, node, node_rank, after_round, now, is_unfit)
        elif (agent.node, agent.node_rank) != (node, node_rank):
            raise Refused("malformed_message")
        elif self.over:
            pass
        elif agent.state == "stopping" and after_round == agent.round:
            self._heard(agent, now)
            self._wait(agent, now)
            self._conclude(now)
        elif not agent.uncertain or (agent.absent is not None and agent.probed_until is None):
            self._heard(agent, now)
        self.pass_time(now)

    def _newcomer(
        self, name: str, node: str, node_rank: int | None, after_round: int, now: float, is_unfit: bool
    ) -> None:
        if name in self.departed or after_round > 0:
            raise Refused("agent_fenced")
        if self.over:
            return
        rivals = [agent for agent in self.agents if node_rank is not None and agent.node_rank == node_rank]
        claimed = [agent for agent in self.agents if agent.node == node or agent in rivals]
        if any(self._is_proven(rival, now) for rival in rivals):
            raise Refused("node_rank_taken")
        for agent in claimed:
            has_just_joined = (
                agent.state in ("waiting", "cordoned") and now < agent.heard + RECENTLY_S and not agent.uncertain
            )
            is_gone = self._is_gone(agent)
            if not is_gone and not self._is_proven(agent, now) and (agent in rivals or not has_just_joined):
                self._probe(agent, now)
        if any(not self._is_gone(rival) for rival in rivals):
            return
        for agent in [agent for agent in claimed if self._is_gone(agent)]:
            is_blameless = agent.node != node and self._is_suspect(agent)
            self._depart(agent, "node_lost", now, is_blameless=is_blameless)
        if is_unfit:
            self.departed.add(name)
            self.unfit.add(node)
            self._conclude(now)
            return
        self.unfit.discard(node)
        agent = Agent(name, node, node_rank, 0, now)
        self.agents.append(agent)
        self._heard(agent, now)
        self._wait(agent, now)
        self._give_up()
        self._conclude(now)

    def _is_gone(self, agent: Agent) -> bool:
        """Return whether a new agent with its name takes its place at once."""
        return agent.absent is not None or agent.spared_since is not None or self.unheard_since is not None

    def _give_up(self) -> None:
        """Take back the leases given to silent participants, if as many new agents wait as the round has seats."""
        participants = [agent for agent in self.agents if not agent.idle]
        certain = [a for a in self.in_state("waiting") if not a.uncertain and a.name not in self.seated]
        since = [agent.spared_since for agent in participants if agent.spared_since is not None]
        if since and len(since) == len(participants) and len(certain) >= len(self.seated):
            for place, agent in enumerate(participants):
                agent.heard, agent.heard_turn = max(since), -self._turn() - place

    def _is_proven(self, agent: Agent, now: float) -> bool:
        return not agent.uncertain and agent.proven is not None and now < agent.proven + LEASE_S

    def _probe(self, agent: Agent, now: float) -> None:
        if agent.probed_until is None:
            agent.probed_until = now + LEASE_S / 2 * (1.5 if agent.state == "stopping" else 1)
            agent.probe_turn = self._turn()

    def restart(self, names: list[str], now: float) -> None:
        """`names`: the order in which the agents get their fresh leases."""
        for name in [] if self.over else names:
            agent = self.find(name)
            assert agent is not None
            self._heard(agent, now)
            agent.unheard, agent.cut, agent.proven, agent.before_restart = True, True, None, True
            agent.is_suspect = self.unheard_since is not None
        self.told, self.closings = None, []

    def fail(
        self,
        name: str,
        round: int,
        exit_code: int,
        is_consequence: bool,
        now: float,
        *,
        verdict: str = "count",
        recurs: str = "unknown",
    ) -> None:
        """`verdict`: that of the user's rules. `recurs`: where such an error recurs, start or step."""
        is_fatal = exit_code == FATAL or verdict == "fatal"
        if not self.over and self._is_news(name, round, is_fatal=is_fatal):
            reporter = self.find(name)
            assert reporter is not None
            self._heard(reporter, now)
            self.failed.add(name)
            self.reports.append((name, is_consequence))
            self.reported_at[name] = now
            self.kinds[name] = verdict, recurs
            if is_fatal:
                self.stage = "failed"
            elif self.stage == "running" and name in self.leaving:
                self._turn_after_notice(now)
                self._conclude(now)
            elif self.stage == "running":
                self._answer(name, is_consequence, now)
            elif self.root == name and self.cause in ("worker_failure", "retried"):
                if self._may_restart(name, now):
                    self.cause = self._cause_of(name)
                elif not self._missing(name):
                    self.stage = "failed"
        self.pass_time(now)

    def suspect(
        self, name: str, round: int, source: str, is_back: bool, now: float, *, is_untold: bool = False
    ) -> None:
        """An agent's workers seem to hang, by this source. `is_back`: they no longer do."""
        agent = self.find(name)
        if agent is None or name not in self.seated or self.stage != "running" or round != self.round:
            raise Refused("stale_round")
        self._heard(agent, now)
        key = source, name
        if is_back:
            self.suspected.pop(key, None)
        elif agent.state == "running" and key not in self.suspected:
            self.suspected[key] = now
            (self.untold.add if is_untold else self.untold.discard)(key)
        self._conclude(now)
        self.pass_time(now)

    def believed(self) -> dict[tuple[str, str], float]:
        """Silence counts if all agents with running workers are silent.

        The suspicion of a node without progress counts if no node of the run has reported any in this round.
        """
        silent = {name for source, name in self.suspected if source == "silence"}
        all_silent = {agent.name for agent in self.in_state("running")} <= silent
        left_out = set() if self.trained != self.round else {key for key in self.untold if key[0] != "silence"}
        left_out |= set() if all_silent else {key for key in self.suspected if key[0] == "silence"}
        return {key: at for key, at in self.suspected.items() if key not in left_out}

    def _weigh(self, now: float) -> None:
        running = {agent.name for agent in self.in_state("running")}
        self.suspected = {key: at for key, at in self.suspected.items() if key[1] in running}
        if self.unheard_since is not None or self.is_noticed:
            self.judge_at = None
        elif not self.believed():
            self.judge_at, self.is_judged = None, False
        elif self.judge_at is None and not self.is_judged:
            self.judge_at = now + HANG_S

    def _judge(self, now: float) -> None:
        """The core chooses the blamed agent, one of those that are believed."""
        self.judge_at, self.is_judged = None, True
        self.hangs += 1
        if self.settings.on_hang == "report":
            return
        self.reports.insert(0, (HUNG, False))
        if self.settings.on_hang == "fail" or self._is_stuck(now) or not self._has_restarts_after_hangs(now):
            self.stage = "failed"
        else:
            self._open("hang", now)

    def _has_restarts_after_hangs(self, now: float) -> bool:
        if self.settings.max_hang_restarts is None:
            return self._has_restarts(now)
        return sum(cause == "hang" for cause, _ in self.ledger) < self.settings.max_hang_restarts

    def _has_restarts(self, now: float) -> bool:
        counting = [
            at
            for at in self.charges
            if self.settings.restart_window_s is None or at > now - self.settings.restart_window_s
        ]
        return len(counting) < self.settings.max_restarts

    def _got_further(self) -> bool:
        return any(now > before for now, before in zip(self.reached, self.reached_before, strict=True))

    def _lasted(self, now: float) -> bool:
        return now - self.started >= 2 * self.settings.restart_backoff_max_s

    def _is_stuck(self, now: float) -> bool:
        """Return whether restarts have made no progress often enough."""
        return (
            self.settings.max_restarts_without_progress is not None
            and self._fruitless(now) >= self.settings.max_restarts_without_progress
        )

    def _fruitless(self, now: float) -> int:
        """Return the restarts without progress if the last round ends now.

        Without reported steps, or if they have fallen within a round, time decides, too.
        """
        tells = self.reached != (-1, -1) and not self.fall
        return 0 if self._got_further() or (not tells and self._lasted(now)) else self.fruitless

    def _in_row(self, now: float) -> int:
        return 0 if self._got_further() or self._lasted(now) else self.in_row

    def _cause_of(self, name: str) -> str:
        return "retried" if self.kinds[name][0] == "retry" else "worker_failure"

    def _may_restart(self, name: str, now: float) -> bool:
        """Return whether a restart answers the failure that this agent has reported."""
        verdict, recurs = self.kinds[name]
        is_start = self.reached == (-1, -1) and not self.ledger and now < self.started + START_S
        if verdict == "retry":
            return True
        is_same_step = self.step is not None and self.step == self.recurring and not self.fall
        if self.settings.fail_when_hopeless and ((recurs, True) in (("at_start", is_start), ("at_step", is_same_step))):
            return False
        return self._has_restarts(now) and not self._is_stuck(now)

    def _answer(self, name: str, is_consequence: bool, now: float) -> None:
        others = [agent for agent in self.in_state("running") if agent.name not in self.failed]
        if self._may_restart(name, now):
            self._open(self._cause_of(name), now)
            self._conclude(now)
        elif self._missing(name):
            self.verdict_at, self.scale_up_at = now if self.verdict_at is None else self.verdict_at, None
        elif (not is_consequence or not others) and self._leave_explains_root():
            self._turn_after_notice(now)
            self._conclude(now)
        elif not is_consequence or not others:
            self.stage = "failed"
        elif self.verdict_at is None:
            self.verdict_at, self.scale_up_at = now + CAUSE_S, None

    def succeed(self, name: str, round: int, now: float) -> None:
        if not self.over and self._is_news(name, round):
            agent = self.find(name)
            assert agent is not None
            self._heard(agent, now)
            if agent.state == "running":
                agent.state = "succeeded"
                self.finished.add(name)
                self._conclude(now)
        self.pass_time(now)

    def leave(self, name: str, now: float, *, retracts_success: bool = False, is_unfit: bool = False) -> None:
        if not self.over and name not in self.departed:
            agent = self.find(name)
            if agent is None:
                raise Refused("agent_fenced")
            if retracts_success and agent.state == "succeeded":
                agent.state = "running"
                self.finished.discard(name)
            self._depart(agent, "node_left", now)
            if is_unfit:
                self.unfit.add(agent.node)
            self._conclude(now)
        self.pass_time(now)

    def announce(self, name: str, notice_s: float, now: float) -> None:
        """The agent leaves as soon as all workers have saved."""
        if not self.over and name not in self.departed:
            agent = self.find(name)
            if agent is None:
                raise Refused("agent_fenced")
            self._heard(agent, now)
            if name not in self.leaving and agent.state != "draining":
                self.leaving[name] = (now + notice_s, "node_left")
                if agent.state != "running" or self.stage != "running":
                    self._release(name, now)
                else:
                    self.is_noticed = True
            self._conclude(now)
        self.pass_time(now)

    def answer_notice(self, name: str, now: float) -> None:
        self.unanswered.discard(name)
        self.pass_time(now)

    def disconnect(self, name: str, now: float) -> None:
        agent = self.find(name)
        if agent is not None:
            agent.cut = True
        if agent is not None and agent.spared_since is not None:
            agent.unheard = True
        elif agent is not None and agent.absent is None:
            agent.absent, agent.absent_turn = now, self._turn()
            agent.in_grace = True
            if len(self.agents) > 1 and all(each.uncertain for each in self.agents):
                agent.is_suspect = True
            self.closings.append((now, agent.node))
        self.pass_time(now)

    def hear(self, name: str, now: float) -> None:
        if agent := self.find(name):
            self._heard(agent, now)
            if not self.over:
                self._conclude(now)
        self.pass_time(now)

    def pass_time(self, now: float) -> None:
        self._tell(now)
        self._pass_time(now)
        self._tell(now)

    def _pass_time(self, now: float) -> None:
        while not self.over:
            for agent in self._presumed_lost(now):
                self._depart(agent, "node_lost", now, is_blameless=self._is_suspect(agent))
                self._conclude(now)
            if self._loses_in_vain():
                self.stage = "failed"
                return
            if now >= self.waits_until and self._is_ready():
                self._complete(now)
                self._conclude(now)
            probed = sorted((a for a in self.agents if a.probed_until is not None), key=lambda a: a.probe_turn)
            unproven = [a for a in probed if a.probed_until is not None and now >= a.probed_until]
            silent = sorted(self.agents, key=lambda a: a.heard_turn)
            if absent := self._out_of_grace(now):
                self._depart(absent, "node_lost", now)
            elif unproven:
                self._depart(unproven[0], "node_lost", now)
            elif silent and now >= silent[0].heard + LEASE_S and self._counts_from_close(silent[0]):
                self._count_from_closes()
            elif silent and now >= silent[0].heard + LEASE_S and self._counts(silent[0]):
                others = [each for each in silent if each.node != silent[0].node and now > each.heard + OVERDUE_S]
                is_shared = bool(others) or self._is_suspect(silent[0])
                is_blameless = is_shared or self.heard_at < silent[0].heard + OVERDUE_S
                for other in others[:1]:
                    other.unheard = other.is_suspect = True
                self._depart(silent[0], "node_lost", now, is_blameless=is_blameless)
            elif self.stage == "running" and self._has_news_of_contact(now):
                pass
            elif self.unheard_since is not None:
                return
            elif self._last_call_is_over(now):
                self._complete(now)
            elif self._starves(now):
                self.stage = "failed"
            elif self.verdict_at is not None and now >= self._decides_at():
                assert self.root
                if self._leave_explains_root():
                    self._turn_after_notice(now)
                elif self._may_restart(self.root, now):
                    self._open(self._cause_of(self.root), now)
                else:
                    self.stage = "failed"
            elif self.stage == "running" and self.judge_at is not None and now >= self.judge_at:
                self._judge(now)
            elif self._notice_is_over(now):
                self._turn_after_notice(now)
            elif self.stage == "running" and self.scale_up_at is not None and now >= self.scale_up_at:
                self._open("node_arrived", now)
            else:
                return
            self._conclude(now)

    def _out_of_grace(self, now: float) -> Agent | None:
        """Return an agent whose connection closed too long ago, if no other node's did at the same time and one is
        heard.
        """
        absent = sorted((agent for agent in self.agents if agent.in_grace), key=lambda a: a.absent_turn)
        for agent in absent if any(not agent.uncertain for agent in self.agents) else ():
            assert agent.absent is not None
            if now < agent.absent + GRACE_S or agent.absent + GRACE_S > self.heard_at + OVERDUE_S:
                break
            if not agent.is_suspect and not self._vanished_together(agent):
                return agent
            agent.is_suspect, agent.in_grace = True, False
        return None

    def _counts_from_close(self, agent: Agent) -> bool:
        """Return whether its lease must count from its connection's close, and does not yet because others vanished
        with it.
        """
        return (
            self._is_suspect(agent)
            and agent.absent is not None
            and agent.heard < agent.absent <= agent.heard + OVERDUE_S
        )

    def _count_from_closes(self) -> None:
        for agent in filter(self._counts_from_close, self.agents):
            assert agent.absent is not None
            agent.heard = agent.absent
        for agent in sorted(self.agents, key=lambda a: (a.heard, a.heard_turn)):
            agent.heard_turn = self._turn()

    def _counts(self, silent: Agent) -> bool:
        """Return whether an expired lease counts: while workers run, another agent must have been heard since."""
        return self.stage != "running" or self.heard_at >= silent.heard + OVERDUE_S

    def _has_news_of_contact(self, now: float) -> bool:
        """Return whether the run has lost the contact with all its agents, regained it, or ends because of that."""
        is_any_certain = any(not agent.uncertain for agent in self.agents)
        if self.unheard_since is None:
            if not self.agents or now < self.heard_at + LEASE_S:
                return False
            self.unheard_since = self.heard_at
            for agent in self.agents:
                agent.unheard = agent.is_suspect = True
        elif is_any_certain:
            self.unheard_since = None
        elif now >= self.unheard_since + DAY_S:
            self.stage = "failed"
        else:
            return False
        return True

    def _is_suspect(self, agent: Agent) -> bool:
        """Return whether the path to the agent may be broken, since others vanished with it."""
        return agent.is_suspect or self._vanished_together(agent)

    def _vanished_together(self, agent: Agent) -> bool:
        others, absent = (at for at, node in self.closings if node != agent.node), agent.absent
        return absent is not None and any(absent - TOGETHER_S < at < absent + TOGETHER_S for at in others)

    # Operators.

    def operate(self, request: str, kind: str, now: float, *about: Any) -> None:
        """Carry out a request once. A request about a node does not concern a run that is over."""
        if request not in self.requests and not (self.over and kind in ("cordon", "uncordon", "drain")):
            if kind == "admit":
                self._check_admission()
            elif kind == "resize" and not legal_sizes_of(self._resized(*about)):
                raise Refused("malformed_message")
            elif self.over:
                raise Refused("run_ended")
            self.requests.add(request)
            getattr(self, f"_{kind}")(*about, now)
            self._conclude(now)
        self.pass_time(now)

    def _restart(self, now: float) -> None:
        if self.stage == "running":
            self._open("run_restarted", now)
        self.waits_until = 0.0

    def _resize(self, low: int, high: int, now: float) -> None:
        self.settings = self._resized(low, high)
        if self.stage == "running" and len(self.in_state("running")) > max(self.legal) and not self.finished:
            self._open("run_resized", now)

    def _resized(self, low: int, high: int) -> RunSettings:
        return replace(self.settings, min_nodes=low, max_nodes=high)

    def _check_admission(self) -> None:
        if self.stage != "running" or self._admitted() <= 0:
            raise Refused("nobody_waits")

    def _admitted(self) -> int:
        """Return the number of waiting agents that a larger round would have room for."""
        running = len(self.in_state("running"))
        return 0 if self.finished else self.fitting(running + len(self.in_state("waiting"))) - running

    def _admit(self, now: float) -> None:
        self._open("node_arrived", now)

    def _cordon(self, node: str, now: float) -> None:
        self.cordoned.add(node)
        for agent in self._of(node, "waiting"):
            agent.state = "cordoned"

    def _uncordon(self, node: str, now: float) -> None:
        self.cordoned.discard(node)
        for agent in self._of(node, "cordoned"):
            self._wait(agent, now)

    def _drain(self, node: str, now: float) -> None:
        self._cordon(node, now)
        for agent in self._of(node, "cordoned", "running", "stopping", "succeeded"):
            if self.settings.notice_timeout_s is not None and agent.state == "running" and self.stage == "running":
                until = now + min(self.settings.notice_timeout_s, 0.8 * DRAIN_S)
                self.leaving[agent.name] = (min(until, self.leaving.get(agent.name, (until,))[0]), "node_drained")
                self.is_noticed = True
                continue
            self.leaving.pop(agent.name, None)
            was, agent.state = agent.state, "draining"
            self._lose_place(agent, was, "node_drained", now, explains=False)

    def _of(self, node: str, *states: str) -> list[Agent]:
        return [agent for agent in self.in_state(*states) if agent.node == node]

    # Rules.

    def _is_news(self, name: str, round: int, *, is_fatal: bool = False) -> bool:
        agent = self.find(name)
        if agent is None:
            raise Refused("agent_fenced")
        if name in self.failed or name in self.finished:
            return False
        if agent.state == "draining":
            return is_fatal and agent.round == round
        overtaken = agent.state in ("waiting", "cordoned") and self.stage == "forming" and name in self.seated
        if not (agent.state in ("running", "stopping") or overtaken) or agent.round != round:
            raise Refused("stale_round")
        return True

    def _heard(self, agent: Agent, now: float) -> None:
        if now > self.heard_at + OVERDUE_S:
            for other in sorted(self.agents, key=lambda a: a.heard_turn):
                self._spare(other, now)
        self.heard_at = now
        if agent.uncertain:
            self.certain_at = now
        if agent.absent is not None:
            self.returned_at = now
        agent.heard, agent.heard_turn, agent.absent, agent.unheard = now, self._turn(), None, False
        agent.is_suspect, agent.in_grace, agent.spared_since, agent.cut = False, False, None, False
        agent.before_restart = False
        if agent.probed_until is not None:
            agent.probed_until, agent.proven = None, now

    def _spare(self, agent: Agent, now: float) -> None:
        """Give the agent a fresh lease, once until it is heard."""
        agent.unheard = agent.is_suspect = True
        if agent.spared_since is None:
            agent.spared_since, agent.heard, agent.heard_turn = self.heard_at, now, self._turn()
            agent.absent, agent.in_grace = None, False
            if agent.probed_until is not None:
                agent.probed_until = max(agent.probed_until, now + GRACE_S)

    def _turn(self) -> int:
        self.turns += 1
        return self.turns

    def _wait(self, agent: Agent, now: float) -> None:
        self.joins += 1
        agent.state, agent.joined = "cordoned" if agent.node in self.cordoned else "waiting", self.joins
        self.joined_at = now if agent.state == "waiting" else self.joined_at

    def _depart(self, agent: Agent, cause: str, now: float, *, is_blameless: bool = False) -> None:
        counts = cause == "node_lost" and agent.state != "draining" and agent.name not in self.leaving
        counts = counts and not agent.before_restart
        self.agents.remove(agent)
        self.heard_at = min(self.heard_at, max((other.heard for other in self.agents), default=self.heard_at))
        self.leaving.pop(agent.name, None)
        self.unanswered.discard(agent.name)
        self.departed.add(agent.name)
        self.left.add(agent.node)
        shows_loss = self.cause != "hang" and self._lost_others()
        is_drained = cause == "node_drained" or (agent.state == "draining" and (cause != "node_lost" or not shows_loss))
        self._lose_place(agent, agent.state, cause, now, explains=not is_drained)
        counts = counts and (not is_blameless or len(self.seated) == 1)
        if counts and self.stage == "forming" and agent.name in self.seated:
            self.lost.add(agent.node)

    def _loses_in_vain(self) -> bool:
        """Return whether a node was lost once too often without progress."""
        if self.settings.max_restarts_without_progress is None or (self.stage, self.cause) != ("forming", "node_lost"):
            return False
        losses = self._fruitless_losses()
        return any(
            losses.get(node, 0) >= self.settings.max_restarts_without_progress for node in self.lost - self.cordoned
        )

    def _fruitless_losses(self) -> dict[str, int]:
        """Return the losses of each node without progress, if the last round ends now.

        If only time shows progress, a round without the node does so, too.
        """
        tells = self.reached != (-1, -1) and not self.fall
        if self._got_further() or (not tells and self._lasted(self.ended)):
            return {}
        nodes = self.losses if tells else self.losses.keys() & self.nodes
        return {node: self.losses[node] for node in nodes}

    def _lose_place(self, agent: Agent, was: str, cause: str, now: float, *, explains: bool = True) -> None:
        if was == "running" or self._has_lost_its_reason():
            self._open(cause, now)
            self.lost_at = now
            return
        free = self.cause == "node_arrived" or (explains and self.cause in ("worker_failure", "hang", "retried"))
        if self.stage == "forming" and agent.name in self.seated:
            self.lost_at = now
        if self.stage == "forming" and agent.name in self.seated and free:
            self.cause, self.waits_until = cause, 0.0

    def _missing(self, reporter: str | None) -> list[Agent]:
        """Return the participants whose loss would explain a failure of this reporter, or of any."""
        return [
            agent
            for agent in self.agents
            if agent.cut and agent.uncertain and not agent.idle and agent.name != reporter
        ]

    def _decides_at(self) -> float:
        """Return when the run ends over its failure: never while a participant may be lost, or owes a sign of life."""
        assert self.root and self.verdict_at is not None
        others = [agent for agent in self.in_state("running") if agent.name not in self.failed]
        if self._missing(None):
            return float("inf")
        if not self._lost_others() or not others:
            return self.verdict_at
        since = self.reported_at[self.root]
        if not self._leave_explains_root() and any(agent.uncertain or agent.heard < since for agent in others):
            return float("inf")
        return max(self.verdict_at, self.certain_at + CAUSE_S)

    def _presumed_lost(self, now: float) -> list[Agent]:
        """Return the participants that the round waits for as the last: all vanished, and others' workers failed."""
        stopping, is_enough = self.in_state("stopping"), len(self.in_state("waiting")) >= min(self.legal)
        others = [agent for agent in self.agents if agent not in stopping]
        if self.stage != "forming" or now < self.waits_until or not is_enough or self._is_uncertain(others):
            return []
        are_all = all(agent.absent is not None and self.failed - {agent.name} for agent in stopping)
        if are_all and any(map(self._is_suspect, stopping)):
            graces_end = max((each.absent or 0.0) for each in stopping) + GRACE_S
            are_all = self._lost_others() and now >= max(graces_end, self.returned_at + RETURN_S)
        return stopping if are_all else []

    def _lost_others(self) -> bool:
        """Return whether the failures show lost peers. Nodes that vanished together are then gone."""
        return bool(self.reports) and all(is_consequence for _, is_consequence in self.reports)

    def _starves(self, now: float) -> bool:
        is_over = self.stage == "forming" and self.enough is None and now >= self.opened + JOIN_TIMEOUT_S
        return is_over and not self._is_uncertain()

    def _last_call_is_over(self, now: float) -> bool:
        if self.stage != "forming" or self.enough is None or self.in_state("stopping") or self._is_uncertain():
            return False
        if now < self.waits_until:
            return False
        if self._awaits_replacement():
            assert self.lost_at is not None
            return now >= self.lost_at + self.settings.shrink_after_s
        if self.settings.last_call_timeout_s is not None:
            return now >= self.enough + self.settings.last_call_timeout_s
        return now >= self.enough + MOST_S or now >= max(self.enough, self.joined_at) + QUIET_S

    def _survivors(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.name in self.seated and agent.state != "draining"]

    def _awaits_replacement(self) -> bool:
        if not self.settings.shrink_after_s or self.lost_at is None or not self._survivors():
            return False
        return self.fitting(len(self.in_state("waiting"))) < self.fitting(len(self.seated))

    def _is_uncertain(self, among: list[Agent] | None = None) -> bool:
        """Return whether an agent that would get a seat may be dead."""
        seatless = self.in_state("cordoned", "draining")
        others = [agent for agent in (self.agents if among is None else among) if agent not in seatless]
        return any(
            agent.uncertain for agent in (self._chosen() if len(self.in_state("waiting")) > max(self.legal) else others)
        )

    def _chosen(self) -> list[Agent]:
        waiting = sorted(self.in_state("waiting"), key=lambda a: (a.name not in self.seated, a.joined))
        old = [agent for agent in waiting if agent.name in self.seated]
        seats = self.fitting(len(waiting))
        if len(old) > seats:
            return sorted(old, key=lambda a: self.ranks[a.name])[:seats]
        return waiting[:seats]

    def _open(self, cause: str, now: float) -> None:
        self.stage, self.round, self.cause = "forming", self.round + 1, cause
        self.unheard_since = None
        self.ended = now
        self.opened, self.enough, self.scale_up_at, self.verdict_at, self.lost_at = now, None, None, None, None
        self.waits_until, in_row, self.is_noticed = 0.0, self._in_row(now), False
        if cause in ("worker_failure", "hang", "retried") and in_row and self.settings.restart_backoff_s:
            self.waits_until = now + min(
                self.settings.restart_backoff_s * 2 ** (in_row - 1), self.settings.restart_backoff_max_s
            )
        self.suspected, self.judge_at, self.is_judged = {}, None, False
        for agent in self.in_state("running", "succeeded"):
            agent.state = "stopping"

    # Notices.

    def _soon(self) -> tuple[float, str] | None:
        """Return time and cause of the running round's announced end, None if none is announced."""
        if self.stage != "running":
            return None
        if self.leaving:
            return min((until, name, cause) for name, (until, cause) in self.leaving.items())[::2]
        if self.settings.scale_up == "on-notice" and self.scale_up_at is not None:
            return self.scale_up_at, "node_arrived"
        return None

    def _leave_explains_root(self) -> bool:
        return self.root in self.leaving or (bool(self.leaving) and self._lost_others())

    def _has_lost_its_reason(self) -> bool:
        """Return whether workers were told that the running round ends, and the reason for it is gone."""
        return self.stage == "running" and self.is_noticed and self.verdict_at is None and self._soon() is None

    def _tell(self, now: float) -> None:
        soon = self._soon()
        if soon is None:
            self.told, self.unanswered = None, set()
        elif self.told is None or self.told[0] != self.round or soon[0] < self.told[1] - SOONER_S:
            self.told = self.round, soon[0]
            self.unanswered = {agent.name for agent in self.in_state("running")} if soon[0] > now else set()

    def _notice_is_over(self, now: float) -> bool:
        soon = self._soon()
        all_answered = self.told is not None and self.told[0] == self.round and not self.unanswered
        return soon is not None and (now >= soon[0] or all_answered)

    def _turn_after_notice(self, now: float) -> None:
        soon, self.is_noticed = self._soon(), False
        assert soon
        for name in list(self.leaving):
            self._release(name, now)
        if self.stage == "running":
            self._open(soon[1], now)

    def _release(self, name: str, now: float) -> None:
        agent, (_, cause) = self.find(name), self.leaving.pop(name)
        assert agent
        was, agent.state = agent.state, "draining"
        self._lose_place(agent, was, cause, now)

    def _conclude(self, now: float) -> None:
        for name in list(self.leaving) if self.stage == "forming" else ():
            self._release(name, now)
        if self.stage == "forming":
            self._watch(now)
            if self._has_too_few_fit_nodes():
                self.stage = "failed"
        elif self.stage == "running":
            if self.finished == set(self.seated):
                self.stage = "succeeded"
            elif self.verdict_at is None:
                self._plan_scale_up(now)
        if self.stage == "running":
            self._weigh(now)

    def _has_too_few_fit_nodes(self) -> bool:
        """Return whether too few of a fixed number of nodes are fit. Before its first round, a run waits until it has
        heard of all nodes.
        """
        if self.settings.fixed_nodes is None or self.enough is not None:
            return False
        present = {agent.node for agent in self.agents}
        unfit = self.unfit - present
        if not unfit or (not self.seated and len(present | unfit | self.left) < self.settings.fixed_nodes):
            return False
        fit = len(self.agents) - len(self.in_state("draining"))
        return max(self.settings.fixed_nodes - len(unfit), fit) < min(self.legal)

    def _watch(self, now: float) -> None:
        joined = len(self.in_state("waiting"))
        if joined < min(self.legal) and self.enough is not None:
            self.enough, self.opened = None, now
        elif joined >= min(self.legal) and self.enough is None:
            self.enough = now

    def _is_ready(self) -> bool:
        joined = len(self.in_state("waiting"))
        if self.stage != "forming" or self.in_state("stopping") or self._is_uncertain():
            return False
        goes_on = self._survivors() and not self._awaits_replacement()
        return joined >= max(self.legal) or bool(goes_on and joined >= min(self.legal))

    def _complete(self, now: float) -> None:
        if self.cause != "first":
            is_charged = self.cause in ("worker_failure", "hang")
            self.ledger.append((self.cause, is_charged))
            self.restart_count += is_charged
            self.in_row = self._in_row(self.ended) + (is_charged or self.cause == "retried")
            self.fruitless = self._fruitless(self.ended) + is_charged
            self.losses = self._fruitless_losses()
            for node in self.lost if self.cause == "node_lost" else ():
                self.losses[node] = self.losses.get(node, 0) + 1
            self.reached_before = self.reached
            is_recurring = self.root in self.kinds and self.kinds[self.root][1] == "at_step"
            self.step, self.recurring = None, self.step if is_recurring else None
            spends = is_charged and (self.cause != "hang" or self.settings.max_hang_restarts is None)
            self.charges += [now] * spends
        chosen = self._chosen()
        for agent in chosen:
            agent.state, agent.round = "running", self.round
        self.seated, self.nodes, self.lost = [agent.name for agent in chosen], {agent.node for agent in chosen}, set()
        self.stage, self.started = "running", now
        self.finished, self.failed, self.reports, self.kinds = set(), set(), [], {}

    def _plan_scale_up(self, now: float) -> None:
        waiting, running = len(self.in_state("waiting")), len(self.in_state("running"))
        if self.settings.scale_up == "on-notice" and self.scale_up_at is not None:
            return
        if self.settings.scale_up == "manual" or self._admitted() <= 0:
            self.scale_up_at = None
            return
        if self.settings.scale_up == "on-notice":
            self.is_noticed = True
            self.scale_up_at = now + (
                SCALE_UP_NOTICE_S if self.settings.notice_timeout_s is None else self.settings.notice_timeout_s
            )
        elif running + waiting >= max(self.legal):
            self.scale_up_at = now
        elif self.scale_up_at is None:
            self.scale_up_at = now + WINDOW_S
        if self.settings.scale_up == "cooldown":
            self.scale_up_at = max(self.scale_up_at, self.started + COOLDOWN_S)
