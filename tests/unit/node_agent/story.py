"""Parts of an agent's story: messages, and a machine that handles events one after another.

The machine's requests are held here until a test answers them. Time is a number of seconds that a test moves.
"""

from typing import Any

from rdzv_protocol.messages import (
    Assignment,
    Directive,
    Drain,
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
from rdzv_protocol.queries import Queries
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.core.effects import Effect
from node_agent.kernel.core.events import (
    Answered,
    Event,
    Started,
    TimePassed,
)
from node_agent.kernel.core.machine import AgentMachine, Capabilities

LEASE_S = 9.0


def an_assignment(round: int = 1, **changes: Any) -> Assignment:
    """Return an assignment: node 1 of 3 in a round of ten ranks, with four of them."""
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


def drain(remaining_s: float = 60.0, reason: str = "node a is drained") -> Drain:
    return Drain(reason=reason, remaining_s=remaining_s)


def finish(*, succeeded: bool = True, **story: Any) -> Finish:
    reason = "all workers of 3 nodes exited 0" if succeeded else "spent"
    return Finish(succeeded=succeeded, reason=reason, **story)


def join(agent_id: str = "a.1", after_round: int = 0, **changes: Any) -> JoinRequest:
    """Return the agent's join. The runner adds its port and address."""
    given = {"run_id": "run", "node_id": "a", "addr": "", "port": 0, "local_world_size": 4}
    return JoinRequest(agent_id=agent_id, after_round=after_round, **(given | changes))


def poll(agent_id: str = "a.1", revision: int = 1, hold: bool = True) -> PollRequest:
    return PollRequest(run_id="run", agent_id=agent_id, revision=revision, hold=hold)


def report(agent_id: str = "a.1", round: int = 1, failure: Failure | None = None) -> ReportRequest:
    return ReportRequest(run_id="run", agent_id=agent_id, round=round, failure=failure)


def leave(agent_id: str = "a.1", reason: str = "SIGTERM", **more: bool) -> LeaveRequest:
    return LeaveRequest(run_id="run", agent_id=agent_id, reason=reason, **more)


class Story:
    """One agent, from its start. `given`: capabilities and limits of its machine."""

    def __init__(self, settings: RequestedSettings = RequestedSettings(), **given: Any) -> None:  # noqa: B008
        able = Capabilities(**{name: given.pop(name) for name in Capabilities.__struct_fields__ if name in given})
        self.machine = AgentMachine(join("a", settings=settings), server="host:1", capabilities=able, **given)
        self.now = 100.0
        self.revision = 0
        self.effects: list[Effect] = []
        """Effects of the latest event."""
        self.handle(Started())

    def handle(self, event: Event) -> None:
        self.effects = self.machine.handle(event, self.now)

    def is_told(
        self,
        directive: Directive,
        *,
        revision: int | None = None,
        warning: str = "",
        queries: Queries = (),
        attempt: int = 0,
    ) -> None:
        """The server answers the current request, with a new revision unless a test says otherwise."""
        self.revision = self.revision + 1 if revision is None else revision
        reply = Reply(
            epoch="epoch", revision=self.revision, lease_s=LEASE_S, directive=directive, warning=warning,
            queries=queries, attempt=attempt,
        )  # fmt: skip
        self.handle(Answered(reply))

    def time_passes(self, seconds: float) -> None:
        """Let time pass, with each deadline on the way."""
        until = self.now + seconds
        effects: list[Effect] = []
        while (at := self.machine.next_deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.handle(TimePassed())
            effects += self.effects
        self.now, self.effects = until, effects

    @property
    def lasts(self) -> float | None:
        """Return the seconds until the next deadline."""
        at = self.machine.next_deadline()
        return None if at is None else at - self.now
