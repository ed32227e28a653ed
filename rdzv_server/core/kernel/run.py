"""The state of one run. Only `machine.RunMachine` changes it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from heapq import heappop, heappush
from itertools import chain, islice
from typing import TypeVar

from msgspec import Struct, field
from rdzv_protocol.messages import FAILURE_CAUSES, Directive, Failure, JoinRequest, Progress
from rdzv_protocol.queries import Noticed
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.events import Cordon, Operation
from rdzv_server.core.journals import Key
from rdzv_server.core.kernel import legal_sizes
from rdzv_server.core.kernel.event_sizes import EventSizes
from rdzv_server.core.kernel.liveness import Leases
from rdzv_server.core.kernel.open_queries import Queries
from rdzv_server.words import notices as words

END_DELIVERED_WITHIN_S = 60.0
"""Seconds within which a live agent hears that its run has ended, even if its lease is longer."""
REQUESTS = 64
"""Number of latest operators' requests of a run that are recognized when they are repeated."""
HISTORY = 64
"""Number of restarts, failures and departures that a run remembers one by one. The counters count all of them."""
MOST_DEPARTED = 10_000
"""Number of gone agents whose ids are remembered, so that a late copy of a join does not bring an agent back. Other
requests of a forgotten agent are refused as those of an unknown agent. If it is alive and joins again, it is a
newcomer. There is also a limit for all runs: see `capacity`."""


T = TypeVar("T")


class Stage(StrEnum):
    FORMING = "forming"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    def __init__(self, value: str) -> None:
        self.is_end = value in ("succeeded", "failed")
        """Whether the run has ended. Every event asks for it, and a property would take longer."""


class AgentState(StrEnum):
    WAITING = "waiting"
    """Joined and without workers; beside a running round it stands by."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to stop its workers and not joined again: the next round waits for it while it is alive."""
    SUCCEEDED = "succeeded"
    """Finished: all of its workers exited 0."""
    CORDONED = "cordoned"
    """Joined and without workers, but without a seat since its node is cordoned."""
    DRAINING = "draining"
    """Told to leave, and stopping its workers: no round waits for it or counts on it."""


_WAITING, _RUNNING, _STOPPING = AgentState.WAITING, AgentState.RUNNING, AgentState.STOPPING
"""States that every event uses, as constants: looking up a member of an enumeration is slow."""
_WITHOUT_PART = (AgentState.WAITING, AgentState.CORDONED, AgentState.DRAINING)


class Cause(StrEnum):
    """Cause for which a round was opened. `CHARGED` names those whose restarts are charged."""

    FIRST = "first"
    WORKER_FAILURE = "worker_failure"
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    NODE_ARRIVED = "node_arrived"
    NODE_DRAINED = "node_drained"
    RUN_RESTARTED = "run_restarted"
    RUN_RESIZED = "run_resized"
    HANG = "hang"
    RETRIED = "retried"

    @property
    def is_charged(self) -> bool:
        return self in CHARGED

    @property
    def is_failure(self) -> bool:
        return self in FAILURE_CAUSES


CHARGED: Mapping[Cause, Callable[[RunSettings], int | None]] = {
    Cause.WORKER_FAILURE: lambda settings: None,
    Cause.HANG: lambda settings: settings.max_hang_restarts,
}
"""Causes whose restarts are charged, each with the size of its own budget; None if `max_restarts` is its budget."""


class Agent(Struct):
    """Agent that is part of the run now. If `directive` is None, its state implies what it must do: wait or start."""

    join: JoinRequest
    server_addr: str
    state: AgentState = AgentState.WAITING
    round: int = 0
    """Last round in which the agent had a seat; 0 if none."""
    directive: Directive | None = None
    revision: int = 0
    drain_until: float = 0.0
    """Time at which the workers of a drained agent are killed."""

    @property
    def has_part(self) -> bool:
        """Whether the agent takes part in the last completed round, as far as its own state shows."""
        return self.state not in _WITHOUT_PART

    @property
    def has_joined(self) -> bool:
        """Whether the agent has joined and has no workers, even if a cordon keeps it from getting a seat."""
        return self.state is _WAITING or self.state is AgentState.CORDONED

    @property
    def agent_id(self) -> str:
        return self.join.agent_id

    @property
    def node_id(self) -> str:
        return self.join.node_id


class Seat(Struct, frozen=True):
    """A participant's place in a completed round."""

    agent_id: str
    node_id: str
    group_rank: int
    first_rank: int
    local_world_size: int
    first_role_rank: int
    role_world_size: int

    @property
    def ranks(self) -> range:
        """Ranks of the participant's workers."""
        return range(self.first_rank, self.first_rank + self.local_world_size)


class Membership(Struct, frozen=True):
    """The participants of a completed round by agent id, and what is the same for all of them."""

    round: int
    seats: dict[str, Seat]
    world_size: int
    master_addr: str
    master_port: int
    agent_store: bool
    restart_count: int
    reason: str
    restarts_used: int | None = None
    """Restarts that count against `max_restarts` when the round completes; None from an older server."""


class Departure(Struct, frozen=True):
    """A participant that is gone. `left`: whether it announced its departure."""

    node_id: str
    agent_id: str
    round: int
    group_rank: int | None
    left: bool
    cause: str
    at: float
    log_dir: str = ""
    """Folder on the node with its workers' log files; empty if there are none."""


class Leaving(Struct):
    """Announced departure of a participant: the others' workers get a notice first."""

    until: float
    """Time at which the notice ends, unless all workers acknowledge it before."""
    stop_until: float
    """Time by which the participant's own workers must be gone."""
    cause: Cause
    reason: str


class FailureRecord(Struct, frozen=True):
    round: int
    agent_id: str
    at: float
    failure: Failure
    ago_s: float = 0.0
    """Seconds since the worker's end, when it was reported."""


class Restart(Struct, frozen=True):
    """Line of the ledger: why `round` was opened, and whether it was charged."""

    round: int
    cause: Cause
    charged: bool
    reason: str
    at: float


class Opening(Struct):
    """Opening of the forming round. Its cause is settled, and charged or not, when the round completes."""

    cause: Cause
    reason: str
    at: float
    min_since: float | None = None
    """Time since which the round has had enough nodes; None if it has too few."""
    below_since: float = 0.0
    """Time since which the round has had too few nodes, if it has."""
    joined_at: float = 0.0
    """Time of the last join."""
    lost_at: float | None = None
    """Time at which a participant was last lost or left; None if none was."""
    backoff_until: float | None = None
    """Time until which the restart waits, because it follows others in a row; None if it does not wait."""


class ProgressSign(Struct, frozen=True):
    """Progress of a node's workers, and when the server heard of it, by the server's clock."""

    progress: Progress
    at: float


class Pace(Struct):
    """Progress of all workers of the running round together, by the latest signs; None if not reported."""

    step_s: float | None = None
    """Seconds that a step takes, by the latest report of any node."""
    earlier_step_s: float | None = None
    """The same, in the latest round before with such a report; None if the server has heard none since it started."""
    moved_at: float | None = None
    """Time of the latest progress of any node's slowest worker, to about a second. It rests while the run stands
    still."""
    told_at: float = 0.0
    """Time of the latest sign."""
    begun_at: float | None = None
    """Time of the progress in the first sign."""
    stepped_at: float | None = None
    """Time of the latest sign with another step than the one before it from the same node; None if there was none."""
    resumed_at: float = 0.0
    """Time at which a node reported progress after a standstill of all nodes; 0 if none did."""
    highest_step: int | None = None
    checkpoint_step: int | None = None
    falls: bool = False
    """Whether the steps of a node's workers have fallen, as if they were counted within each epoch."""
    moved: dict[str, float] = {}
    """Time of the latest progress of each agent whose workers report steps, as in `moved_at`; the first moved longest
    ago."""
    over: set[str] = set()
    """Ids of the agents whose workers have reported the end of their loop."""


class FinishedSign(Struct, frozen=True):
    """Ranks of a node's workers that have exited 0 while others of the same node run, and when the last one exited."""

    ranks: tuple[int, ...]
    at: float


class SameFailure(Struct, frozen=True):
    """Rounds in a row that the same failure has ended without getting the run further: see `failed_rounds`."""

    failure: str
    """Error or cause of the last of these failures."""
    exit_code: int
    rounds: int
    since: float
    """Time of the first of these failures."""
    rank: int | None = None
    """Rank that the last failure singles out; None if it singles none out."""


class DeparturesInRow(Struct, frozen=True):
    """Rounds in a row that a node's departure has ended without getting the run further: see `failed_rounds`.

    Rounds that ended otherwise may lie between them.
    """

    rounds: int
    since: float
    """Time of the first of these departures."""


_FIRST_FAULT = "slow"
"""Fault of every replacement in a snapshot of 1.0.0rc1. There its name is also that of the sentence about the node."""


class Replacement(Struct, frozen=True):
    """Replacement of a node by a waiting node. `until`: the latest time at which the round ends for it."""

    node_id: str
    why: str = field(name=_FIRST_FAULT)
    """Sentence about what is wrong with the node."""
    until: float
    fault: str = _FIRST_FAULT
    """Name of the fault that the node is blamed for."""

    @property
    def reason(self) -> str:
        return words.replaced(self.why)


class PolicyState(Struct):
    """State of a policy that survives a restart of the server.

    A snapshot stores its fields beside the run's, so two policies must not have a field of the same name.
    """

    def validate(self, run: "Run") -> None:
        """Raise `AssertionError` if the state contradicts itself or the run's state."""


class RunState(Struct, kw_only=True):
    """State of a run that survives a restart of the server. Times are in seconds by the server's clock."""

    run_id: str
    attempt: int
    explicit: bool
    settings: RunSettings
    created_at: float
    wall_clock_ahead: list[tuple[float, float]]
    """Pairs of a time and the seconds by which the wall clock is ahead of the server's clock since then. The first is
    from the run's creation."""
    opening: Opening
    stage: Stage = Stage.FORMING
    round: int = 1
    """Number of the round that is forming or running."""
    agents: dict[str, Agent] = field(default_factory=dict)
    cordons: dict[str, Cordon] = field(default_factory=dict)
    """Cordons of nodes that are, or were, part of the run."""
    is_scoped: bool = False
    """Whether an agent's token is valid for some runs only: then the run's blame on nodes counts only in this run."""
    answers: dict[str, str] = field(default_factory=dict)
    """Ids of the latest operators' requests, each with the sentence that answered it."""
    idle: tuple[str, ...] = ()
    """Ids of requests in `answers` that changed nothing."""
    is_resized: bool = False
    """Whether an operator has changed the limits of the number of nodes that the agents ask for."""
    command_of: str = ""
    """Id of the agent whose command is compared with the others': the first one, or its successor when it was gone."""
    membership: Membership | None = None
    """Membership of the last completed round; None if none has completed."""
    succeeded: set[str] = field(default_factory=set)
    """Ids of the agents of the membership whose workers all exited 0, including agents that are gone since."""
    succeeded_at: dict[str, float] = field(default_factory=dict)
    """Times at which the agents in `succeeded` reported success."""
    failed: set[str] = field(default_factory=set)
    """Ids of the agents of the membership that reported a failure."""
    doubt: str = ""
    """Phrase about the first worker of the round that has exited 0 and reported an error; empty if there is none."""
    doubts: int = 0
    """Number of such workers."""
    still_running: str = ""
    """Warning about workers that still run long after others of the running round have finished; empty if none."""
    started_at: float = 0.0
    scale_up_at: float | None = None
    unheard_since: float | None = None
    """Time since which no agent of the running round was heard, for at least a lease; None if one is heard. See
    `silent_runs`."""
    leaving: dict[str, Leaving] = field(default_factory=dict)
    """Participants of the running round that leave soon, by agent id."""
    notice_since: float | None = None
    """Time since which the workers of the running round have a notice of its end; None if they have none."""
    verdict_at: float | None = None
    """Time at which a run with no restarts left ends over a failure, unless the failure's cause is reported before."""
    replacement: Replacement | None = None
    """Replacement of a node of the running round, before which its workers get a notice."""
    revision: int = 0
    event_number: int = 0
    """Number of the run's last event, which may belong to an earlier attempt."""
    first_event: int = 1
    """Number of the attempt's oldest event that is kept: see `kept_events`."""
    event_sizes: EventSizes = field(default_factory=EventSizes)
    """Sizes of the large events among those that are kept."""
    restart_count: int = 0
    """Number of charged restarts: TORCHELASTIC_RESTART_COUNT. The budget limits it unless the budget has a window."""
    charged_at: list[float] = field(default_factory=list)
    """Times of the latest charged restarts, as many as the budget allows; empty unless the budget has a window."""
    restarts: dict[Cause, int] = field(default_factory=dict)
    """Number of all restarts, by cause."""
    ledger: list[Restart] = field(default_factory=list)
    checkpoint_step: int | None = None
    """Highest step of a complete checkpoint that workers have reported, in any round."""
    highest_step: int | None = None
    """Highest step that workers have reported, in any round."""
    steps_fall: bool = False
    """Whether steps that workers reported have fallen within a round: then steps of different rounds do not compare."""
    step_before: int | None = None
    """Value of `highest_step` when the last completed round began; `checkpoint_before` is that of `checkpoint_step`."""
    checkpoint_before: int | None = None
    restarts_in_row: int = 0
    """Number of restarts in a row after failures, before the last completed round: see `failed_rounds`."""
    restarts_without_progress: int = 0
    """Number of charged restarts since a round made progress."""
    lost_nodes: set[str] = field(default_factory=set)
    """Nodes of the last completed round that were lost since it ended, or whose loss ended it. A loss that does not
    blame the node counts only if a new agent of the node has come, or if the round had no other node."""
    lost_too_often: set[str] = field(default_factory=set)
    """Nodes of `lost_nodes` whose losses are beyond the limit, unless the last completed round made progress."""
    losses_without_progress: dict[str, int] = field(default_factory=dict)
    """Number of rounds that ended with the loss of each node since a round made progress."""
    training_round: int = 0
    """Latest round in which workers have reported progress; 0 if none, or in the state of an older server."""
    step_of_round: int | None = None
    """Highest step of the last completed round; None if none was reported."""
    recurring_step: int | None = None
    """Step at which the previous round failed, if its error may recur at the same step."""
    same_failure: SameFailure | None = None
    """Row of rounds before the last completed one that the same failure has ended; None if there is none."""
    departures_in_row: DeparturesInRow | None = None
    """Row of rounds before the last completed one that departures have ended; None if there is none."""
    failures: list[FailureRecord] = field(default_factory=list)
    first_failure: FailureRecord | None = None
    """Root failure of the first round that had one, even if a departure explained it later."""
    first_charged: FailureRecord | None = None
    """Root failure of the first round whose end was charged: the root cause of the whole run."""
    first_of_round: FailureRecord | None = None
    """Root failure of the last completed round, which is blamed for the end of that round."""
    failures_by_node: dict[str, int] = field(default_factory=dict)
    """Numbers of failures on each node that single a worker out and do not follow from another worker's."""
    departures: list[Departure] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    """Latest nodes that have left as unfit, each with the evidence."""
    departed_ids: dict[str, None] = field(default_factory=dict)
    """Ids of the latest agents that are gone, in the order in which they went."""
    end_reason: str = ""
    join_timed_out: bool = False
    """Whether the run has failed because too few nodes had joined in time."""
    no_progress: bool = False
    """Whether the run has failed because restarts brought no progress."""
    is_stopped: bool = False
    """Whether an operator has stopped the run."""
    end_failure: Failure | None = None
    ended_at: float | None = None
    forget_at: float | None = None
    """Time at which the ended run is forgotten, if an operator has asked for that or if a new run needs its place."""
    gave_place: bool = False
    """Whether the run has ended because a new run needed its place: see `silent_runs`."""

    @property
    def events_kept(self) -> int:
        """Number of the attempt's events that are kept."""
        return self.event_number - self.first_event + 1


class Undecided(Struct, frozen=True):
    """Why a server can decide nothing about its runs at present, and since when."""

    reason: str
    since: float


def decides() -> Undecided | None:
    """Return None: the server can decide."""
    return None


def writes_nothing() -> float:
    """Return infinity: everything is written."""
    return float("inf")


class OpenNotice(Struct):
    """Notice of a round's end that is on its way: the queries to its agents, and their answers."""

    round: int
    until: float
    asked: dict[str, int] = field(default_factory=dict)
    """Numbers of the queries, by agent id."""
    answers: dict[str, Noticed | None] = field(default_factory=dict)
    """Answers by agent id; None if the agent did not answer in time or is gone."""
    answered_at: float | None = None
    """Time at which all had answered; None if some have not."""


class Run(RunState, kw_only=True):
    """Attempt of a run: its state, the leases of its agents, its signs, and indexes of its agents."""

    leases: Leases
    policies: dict[str, PolicyState] = field(default_factory=dict)
    """State of each policy, by its name: see `policy`."""
    signs: dict[str, Struct] = field(default_factory=dict)
    """Signs of each policy, by its name."""
    queries: Queries = field(default_factory=Queries)
    notice: OpenNotice | None = None
    """Notice of the running round's end that the server has asked its agents to pass on."""
    cause_sought: int = 0
    """Round whose agents the server has asked for the cause of a consequence; 0 if none."""
    by_state: dict[AgentState, OrderedDict[str, Agent]] = field(
        default_factory=lambda: {state: OrderedDict() for state in AgentState}
    )
    """Agents by state, in the order in which they entered it. Agents usually leave a state in this order, so each is an
    ordered dict: see `liveness`."""
    node_ids: dict[str, dict[str, None]] = field(default_factory=dict)
    """Ids of the agents of each node: usually one."""
    node_ranks: dict[int, str] = field(default_factory=dict)
    """Id of the agent that claims each `--node-rank`."""
    progress: dict[str, ProgressSign] = field(default_factory=dict)
    """Latest progress in the running round, by agent. It is a sign: a restarted server has none until the next one."""
    pace: Pace = field(default_factory=Pace)
    """Summary of `progress`, which takes the same time to read in a larger run."""
    finished: dict[str, FinishedSign] = field(default_factory=dict)
    """Workers of the running round that have finished while others of their node run, by agent. The latest is last."""
    refused: dict[str, str] = field(default_factory=dict)
    """Latest nodes whose agents may not join the forming round, each with the reason. It is a sign, too."""
    held: str = ""
    """Phrase about what the forming round, which could complete, waits for; empty if no policy holds it."""
    set_apart: str = ""
    """Sentence about an error in the core, after which no event changes the run: see `set_apart`. Empty if none."""
    set_apart_at: float = 0.0
    """Time at which this server set the run apart, if it did."""
    undecided: Callable[[], Undecided | None] = decides
    """Function that returns why the run's server can decide nothing now; None if it can. It changes nothing."""
    unwritten_since: Callable[[], float] = writes_nothing
    """Function that returns the time of the facts that the run's server is writing now; infinite if it writes none."""
    unreadable: str = ""
    """Sentence about the last error that kept the run from being shown to people; empty if none."""
    survivors: int = 0
    """Number of agents of the membership that are still part of the run and are not drained."""
    leave_times: list[tuple[float, str]] = field(default_factory=list)
    """Heap of the times and agent ids in `leaving`, with stale entries. All nodes may announce together that they
    leave, and every event asks for the first."""

    @property
    def key(self) -> Key:
        return self.run_id, self.attempt

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, and its end is written. The server never reports an end that it may lose."""
        return self.ended_at is not None and self.ended_at < self.unwritten_since()

    @property
    def can_be_forgotten(self) -> bool:
        """Whether an operator can have the run forgotten."""
        return self.stage.is_end or bool(self.set_apart)

    @property
    def suspends_judgement(self) -> bool:
        """Whether nothing follows at present from workers that are silent or slow.

        Either no agent of the running round is heard, or its workers have a notice: they may save, wait or exit.
        """
        return self.unheard_since is not None or self.notice_since is not None

    @property
    def is_unheard(self) -> bool:
        """Whether nothing is known of the workers now: their agents are silent, or the run is set apart."""
        return self.unheard_since is not None or bool(self.set_apart)

    @property
    def stage_since(self) -> float:
        """The time at which the run last began to form, began to run, or ended."""
        if self.ended_at is not None:
            return self.ended_at
        return self.opening.at if self.stage is Stage.FORMING else self.started_at

    def wall_clock(self, at: float) -> float:
        """Convert a time of the run to what the server's wall clock showed, in seconds since 1970."""
        since, ahead_s = self.wall_clock_ahead[-1]
        if at < since:
            earlier = [ahead_s for since, ahead_s in self.wall_clock_ahead if since <= at]
            ahead_s = earlier[-1] if earlier else self.wall_clock_ahead[0][1]
        return at + ahead_s

    @property
    def waiting(self) -> OrderedDict[str, Agent]:
        """Agents that have joined, in the order of joining."""
        return self.by_state[_WAITING]

    @property
    def cordoned(self) -> OrderedDict[str, Agent]:
        """Agents that have joined and whose node is cordoned."""
        return self.by_state[AgentState.CORDONED]

    @property
    def stopping(self) -> OrderedDict[str, Agent]:
        """Agents of an earlier round that have not joined again."""
        return self.by_state[_STOPPING]

    @property
    def running(self) -> OrderedDict[str, Agent]:
        return self.by_state[_RUNNING]

    @property
    def seats(self) -> dict[str, Seat]:
        """Seats of the last completed round, by agent id and in the order of group ranks; empty before the first
        round."""
        return self.membership.seats if self.membership else {}

    def seat_of(self, agent_id: str) -> Seat | None:
        """Return the agent's seat in the last completed round; None if it has none."""
        return self.seats.get(agent_id)

    def seat_of_rank(self, rank: int) -> Seat | None:
        """Return the seat of the worker that had the rank in the last completed round; None if none had."""
        return next((seat for seat in self.seats.values() if rank in seat.ranks), None)

    def is_survivor(self, agent: Agent) -> bool:
        return agent.state is not AgentState.DRAINING and self.seat_of(agent.agent_id) is not None

    def agents_of(self, node_id: str) -> list[Agent]:
        return [self.agents[agent_id] for agent_id in self.node_ids.get(node_id, ())]

    def drain(self, agent: Agent, until: float) -> None:
        """Mark the agent as draining: it leaves, and no later round counts on it."""
        self.survivors -= self.is_survivor(agent)
        self.leaving.pop(agent.agent_id, None)
        self.move(agent, AgentState.DRAINING)
        agent.drain_until = until

    def announce_leave(self, agent_id: str, leaving: Leaving) -> None:
        self.leaving[agent_id] = leaving
        heappush(self.leave_times, (leaving.until, agent_id))

    def first_to_leave(self) -> str:
        """Return the agent in `leaving` whose notice ends first; there is at least one."""
        while (first := self.leave_times[0]) and not self._is_current(*first):
            heappop(self.leave_times)
        return first[1]

    def _is_current(self, until: float, agent_id: str) -> bool:
        leaving = self.leaving.get(agent_id)
        return leaving is not None and leaving.until == until

    def answer(self, fact: Operation, sentence: str) -> None:
        """Remember the sentence that answered an operator's request. Requests without an id are not remembered."""
        self.idle = remember_answer(self.answers, self.idle, fact, sentence, REQUESTS)

    def move(self, agent: Agent, state: AgentState) -> None:
        """Put the agent, known or new, into `state`."""
        join, agent_id = agent.join, agent.join.agent_id
        if agent_id in self.agents:
            self.by_state[agent.state].pop(agent_id, None)
        else:
            self.agents[agent_id] = agent
            self.node_ids.setdefault(join.node_id, {})[agent_id] = None
        agent.state = state
        if self.finished and state is not _RUNNING:
            self.finished.pop(agent_id, None)
        self.by_state[state][agent_id] = agent
        if join.node_rank is not None:
            self.node_ranks[join.node_rank] = agent_id

    def move_all(self, agents: list[Agent], state: AgentState) -> None:
        """Put known agents into `state`, faster than one by one."""
        into = self.by_state[state]
        for agent in agents:
            agent_id = agent.join.agent_id
            del self.by_state[agent.state][agent_id]
            agent.state = state
            into[agent_id] = agent

    def remove(self, agent: Agent) -> None:
        join, agent_id = agent.join, agent.join.agent_id
        del self.agents[agent_id]
        namesakes = self.node_ids[join.node_id]
        del namesakes[agent_id]
        if not namesakes:
            del self.node_ids[join.node_id]
        del self.by_state[agent.state][agent_id]
        node_rank = join.node_rank
        if node_rank is not None and self.node_ranks.get(node_rank) == agent_id:
            del self.node_ranks[node_rank]
        self.survivors -= self.is_survivor(agent)
        self.leaving.pop(agent_id, None)
        self.leases.drop(agent_id)
        self.progress.pop(agent_id, None)
        self.finished.pop(agent_id, None)
        self.note_departed(agent_id)

    def forget_departed(self, number: int) -> None:
        """Forget the ids of the `number` agents that went first."""
        self.departed_ids = dict.fromkeys(islice(self.departed_ids, number, None))

    def note_departed(self, agent_id: str) -> None:
        """Fence the id of an agent that is gone or never had a place."""
        self.departed_ids.pop(agent_id, None)
        self.departed_ids[agent_id] = None
        if len(self.departed_ids) > MOST_DEPARTED:  # one by one, each first entry would take longer to find
            self.forget_departed(MOST_DEPARTED // 10 + 1)

    def validate(self) -> None:
        """Raise `AssertionError` if the state contradicts itself. Tests check it after every event."""
        agents, leases, membership = self.agents, self.leases, self.membership
        for state in self.policies.values():
            state.validate(self)
        assert {agent_id: agent.state for agent_id, agent in agents.items()} == {
            agent_id: state for state, those in self.by_state.items() for agent_id in those
        }
        namesakes = {(node_id, agent_id) for node_id, those in self.node_ids.items() for agent_id in those}
        assert namesakes == {(agent.node_id, agent_id) for agent_id, agent in agents.items()}
        assert all(agents[agent_id].join.node_rank == rank for rank, agent_id in self.node_ranks.items())
        assert self.event_sizes.total == self.event_sizes.open + sum(size for _, size in self.event_sizes.blocks)
        assert self.first_failure or not self.first_of_round
        assert not self.departed_ids.keys() & agents.keys() and len(self.departed_ids) <= MOST_DEPARTED
        cordoned = {agents[agent_id].node_id for agent_id in self.cordoned}
        assert cordoned <= self.cordons.keys()
        assert not self.cordons or all(agents[agent_id].node_id not in self.cordons for agent_id in self.waiting)
        assert len(self.answers) <= REQUESTS and self.settings.min_nodes <= self.settings.max_nodes
        seats = self.seats
        there = seats.keys() & agents.keys()
        assert self.survivors == len(there - self.by_state[AgentState.DRAINING].keys())
        assert self.succeeded | self.failed <= seats.keys()
        assert self.succeeded_at.keys() <= self.succeeded
        assert self.stage is Stage.RUNNING or not (self.finished or self.still_running)
        assert self.finished.keys() <= self.running.keys()
        seated = {*chain.from_iterable(those for state, those in self.by_state.items() if state not in _WITHOUT_PART)}
        if self.stage is Stage.FORMING:
            assert seated == self.stopping.keys()
        elif self.stage is Stage.RUNNING:
            assert membership and membership.round == self.round and seated <= seats.keys() and not self.stopping
            assert all(agents[agent_id].round == self.round for agent_id in seated)
        enough = self.opening.min_since is not None
        assert self.stage is not Stage.FORMING or enough == (len(self.waiting) >= legal_sizes.smallest(self.settings))
        assert self.scale_up_at is None or self.verdict_at is None
        assert self.stage is Stage.RUNNING or self.replacement is None
        assert self.stage is Stage.RUNNING or (self.scale_up_at, self.verdict_at) == (None, None)
        assert self.stage is Stage.RUNNING or not (self.leaving or self.notice_since)
        assert all(agents[agent_id].has_part for agent_id in self.leaving)
        assert {(leaving.until, agent_id) for agent_id, leaving in self.leaving.items()} <= {*self.leave_times}
        assert (self.ended_at is not None) == self.stage.is_end == bool(self.end_reason)
        assert self.restart_count == sum(times for cause, times in self.restarts.items() if cause.is_charged)
        assert self.restarts_without_progress <= self.restart_count
        assert all(times <= self.restarts.get(Cause.NODE_LOST, 0) for times in self.losses_without_progress.values())
        assert self.stage is not Stage.RUNNING or not self.lost_nodes
        assert self.lost_too_often <= self.lost_nodes
        assert self.restarts_in_row <= sum(times for cause, times in self.restarts.items() if cause.is_failure)
        assert self.opening.backoff_until is None or self.opening.cause.is_failure
        most_charged = self.settings.max_restarts + sum(own(self.settings) or 0 for own in CHARGED.values())
        assert self.settings.restart_window_s is not None or self.restart_count <= most_charged
        assert len(self.charged_at) <= self.settings.max_restarts
        assert leases.renewed_at.keys() == (set() if self.stage.is_end else agents.keys())
        assert self.stage is Stage.RUNNING or self.unheard_since is None
        assert leases.suspects | leases.spared.keys() <= leases.uncertain.keys()
        assert all(at <= leases.heard_at for name, at in leases.renewed_at.items() if name not in leases.absent_since)
        assert leases.absent_since.keys() | leases.probed_until.keys() <= leases.uncertain.keys() <= agents.keys()
        assert list(leases.renewed_at.values()) == sorted(leases.renewed_at.values())


def keep_latest(kept: dict[str, T], key: str, value: T, most: int) -> None:
    """Put an entry last, and forget the oldest beyond `most`."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]


def remember_answer(
    answers: dict[str, str], idle: tuple[str, ...], fact: Operation, sentence: str, most: int
) -> tuple[str, ...]:
    """Remember the sentence that answers a request with an id, and return the ids of requests that changed nothing."""
    if not fact.request_id:
        return idle
    keep_latest(answers, fact.request_id, fact.idle or sentence, most)
    known = (*idle, fact.request_id) if fact.idle else idle
    return tuple(request_id for request_id in known if request_id in answers)


def remember(history: list[T], item: T) -> None:
    """Append to a history of at most `HISTORY` items, and forget the oldest."""
    history.append(item)
    del history[:-HISTORY]
