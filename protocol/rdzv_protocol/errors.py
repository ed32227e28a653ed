"""One tree for everything that the server refuses, with codes that never change once released.

    ProtocolError               code                status
    ├── MalformedMessage        malformed_message   400   the body is not what its path takes
    ├── TlsRequired             tls_required        400   the server speaks TLS, and the agent does not
    ├── MessageTooLarge         message_too_large   413
    ├── UnsupportedMediaType    unsupported_media_type 415  the body is compressed, or not of its path's type
    ├── Unauthorized            unauthorized        401   no token, or a wrong one
    ├── Forbidden               forbidden           403   the token is good, but not for this
    ├── SettingsConflict        settings_conflict   409   the agent asks for another run than the one there is
    ├── NodeRankTaken           node_rank_taken     409   two live nodes claim one --node-rank
    ├── AgentFenced             agent_fenced        409   this agent is no longer part of the run
    ├── StaleRound              stale_round         409   the report is about a round that is over
    ├── UnknownRun              unknown_run         404   an operator asks for what there is not
    ├── NobodyWaits             nobody_waits        409   an operator admits, and no node stands by for a free seat
    ├── RunSucceeded            run_succeeded       410   the run is over: nothing is left to do
    ├── RunFailed               run_failed          410   the run that this agent was part of has failed
    ├── NotLeader               not_leader          421   of several servers another one leads: ask that one
    └── ServerUnavailable       unavailable         503   starting, shutting down or full: try again
        └── TooManyRequests     too_many_requests   429   from this address: try again later

A refused request has changed nothing. `AgentFenced` tells an agent to stop its workers and to join anew;
`RunSucceeded` lets it exit with 0, `RunFailed` with 1; `NotLeader`, `ServerUnavailable` and everything below HTTP is
retried; the rest ends the agent with exit code 2. An agent that has been answered before goes on all the same when it
is kept out (`KEPT_OUT`): a mistake with tokens or certificates ends no run.
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


class TlsRequired(ProtocolError):
    code = "tls_required"


class UnsupportedMediaType(ProtocolError):
    code = "unsupported_media_type"
    status = 415


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


class UnknownRun(ProtocolError):
    code = "unknown_run"
    status = 404


class NobodyWaits(ProtocolError):
    code = "nobody_waits"
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


class TooManyRequests(ServerUnavailable):
    code = "too_many_requests"
    status = 429


KEPT_OUT = (TlsRequired, Unauthorized, Forbidden)

_BY_CODE: dict[str, type[ProtocolError]] = {
    error.code: error
    for error in (
        ProtocolError,
        MalformedMessage,
        TlsRequired,
        MessageTooLarge,
        UnsupportedMediaType,
        Unauthorized,
        Forbidden,
        SettingsConflict,
        NodeRankTaken,
        AgentFenced,
        StaleRound,
        UnknownRun,
        NobodyWaits,
        RunSucceeded,
        RunFailed,
        NotLeader,
        ServerUnavailable,
        TooManyRequests,
    )
}


def from_code(code: str, message: str, leader: str | None = None, leadership: int = 0) -> ProtocolError:
    """The error that a reply names; a code from a newer server becomes a plain `ProtocolError`."""
    if code == NotLeader.code:
        return NotLeader(message, leader, leadership)
    return _BY_CODE.get(code, ProtocolError)(message)
