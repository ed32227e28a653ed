"""The runs of a server, each attempt with its machine, and the rules for what comes after an end.

A succeeded run is remembered for the retention time: an agent that comes late for its explicit run id is told so,
and `--rerun` starts it again. After a failure, or without an explicit run id, a new agent begins a new attempt. So does
an agent that finds a run which every node has left, if it names no run id, or asks for other settings than the run's.
"""

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest

from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
    RunFailed,
    RunGoesOn,
    RunSucceeded,
    ServerUnavailable,
    UnknownNode,
    UnknownRun,
)
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.text import clip

from rdzv_server.core import admission, events, snapshot
from rdzv_server.core.cordons import JOURNAL, MOST_CORDONS, Cordons
from rdzv_server.core.effects import Effect, ForgetRun, Happened, Record
from rdzv_server.core.events import (
    EXCLUDER,
    CordonsKept,
    Event,
    Life,
    NodeJoined,
    RunCreated,
    RunSuperseded,
    TimePassed,
)
from rdzv_server.core.machine import RunMachine
from rdzv_server.core.node_history import REASON_BYTES, Blame, ExclusionPolicy
from rdzv_server.core.run import HEARD_OF_S, Run, Stage

Key = tuple[str, int]
"""Key of an attempt: run_id and attempt number."""

RETENTION_S = 3_600.0
"""Seconds that an ended run is remembered: an hour by default, for people to look and late agents to be told."""
MOST_RUNS = 10_000
"""Most runs of a server by default, as many as its memory is meant for."""

SPARE_DEADLINES = 64
"""Stale deadlines that are tolerated, beyond one for each run, before they are dropped."""
ROOM = 100
"""Divisor of all attempts: a hundredth is forgotten at once when there is no room, as finding them takes time."""


SLOW_NODES = ExclusionPolicy(after=1, window_s=3_600.0, for_s=3_600.0)
"""Exclusion of a replaced straggler on a server that excludes no nodes otherwise: else it would get its seat back."""


class Registry:
    """Attempts of all runs, at most `max_runs`. `retention_s`: seconds for which an ended one is remembered."""

    def __init__(
        self,
        retention_s: float,
        max_runs: int = MOST_RUNS,
        *,
        knows_all_runs: bool = True,
        exclusion: ExclusionPolicy | None = None,
    ) -> None:
        """Begin without runs. `exclusion`: policy by which the server keeps a node out by itself; None: never."""
        self._retention_s = retention_s
        self._max_runs = max_runs
        self._machines: dict[Key, RunMachine] = {}
        self._attempts: dict[str, list[int]] = {}
        """Numbers of the attempts of each run that are remembered, in their order: the first is forgotten first, so
        that a server which is started again goes on from the number of the last, and from that of its last event."""
        self._deadlines: list[tuple[float, Key]] = []
        self._armed: dict[Key, float] = {}
        self._life = Life()
        self._wall_ahead_s = 0.0
        self.cordons = Cordons()
        self._exclusion = exclusion
        self._suspects: dict[str, list[tuple[RunMachine, Blame]]] = {}
        """Blames on each node, and the attempts that they came from, which await the verdict."""
        self.knows_all_runs = knows_all_runs
        """Whether there are no other shards; else all shards have been asked before whether a node is known."""

    def runs(self) -> list[Run]:
        """Every attempt that is remembered, oldest first."""
        return [machine.run for machine in self._machines.values()]

    def attempts_of(self, run_id: str) -> list[Run]:
        """The attempts of a run that are remembered, oldest first."""
        return [self._machines[run_id, attempt].run for attempt in self._attempts.get(run_id, ())]

    def handle(self, run_id: str, event: Event, now: float) -> tuple[RunMachine | None, list[Effect]]:
        """Apply an event; return its effects, and the machine that took it if it is about one run.

        Raises `ProtocolError`, with nothing changed, if it is refused.
        """
        effects: list[Effect] = []
        if isinstance(event, NodeJoined):
            machine, effects = self._machine_to_join(event, now)
            if cordon := self.cordons.by_node.get(event.join.node_id):
                event = replace(event, cordon=cordon)
        elif isinstance(event, events.NodeOperation):
            effects = self._operate_on_node(event, now)
            return None, effects + self._judge_all(now)
        elif isinstance(event, events.RunForgotten):
            return None, self._forget_run(event, now)
        else:
            machine = self._machine_for(run_id, event)
        effects += self._tell(machine, event, now)
        return machine, effects + self._judge_all(now) if self._suspects else effects

    def pass_time(self, now: float) -> list[Effect]:
        """Let every run whose deadline has come draw its conclusions."""
        effects: list[Effect] = []
        for node_id in self.cordons.expired(now):  # before a round is completed without it
            effects += self._operate_on_node(events.NodeUncordoned("its time is over", node_id=node_id), now)
        effects += self._pass_due(now)
        return effects + self._judge(now)

    def answer_to(self, run_id: str, request_id: str) -> str:
        """Sentence that answered an operator's request; empty if the request is not known."""
        latest = self._latest_machine(run_id)
        answer = latest.run.answers.get(request_id) if latest else None
        return answer or self.cordons.answers.get(request_id, "")

    def _operate_on_node(
        self, event: events.NodeFact, now: float, blaming: Collection[RunMachine] = ()
    ) -> list[Effect]:
        """Act on a node in all its runs, and in the `blaming` ones though the node may be gone from them, then for
        later runs.

        The request is remembered last: if only a part of the batch is written, a repetition carries the rest out.
        """
        if event.request_id in self.cordons.answers:
            return []
        concerned = [
            machine
            for machine in self._machines.values()
            if _concerns(event, machine.run) or (machine in blaming and not machine.run.stage.is_end)
        ]
        is_known = concerned or event.node_id in self.cordons.by_node or not self.knows_all_runs
        if isinstance(event, events.NodeDrained) and not is_known:
            raise unknown_node(event.node_id)
        self.cordons.check_room(event)
        effects = [effect for machine in concerned for effect in self._tell(machine, event, now)]
        return effects + self._keep(replace(event, life=self._life), now)

    def _forget_run(self, event: events.RunForgotten, now: float) -> list[Effect]:
        if event.request_id in self.cordons.answers:
            return []
        latest = self._latest_machine(event.run_id)
        if latest is None:
            raise UnknownRun(f"no run {event.run_id} is known here")
        if not latest.run.stage.is_end:
            raise RunGoesOn(f"run {event.run_id} goes on ({latest.run.stage}): stop it first (POST /v1/runs/stop)")
        effects: list[Effect] = []
        for attempt in list(self._attempts[event.run_id]):
            effects += self._tell(self._machines[event.run_id, attempt], event, now)
        return effects + self._keep(event, now)

    def _tell(self, machine: RunMachine, event: Event, now: float) -> list[Effect]:
        """Let the machine handle an event, and forget the run if its time has come."""
        happened, run = machine.handle(event, now), machine.run
        if run.ended_at is None or not any(isinstance(effect, ForgetRun) for effect in happened):
            self._arm(machine, machine.deadline)
        elif self._is_first(run):
            self._forget((run.run_id, run.attempt))
        else:
            happened = [effect for effect in happened if not isinstance(effect, ForgetRun)]
        return happened + self._note_blames(machine, now) if machine.blamed else happened

    def _keep(self, fact: events.NodeFact | events.RunForgotten, now: float) -> list[Effect]:
        self.cordons.apply(fact, now)
        return [Record(JOURNAL, 0, now, fact)]

    def _pass_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key in self._due(now):
            effects += self._tell(self._machines[key], TimePassed(), now)
        return effects

    def _due(self, now: float) -> list[Key]:
        """Attempts whose deadline has come, each once, those of a run in their order.

        A machine that has more to do than it does in one go sets a new deadline.
        """
        due: list[Key] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            at, key = heappop(self._deadlines)
            if self._armed.get(key) == at:  # else an earlier deadline was set after this one
                del self._armed[key]
                due.append(key)
        return sorted(due)

    def next_deadline(self) -> float | None:
        """Time at which `pass_time` is due next; it may turn out then that the deadline has moved on."""
        at, uncordoned_at = self._deadlines[0][0] if self._deadlines else None, self.cordons.next_deadline()
        return at if uncordoned_at is None else uncordoned_at if at is None else min(at, uncordoned_at)

    def machine_of(self, run_id: str, agent_id: str) -> RunMachine:
        """Attempt that the agent is part of, else the run's latest. Raises `AgentFenced` if there is none."""
        machine = self._machine_with(run_id, agent_id) or self._latest_machine(run_id)
        if machine is None:
            raise AgentFenced(f"run {run_id} is not known here")
        return machine

    def replay(self, record: Record) -> list[RunEvent]:
        """Apply a recorded fact; the records of an attempt come in their order. Returns the run events that it led to.

        The events of a run's creation come with its next record; a snapshot has none.
        """
        if record.run_id == JOURNAL:
            self.cordons.apply(record.fact, record.at)
            return []
        key = (record.run_id, record.attempt)
        effects: Sequence[Effect] = ()
        if isinstance(record.fact, RunCreated):
            machine = self._create(record.fact, record.at)
        else:
            assert not isinstance(record.fact, CordonsKept | events.NodeBlamed)
            machine = self._machines[key]
            effects = machine.replay(record.fact, record.at)
            machine.take_blames()  # the journal has them, and their verdicts
            machine.awaits_verdict = False
        self._arm(machine, machine.next_deadline())
        return [effect.event for effect in effects if isinstance(effect, Happened)]

    def resume_numbers(self, last: Mapping[Key, int]) -> None:
        """Go on after the last event of each attempt that the store holds, whatever has written it."""
        for key, number in last.items():
            if machine := self._machines.get(key):
                machine.run.event_number = max(machine.run.event_number, number)

    def snapshot(self, key: Key, now: float) -> list[Record]:
        """Records to replay in place of all that led to this attempt; none if it has ended, or is forgotten."""
        if key == (JOURNAL, 0):
            return [Record(*key, now, self.cordons.snapshot(self._life))]
        machine = self._machines.get(key)
        if machine is None or machine.run.stage.is_end:
            return []
        run = machine.run
        wall_at = run.wall_clock(run.created_at)
        created = RunCreated(run.run_id, run.attempt, run.explicit, run.settings, wall_at, self._life)
        records = [Record(run.run_id, run.attempt, run.created_at, created)]
        records += [Record(run.run_id, run.attempt, now, fact) for fact in snapshot.take(run)]
        return records

    def restart(self, now: float, life: Life) -> None:
        """Begin a life of the server, once all has been replayed: nobody is missed for what happened meanwhile."""
        self._life = life
        for machine in self._machines.values():
            machine.restart(now)
            self._arm(machine, machine.next_deadline())

    def resume(self, now: float) -> None:
        """Begin every lease anew: the server could hear nobody until now."""
        for machine in self._machines.values():
            machine.run.leases.resume(now)

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        """Let every run know what the server's wall clock shows, which has been set."""
        self._wall_ahead_s = wall_at - now
        return [effect for machine in self._machines.values() for effect in machine.set_wall_clock(wall_at, now)]

    def _machine_to_join(self, event: NodeJoined, now: float) -> tuple[RunMachine, list[Effect]]:
        join = event.join
        if known := self._machine_with(join.run_id, join.agent_id):
            return known, []
        latest = self._latest_machine(join.run_id)
        if latest and not self._begins_anew(latest.run, join):
            return latest, []
        if join.after_round > 0:
            raise AgentFenced(f"run {join.run_id} is not known here: node {join.node_id} must join it anew")
        attempt, settings = latest.run.attempt + 1 if latest else 1, admission.settings_of(join)
        effects = self._make_room(now) if len(self._machines) >= self._max_runs else []
        effects += self._supersede(latest, now) if latest else []
        number = latest.run.event_number if latest else 0
        wall_at = now + self._wall_ahead_s
        created = RunCreated(join.run_id, attempt, join.explicit_run_id, settings, wall_at, self._life, number)
        effects.append(Record(join.run_id, attempt, now, created))
        return self._create(created, now), effects

    def _make_room(self, now: float) -> list[Effect]:
        """Forget attempts that have ended before their time: first those that never ran, then the oldest ends.

        Raises `ServerUnavailable` if there is none whose agents can have heard of the end.
        """
        ended = [
            (run.membership is not None, run.ended_at, (run.run_id, run.attempt))
            for run in self.runs()
            if run.ended_at is not None
            and self._is_first(run)
            and (run.membership is None or now >= run.ended_at + min(run.settings.lease_s, HEARD_OF_S))
        ]
        if not ended:
            raise ServerUnavailable(
                f"this server holds {self._max_runs} runs, as many as --max-runs allows, and none of them has ended; "
                "there is room when one has"
            )
        forgotten = [key for *_, key in nsmallest(1 + self._max_runs // ROOM, ended)]
        for key in forgotten:
            self._forget(key)
        return [ForgetRun(*key) for key in forgotten]

    def _supersede(self, machine: RunMachine, now: float) -> list[Effect]:
        """End a deserted attempt, so that attempts end, and are forgotten, in their order."""
        return [] if machine.run.stage.is_end else self._tell(machine, RunSuperseded(), now)

    def _note_blames(self, machine: RunMachine, now: float) -> list[Effect]:
        """Remember what an attempt blames nodes for; `_judge` decides what follows."""
        run, effects = machine.run, list[Effect]()
        wall_at = run.wall_clock(now)
        for blame in machine.take_blames():
            fact = events.NodeBlamed(
                node_id=blame.node_id, fault=blame.fault, run_id=run.run_id, reason=clip(blame.reason, REASON_BYTES),
                wall_at=wall_at, life=self._life,
            )  # fmt: skip
            self.cordons.apply(fact, now)
            effects.append(Record(JOURNAL, 0, now, fact))
            self._suspects.setdefault(blame.node_id, []).append((machine, blame))
        return effects

    def _judge_all(self, now: float) -> list[Effect]:
        """Judge the nodes that are blamed, if any, with those that other runs lose in the same instant."""
        return self._pass_due(now) + self._judge(now) if self._suspects else []

    def _judge(self, now: float) -> list[Effect]:
        """Exclude the nodes that have been blamed enough, once all blames of this instant are known.

        Nodes that are lost together are not to blame, also if each is lost by another run.
        """
        effects: list[Effect] = []
        machines: dict[RunMachine, None] = {}
        while self._suspects:
            node_id = next(iter(self._suspects))
            blames = self._suspects.pop(node_id)
            effects += self._exclude(node_id, blames, now)
            machines |= dict.fromkeys(machine for machine, _ in blames)
        for machine in machines:
            if machine.awaits_verdict:
                machine.awaits_verdict = False
                effects += self._tell(machine, TimePassed(), now)
        return effects + self._judge(now) if self._suspects else effects

    def _exclude(self, node_id: str, blames: Sequence[tuple[RunMachine, Blame]], now: float) -> list[Effect]:
        """Cordon the node if one of the blames excludes it, unless it is cordoned, or there is no room for more."""
        if node_id in self.cordons.by_node or len(self.cordons.by_node) >= MOST_CORDONS:
            return []
        for machine, blame in blames:
            policy = self._exclusion or (SLOW_NODES if blame.fault == "slow" else None)
            if policy and (why := self.cordons.history.verdict(blame, now, policy)):
                wall_at, blaming = machine.run.wall_clock(now), [each for each, _ in blames]
                event = events.NodeCordoned(why, EXCLUDER, node_id=node_id, for_s=policy.for_s, wall_at=wall_at)
                return self._operate_on_node(event, now, blaming)
        return []

    def _begins_anew(self, run: Run, join: JoinRequest) -> bool:
        if (join.returning or join.unfit) and run.stage.is_end:  # it has no place, and learns how the run ended
            end = RunSucceeded if run.stage is Stage.SUCCEEDED else RunFailed
            raise end(f"run {run.run_id} has {run.stage}: {run.end_reason}")
        if join.returning:
            return False
        if run.stage is Stage.SUCCEEDED and run.explicit and join.explicit_run_id and not join.rerun:
            raise RunSucceeded(f"run {run.run_id} has already succeeded: {run.end_reason}. --rerun starts it again")
        if run.stage.is_end:
            return True
        is_deserted = bool(run.departures) and not join.explicit_run_id  # else only unfit nodes have come so far
        return not run.agents and (is_deserted or bool(admission.conflicts(run, join)))

    def _create(self, created: RunCreated, now: float) -> RunMachine:
        machine = RunMachine(created, now, self._retention_s)
        machine.is_judged = self._exclusion is not None
        self._machines[created.run_id, created.attempt] = machine
        self._attempts.setdefault(created.run_id, []).append(created.attempt)
        return machine

    def _machine_for(self, run_id: str, event: Event) -> RunMachine:
        if agent_id := getattr(event, "agent_id", None):
            return self.machine_of(run_id, agent_id)
        if latest := self._latest_machine(run_id):
            return latest
        raise UnknownRun(f"no run {run_id} is known here")

    def _machine_with(self, run_id: str, agent_id: str) -> RunMachine | None:
        """Attempt that the agent is, or was, part of: the latest, or one whose end it has not seen yet."""
        for attempt in reversed(self._attempts.get(run_id, ())):
            machine = self._machines[run_id, attempt]
            if agent_id in machine.run.agents or agent_id in machine.run.departed_ids:
                return machine
        return None

    def _latest_machine(self, run_id: str) -> RunMachine | None:
        attempts = self._attempts.get(run_id)
        return self._machines[run_id, attempts[-1]] if attempts else None

    def _is_first(self, run: Run) -> bool:
        """Whether no earlier attempt is remembered."""
        return run.attempt == self._attempts[run.run_id][0]

    def _arm(self, machine: RunMachine, at: float | None) -> None:
        key = (machine.run.run_id, machine.run.attempt)
        if at is not None and at < self._armed.get(key, float("inf")):
            self._armed[key] = at
            heappush(self._deadlines, (at, key))
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop deadlines that an earlier one has replaced, or whose run is forgotten: some lie days ahead."""
        if len(self._deadlines) > 2 * len(self._armed) + SPARE_DEADLINES:
            self._deadlines = [(at, key) for key, at in self._armed.items()]
            heapify(self._deadlines)

    def _forget(self, key: Key) -> None:
        self._armed.pop(key, None)
        self._drop_stale()
        del self._machines[key]
        run_id, _ = key
        attempts = self._attempts[run_id]
        del attempts[0]
        if not attempts:
            del self._attempts[run_id]
        elif (then := self._machines[run_id, attempts[0]]).run.stage.is_end:  # it may have waited for this one
            self._arm(then, then.deadline)


def unknown_node(node_id: str) -> UnknownNode:
    """Refusal to drain a node that is part of no run."""
    return UnknownNode(f"no agent of node {node_id} is part of a run here; to keep it out, cordon it")


def _concerns(event: events.NodeFact, run: Run) -> bool:
    return not run.stage.is_end and (event.node_id in run.node_ids or event.node_id in run.cordons)
