"""Effects of the agent's machine: what its runner must do.

A protocol message is also an effect: the runner sends it. Joins and polls are sent one after another, each after
`Answered`. The runner adds a fresh port and this node's address to a join. Reports and leaves use a second connection,
and the runner tries again until the server has them.
"""

from enum import Enum, auto

from msgspec import Struct
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, Finish, Request
from rdzv_protocol.queries import Query


class StartWorkers(Struct, frozen=True):
    assignment: Assignment


class StopWorkers(Struct, frozen=True):
    """Signal every worker's process group, then SIGKILL after the grace period, or at once if `kill`.

    The answer is `WorkersStopped`. `grace_s`: seconds, None for the user's `--shutdown-timeout`. `seeks_cause`: see
    `Stop` in the protocol.
    """

    signal_name: str = "SIGTERM"
    kill: bool = False
    grace_s: float | None = None
    seeks_cause: bool = False


class JudgeFailure(Struct, frozen=True):
    """Have the features judge this failure. The answer is `FailureJudged`, in bounded time."""

    round: int
    failure: Failure


class CheckNode(Struct, frozen=True):
    """Check whether this node is fit for a round. The answer is `NodeChecked`."""

    after_failure: bool = False
    """Whether a worker of this node has failed since the last check."""


class Level(Enum):
    """Importance of a line. `number` is its level in `logging`."""

    ROUTINE = auto()
    """All is as it should be."""
    NOTICE = auto()
    """Something unusual or incomplete: nodes are missing, or the run restarts."""
    WARNING = auto()
    """The server cannot be reached, or has a complaint."""
    ERROR = auto()
    """A worker or the run has failed, or this agent cannot continue."""

    @property
    def number(self) -> int:
        return _NUMBERS[self]


_NUMBERS = {Level.ROUTINE: 20, Level.NOTICE: 20, Level.WARNING: 30, Level.ERROR: 40}


WAITING = "waiting"
"""Event of the line that says what the agent waits for."""


class Log(Struct, frozen=True):
    """One line for people."""

    text: str
    level: Level = Level.NOTICE
    event: str = ""
    """Kind of what happened. It has the same name as the server's event if there is one."""


class WriteFailureReport(Struct, frozen=True):
    """The run or this agent has failed: write the reason, for people and for the program that started the agent.

    `finish`: the run's end with its final report. None if the agent ends for its own reason, which is `error`.
    """

    error: str
    finish: Finish | None = None
    is_server_lost: bool = False
    """Whether the agent has stopped waiting for the server."""

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the run, as torchrun reports it. None if the cause was not a worker."""
        return (self.finish.failure or self.finish.first_failure) if self.finish else None


class Ask(Struct, frozen=True):
    """Find out what the server asks. The answer is `Answer`, as soon as possible."""

    query: Query


class Exit(Struct, frozen=True):
    """End the process. All workers have ended."""

    code: ExitCode


OwnEffect = StartWorkers | StopWorkers | JudgeFailure | CheckNode | Log | WriteFailureReport | Ask | Exit
"""Effects that the agent carries out itself. The others are requests, which it sends to the server."""
Effect = Request | OwnEffect
