"""An agent told as a story: `agent.is_told(start(1)); agent.workers_fail(); assert agent.did(StopWorkers)`.

The machine's requests are held here until a test answers them. Time is a number of seconds that a test moves.
"""

from typing import Any

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import (
    Assignment,
    Directive,
    Failure,
    Finish,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    Start,
    Stop,
    Wait,
)

from node_agent.core.backoff import Unreachable
from node_agent.core.effects import Effect, Say
from node_agent.core.events import (
    Answered,
    ConnectionFailed,
    Event,
    GaveUp,
    Signalled,
    Started,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.core.machine import AgentMachine

LEASE_S = 9.0


def an_assignment(round: int = 1, **changes: Any) -> Assignment:
    """Node 1 of 3 in a round of ten ranks; this node has four of them."""
    given = {
        "round": round,
        "group_rank": 1,
        "group_world_size": 3,
        "first_rank": 2,
        "local_world_size": 4,
        "world_size": 10,
        "first_role_rank": 1,
        "role_world_size": 8,
        "master_addr": "10.0.0.1",
        "master_port": 40_000 + round,
        "restart_count": round - 1,
        "max_restarts": 3,
    }
    return Assignment(**(given | changes))


def a_failure(**changes: Any) -> Failure:
    given = {
        "node_id": "a",
        "rank": 3,
        "local_rank": 1,
        "pid": 77,
        "exit_code": 5,
        "cause": "exit code 5",
        "stderr_tail": ("Traceback", "Boom"),
    }
    return Failure(**(given | changes))


def wait(reason: str = "waiting for 1 more node", remaining_s: float | None = None) -> Wait:
    return Wait(reason=reason, remaining_s=remaining_s, ending=None if remaining_s is None else "gives_up")


def start(round: int = 1, **changes: Any) -> Start:
    return Start(assignment=an_assignment(round, **changes), reason="all are there")


def stop(round: int = 1, reason: str = "node b left: SIGTERM") -> Stop:
    return Stop(round=round, reason=reason)


def finish(*, succeeded: bool = True, **story: Any) -> Finish:
    reason = "all workers of 3 nodes exited 0" if succeeded else "spent"
    return Finish(succeeded=succeeded, reason=reason, **story)


def join(agent_id: str = "a.1", after_round: int = 0, **changes: Any) -> JoinRequest:
    """What the agent asks for; the runner fills in its port and address."""
    given = {"run_id": "run", "node_id": "a", "addr": "", "port": 0, "local_world_size": 4}
    return JoinRequest(agent_id=agent_id, after_round=after_round, **(given | changes))


def poll(agent_id: str = "a.1", revision: int = 1, hold: bool = True) -> PollRequest:
    return PollRequest(run_id="run", agent_id=agent_id, revision=revision, hold=hold)


def report(agent_id: str = "a.1", round: int = 1, failure: Failure | None = None) -> ReportRequest:
    return ReportRequest(run_id="run", agent_id=agent_id, round=round, failure=failure)


def leave(agent_id: str = "a.1", reason: str = "SIGTERM") -> LeaveRequest:
    return LeaveRequest(run_id="run", agent_id=agent_id, reason=reason)


class Story:
    """One agent, from its start on."""

    def __init__(self, **limits: float) -> None:
        self.machine = AgentMachine(join("a"), server="host:1", **limits)
        self.now = 100.0
        self.revision = 0
        self.effects: list[Effect] = []
        """Of the last thing that happened."""
        self.handle(Started())

    # What happens.

    def is_told(self, directive: Directive, *, revision: int | None = None, warning: str = "") -> None:
        """The server answers the request under way, with a new revision unless a test says otherwise."""
        self.revision = self.revision + 1 if revision is None else revision
        reply = Reply(epoch="epoch", revision=self.revision, lease_s=LEASE_S, directive=directive, warning=warning)
        self.handle(Answered(reply))

    def is_refused(self, error: ProtocolError) -> None:
        self.handle(Answered(error))

    def workers_succeed(self, round: int | None = None) -> None:
        self.handle(WorkersSucceeded(self.machine.round if round is None else round))

    def workers_fail(self, round: int | None = None) -> None:
        self.handle(WorkerFailed(self.machine.round if round is None else round, a_failure()))

    def workers_are_gone(self, round: int | None = None) -> None:
        self.handle(WorkersStopped(self.machine.round if round is None else round))

    def is_signalled(self, name: str = "SIGTERM") -> None:
        self.handle(Signalled(name))

    def gives_up(self, reason: str = "no free port") -> None:
        self.handle(GaveUp(reason))

    def cannot_reach_the_server(self, error: Exception | None = None) -> None:
        self.handle(ConnectionFailed(error or Unreachable("connect", "10.0.0.1: Connection refused")))

    def time_passes(self, seconds: float) -> None:
        """With each deadline on the way."""
        until = self.now + seconds
        effects: list[Effect] = []
        while (at := self.machine.next_deadline()) is not None and at <= until:
            self.deadline_comes()
            effects += self.effects
        self.now, self.effects = until, effects

    def deadline_comes(self) -> None:
        at = self.machine.next_deadline()
        assert at is not None
        self.now = max(self.now, at)
        self.handle(TimePassed())

    def handle(self, event: Event) -> None:
        self.effects = self.machine.handle(event, self.now)

    # What a user, or the server, notices.

    def did(self, kind: type) -> list[Any]:
        """The effects of that kind of the last thing that happened."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def said(self) -> list[str]:
        return [effect.text for effect in self.did(Say)]

    @property
    def sent(self) -> list[JoinRequest | PollRequest]:
        """What the last thing that happened made it ask the server."""
        return self.did(JoinRequest) + self.did(PollRequest)

    @property
    def lasts(self) -> float | None:
        """How long until its next deadline."""
        at = self.machine.next_deadline()
        return None if at is None else at - self.now


def running(round: int = 1, **limits: float) -> Story:
    """An agent whose workers run."""
    agent = Story(**limits)
    agent.is_told(start(round))
    return agent
