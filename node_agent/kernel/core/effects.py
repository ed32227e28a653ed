"""Effects of the agent's machine: what the shell must do for it.

A protocol message is to be sent. Joins and polls go one after another: the next one comes after `Answered`. A join is
completed with a fresh port and with the address from which this node reaches the server. Reports and leaves go beside
them, and are tried until the server has them.
"""

from enum import Enum, auto

from msgspec import Struct
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, Finish, Request
from rdzv_protocol.queries import Query


class StartWorkers(Struct, frozen=True):
    assignment: Assignment


class StopWorkers(Struct, frozen=True):
    """Signal every worker's group, SIGKILL after the grace period (`kill`: at once); answered by `WorkersStopped`.

    `grace_s`: seconds; None: as long as the user's `--shutdown-timeout`.
    """

    signal_name: str = "SIGTERM"
    kill: bool = False
    grace_s: float | None = None


class MatchRules(Struct, frozen=True):
    """Find out what the user's rules say of this failure; answered by `RulesMatched`, in bounded time."""

    round: int
    failure: Failure


class CheckNode(Struct, frozen=True):
    """Find out whether this node is fit for a round; answered by `NodeChecked`."""

    after_failure: bool = False
    """Whether a worker of this node has failed since the last check."""


class Level(Enum):
    """Weight of a line for the person who watches; `number` is its weight in `logging`."""

    ROUTINE = auto()
    """Line that nobody waits for: all is as it should be."""
    NOTICE = auto()
    """The run does not go its usual way, or not yet: nodes are missing, it starts again."""
    WARNING = auto()
    """The server is out of reach, or has something to object."""
    ERROR = auto()
    """A worker has failed, the run has, or this agent cannot go on."""

    @property
    def number(self) -> int:
        return _NUMBERS[self]


_NUMBERS = {Level.ROUTINE: 20, Level.NOTICE: 20, Level.WARNING: 30, Level.ERROR: 40}


WAITING = "waiting"
"""Event of the line that says what the agent waits for."""


class Log(Struct, frozen=True):
    """One line for the person who watches."""

    text: str
    level: Level = Level.NOTICE
    event: str = ""
    """Kind of what happened, in the words of the server's events where those have one."""


class WriteFailureReport(Struct, frozen=True):
    """The run has failed, or this agent has: leave behind why, for people and for whoever started the agent.

    `finish`: the run's end with its final report; None if the agent ends for a reason of its own, which is `error`.
    """

    error: str
    finish: Finish | None = None
    is_server_lost: bool = False
    """Whether the agent has given up waiting for the server."""

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the run, as torchrun tells it; None if that was no worker's."""
        return (self.finish.failure or self.finish.first_failure) if self.finish else None


class Ask(Struct, frozen=True):
    """Find out what the server asks; answered with `Answer`, as soon as can be."""

    query: Query


class Exit(Struct, frozen=True):
    """End the process: no worker is left."""

    code: ExitCode


OwnEffect = StartWorkers | StopWorkers | MatchRules | CheckNode | Log | WriteFailureReport | Ask | Exit
"""Effects that the agent carries out itself; the other ones are requests, which it sends to the server."""
Effect = Request | OwnEffect
