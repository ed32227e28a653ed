"""The agent's state machine: `handle(event, now)` gives the effects, `next_deadline()` says when to send `TimePassed`.

    JOINING --Start--> RUNNING --all exited 0--> SUCCEEDED
       ^                  |                          |
       +--no worker left--+--Stop, failure, fenced---+     (STOPPING)
    any --Finish, refusal, signal--> ENDING --no worker left--> exit

While its workers stop the agent does not park polls but sends short ones, three in a lease, so that the line is free
for the join the moment the last worker is gone.
"""

from enum import Enum

from rdzv_protocol.errors import AgentFenced, ProtocolError, RunFailed, RunSucceeded
from rdzv_protocol.messages import Assignment, Failure, Finish, Reply, Start, Stop, Wait
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent.core import wording
from node_agent.core.effects import (
    Effect,
    Exit,
    LeaveEvidence,
    Say,
    SendJoin,
    SendLeave,
    SendPoll,
    SendReport,
    StartWorkers,
    StopWorkers,
)
from node_agent.core.events import (
    Answered,
    Crashed,
    Event,
    GaveUp,
    Refused,
    Signalled,
    Started,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)

EXIT_SUCCEEDED, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
LONGEST_REASON = 500


class State(Enum):
    JOINING = "joining"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPING = "stopping"
    ENDING = "ending"
    EXITED = "exited"


class AgentMachine:
    """One agent. `name` is unique among all agent processes; an agent that is fenced comes back under a new id."""

    def __init__(self, name: str) -> None:
        self.state = State.JOINING
        self.round = 0
        """The round of the workers that were started last; 0 for none."""
        self._name = name
        self._incarnation = 1
        self._after_round = 0
        self._revision = 0
        self._lease_s = 10.0
        self._busy = False
        """A join or a poll is under way."""
        self._may_join = True
        """The server expects a join: this agent is new, or was told to stop, or was fenced."""
        self._has_workers = False
        self._stop_asked = False
        self._keep_alive_at: float | None = None
        self._exit_code = EXIT_FAILED
        self._last_said = self._failure_said = ""
        self._effects: list[Effect] = []

    @property
    def agent_id(self) -> str:
        return f"{self._name}.{self._incarnation}"

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due: the next keep-alive while workers stop."""
        return None if self._busy else self._keep_alive_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and say what to do."""
        self._effects = []
        if self.state is not State.EXITED:
            self._apply(event, now)
            self._proceed(now)
        return self._effects

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case Answered(reply):
                self._busy = False
                self._answered(reply, now)
            case Refused(error):
                self._busy = False
                self._refused(error)
            case WorkersSucceeded(round_):
                self._workers_succeeded(round_)
            case WorkerFailed(round_, failure):
                self._worker_failed(round_, failure)
            case WorkersStopped(round_):
                self._workers_stopped(round_)
            case Signalled(name):
                self._signalled(name)
            case GaveUp(reason):
                self._say(f"error: {reason}")
                is_first = self.state is not State.ENDING
                self._end(self._exit_code_without_server())
                if is_first:
                    self._effects.append(LeaveEvidence(reason))
            case Crashed(reason):
                self._crashed(reason)
            case Started() | TimePassed():
                pass  # `_proceed` does what is due

    # The conversation with the server.

    def _answered(self, reply: Reply, now: float) -> None:
        self._lease_s = reply.lease_s
        if self.state is State.ENDING or reply.revision < self._revision:
            return
        self._revision = reply.revision
        if self._keep_alive_at is not None:
            self._keep_alive_at = now + self._lease_s / HOLDS_PER_LEASE
        match reply.directive:
            case Wait(reason=reason):
                self._say_once(reason)
            case Start(assignment=assignment):
                self._start(assignment)
            case Stop(round=round_, reason=reason):
                self._stop(round_, reason, now)
            case Finish() as finish:
                self._finish(finish)

    def _refused(self, error: ProtocolError) -> None:
        if self.state is State.ENDING:
            return
        if isinstance(error, AgentFenced):
            self._join_anew(str(error))
        elif isinstance(error, RunSucceeded | RunFailed):
            self._say(str(error))
            self._end(EXIT_SUCCEEDED if isinstance(error, RunSucceeded) else EXIT_FAILED)
        else:
            self._say(f"error: {error}")
            self._end(EXIT_REFUSED)
        if not isinstance(error, AgentFenced | RunSucceeded):
            self._effects.append(LeaveEvidence(f"{type(error).__name__}: {error}"))

    def _proceed(self, now: float) -> None:
        """Do what the state calls for: exit, become ready for the next round, or send the next message."""
        if self.state is State.ENDING:
            if not self._has_workers:
                self.state = State.EXITED
                self._effects.append(Exit(self._exit_code))
            return
        if self.state is State.STOPPING and self._may_join and not self._has_workers:
            self.state, self._keep_alive_at = State.JOINING, None
        if not self._busy:
            self._send_next(now)

    def _send_next(self, now: float) -> None:
        if not self._may_join:
            self._send(SendPoll(self.agent_id, self._revision, hold=True))
        elif self.state is State.JOINING:
            self._may_join = False
            self._send(SendJoin(self.agent_id, self._after_round, returning=self._incarnation > 1))
        elif self._keep_alive_at is not None and now >= self._keep_alive_at:
            self._send(SendPoll(self.agent_id, self._revision, hold=False))

    def _send(self, request: SendJoin | SendPoll) -> None:
        self._busy = True
        self._effects.append(request)

    # What the server says.

    def _start(self, assignment: Assignment) -> None:
        if self.state is not State.JOINING or self._may_join or assignment.round <= self._after_round:
            return
        self.state, self._has_workers = State.RUNNING, True
        self.round = self._after_round = assignment.round
        self._say(wording.started(assignment))
        self._effects.append(StartWorkers(assignment))

    def _stop(self, round_: int, reason: str, now: float) -> None:
        if round_ > self._after_round and self.state is State.JOINING:
            self._say(f"round {round_} is over before it began here: {reason}")
            self._after_round, self._may_join = round_, True
            return
        if round_ != self._after_round or self._may_join or self.state is State.JOINING:
            return
        why = "" if reason == self._failure_said else f": {reason}"
        self._say(f"stopping the workers of round {round_}{why}")
        self._stop_workers()
        self.state, self._may_join = State.STOPPING, True
        self._keep_alive_at = now  # tells the server at once that the stop has arrived

    def _finish(self, finish: Finish) -> None:
        self._say(wording.finished(finish))
        self._end(EXIT_SUCCEEDED if finish.succeeded else EXIT_FAILED)
        if not finish.succeeded:
            self._effects.append(LeaveEvidence(finish.reason, finish))

    def _join_anew(self, reason: str) -> None:
        """This agent is no longer part of the run: its workers must go, and it comes back as a newcomer."""
        self._say(f"{reason}; joining anew")
        self._stop_workers()
        self.state, self._may_join, self._keep_alive_at = State.STOPPING, True, None
        self._incarnation += 1
        self._after_round = self._revision = 0

    # What the workers do.

    def _workers_succeeded(self, round_: int) -> None:
        if round_ == self.round and self.state is State.RUNNING:
            self.state, self._has_workers = State.SUCCEEDED, False
            self._effects.append(SendReport(self.agent_id, round_, None))

    def _worker_failed(self, round_: int, failure: Failure) -> None:
        if round_ == self.round and self.state is State.RUNNING:
            self._say(wording.failed(failure))
            self._failure_said = failure.sentence
            self._effects.append(SendReport(self.agent_id, round_, failure))
            self._stop_workers()
            self.state = State.STOPPING

    def _workers_stopped(self, round_: int) -> None:
        if round_ == self.round:
            self._has_workers = self._stop_asked = False

    def _stop_workers(self, signal_name: str = "SIGTERM") -> None:
        if self._has_workers and not self._stop_asked:
            self._stop_asked = True
            self._effects.append(StopWorkers(signal_name))

    # The end.

    def _signalled(self, name: str) -> None:
        if self.state is not State.ENDING:
            self._say(f"{name}: leaving the run")
            self._effects.append(SendLeave(self.agent_id, name))
            self._stop_workers(name)
            self._end(EXIT_FAILED)
            self._effects.append(LeaveEvidence(f"SignalException: the agent got {name}"))
        elif self._has_workers:
            self._say(f"{name} again: killing the workers")
            self._effects.append(StopWorkers(name, kill=True))

    def _crashed(self, reason: str) -> None:
        if self.state is not State.ENDING:
            self._say(f"error: {reason}; leaving the run")
            self._effects += [SendLeave(self.agent_id, reason[:LONGEST_REASON]), LeaveEvidence(reason)]
        self._end(EXIT_FAILED)

    def _exit_code_without_server(self) -> int:
        if self.state is State.ENDING:
            return self._exit_code
        return EXIT_FAILED if self.round else EXIT_REFUSED  # refused means that nothing was ever started

    def _end(self, exit_code: int) -> None:
        self._stop_workers()
        self.state, self._exit_code, self._keep_alive_at = State.ENDING, exit_code, None

    # Words.

    def _say(self, text: str) -> None:
        self._last_said = text
        self._effects.append(Say(text))

    def _say_once(self, reason: str) -> None:
        """Say what is waited for when it changes, not when only the time that is left does."""
        if wording.without_countdown(reason) != wording.without_countdown(self._last_said):
            self._say(reason)
