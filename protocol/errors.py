"""One tree for everything that the server refuses, with codes that never change once released.

    ProtocolError               code                status
    ├── MalformedMessage        malformed_message   400   the body is not what its path takes
    ├── MessageTooLarge         message_too_large   413
    ├── Unauthorized            unauthorized        401   no token, or a wrong one
    ├── Forbidden               forbidden           403   the token is good, but not for this
    ├── SettingsConflict        settings_conflict   409   the agent asks for another run than the one there is
    ├── NodeRankTaken           node_rank_taken     409   two live nodes claim one --node-rank
    ├── AgentFenced             agent_fenced        409   this agent is no longer part of the run
    ├── StaleRound              stale_round         409   the report is about a round that is over
    ├── RunSucceeded            run_succeeded       410   the run is over: nothing is left to do
    ├── RunFailed               run_failed          410   the run that this agent was part of has failed
    ├── NotLeader               not_leader          421   of several servers another one leads: ask that one
    └── ServerUnavailable       unavailable         503   starting, shutting down or overloaded: try again

A refused request has changed nothing. `AgentFenced` tells an agent to stop its workers and to join anew;
`RunSucceeded` lets it exit with 0, `RunFailed` with 1; `NotLeader`, `ServerUnavailable` and everything below HTTP is
retried; the rest ends the agent with exit code 2.
"""

from typing import ClassVar


class ProtocolError(Exception):
    """A refusal. `str(error)` is one line that says what is wrong and what to do."""

    code: ClassVar[str] = "protocol_error"
    status: ClassVar[int] = 400


class MalformedMessage(ProtocolError):
    code = "malformed_message"


class MessageTooLarge(ProtocolError):
    code = "message_too_large"
    status = 413


class Unauthorized(ProtocolError):
    code = "unauthorized"
    status = 401


class Forbidden(ProtocolError):
    code = "forbidden"
    status = 403


class SettingsConflict(ProtocolError):
    code = "settings_conflict"
    status = 409


class NodeRankTaken(ProtocolError):
    code = "node_rank_taken"
    status = 409


class AgentFenced(ProtocolError):
    code = "agent_fenced"
    status = 409


class StaleRound(ProtocolError):
    code = "stale_round"
    status = 409


class RunSucceeded(ProtocolError):
    code = "run_succeeded"
    status = 410


class RunFailed(ProtocolError):
    code = "run_failed"
    status = 410


class NotLeader(ProtocolError):
    """`leader`: HOST:PORT of the server to ask, None if it is not known; `leadership`: the number of its leadership."""

    code = "not_leader"
    status = 421

    def __init__(self, message: str, leader: str | None = None, leadership: int = 0) -> None:
        super().__init__(message)
        self.leader = leader
        self.leadership = leadership


class ServerUnavailable(ProtocolError):
    code = "unavailable"
    status = 503


_BY_CODE: dict[str, type[ProtocolError]] = {
    error.code: error
    for error in (
        ProtocolError,
        MalformedMessage,
        MessageTooLarge,
        Unauthorized,
        Forbidden,
        SettingsConflict,
        NodeRankTaken,
        AgentFenced,
        StaleRound,
        RunSucceeded,
        RunFailed,
        NotLeader,
        ServerUnavailable,
    )
}


def from_code(code: str, message: str, leader: str | None = None, leadership: int = 0) -> ProtocolError:
    """The error that a reply names; a code from a newer server becomes a plain `ProtocolError`."""
    if code == NotLeader.code:
        return NotLeader(message, leader, leadership)
    return _BY_CODE.get(code, ProtocolError)(message)
