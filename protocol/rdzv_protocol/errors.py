"""Tree of all refusals of the server, with codes that never change once released.

A refused request has changed nothing. After `AgentFenced`, an agent stops its workers and joins again. After
`RunSucceeded` it exits with 0, after `RunFailed` with 1. After `OutcomeUnknown` it exits with 0 if all of its own
workers had exited 0, else with 77.

It retries `NotLeader`, `ServerUnavailable` and everything below HTTP. All other refusals end the agent with exit code
77. An agent that the server has answered before retries the errors of `KEPT_OUT`, too: a mistake with tokens or
certificates does not end a run.
"""

from typing import ClassVar


class ProtocolError(Exception):
    """A refusal. `str(error)` is one line that says what is wrong and what to do.

    `brief`: phrase about an agent that may not join, for people who wait for its node; empty for other refusals.
    """

    code: ClassVar[str] = "protocol_error"
    status: ClassVar[int] = 400

    def __init__(self, message: str = "", *, brief: str = "") -> None:
        super().__init__(message)
        self.brief = brief

    def __init_subclass__(cls, *, code: str, status: int) -> None:
        cls.code, cls.status = code, status
        _BY_CODE[code] = cls


_BY_CODE: dict[str, type[ProtocolError]] = {}


class MalformedMessage(ProtocolError, code="malformed_message", status=400):
    """The body is not the message that its path expects."""


class TlsRequired(ProtocolError, code="tls_required", status=400):
    """The server speaks TLS, and the agent does not."""


class LengthRequired(ProtocolError, code="length_required", status=411):
    """The body comes in chunks, without a Content-Length."""


class MessageTooLarge(ProtocolError, code="message_too_large", status=413):
    """The body is larger than any message."""


class UnsupportedMediaType(ProtocolError, code="unsupported_media_type", status=415):
    """The body is compressed, or does not have its path's type."""


class Unauthorized(ProtocolError, code="unauthorized", status=401):
    """The request has no token, or a wrong one."""


class Forbidden(ProtocolError, code="forbidden", status=403):
    """The token is valid, but does not permit this request."""


class SettingsConflict(ProtocolError, code="settings_conflict", status=409):
    """The agent asks for other settings than its run has."""


class NodeRankTaken(ProtocolError, code="node_rank_taken", status=409):
    """Two live nodes claim one `--node-rank`."""


class AgentFenced(ProtocolError, code="agent_fenced", status=409):
    """The agent is no longer part of the run."""


class StaleRound(ProtocolError, code="stale_round", status=409):
    """The report is about a round that is over."""


class UnknownRun(ProtocolError, code="unknown_run", status=404):
    """An operator asks for a run that the server does not know."""


class UnknownNode(ProtocolError, code="unknown_node", status=404):
    """An operator drains a node that has no agent in any run."""


class UnknownRank(ProtocolError, code="unknown_rank", status=404):
    """An operator asks for a worker by a rank that the run does not have."""


class QueryRefused(ProtocolError, code="query_refused", status=409):
    """An agent cannot or will not answer an operator's query."""


class NoAnswer(ProtocolError, code="no_answer", status=409):
    """An agent has not answered an operator's query in time."""


class RunEnded(ProtocolError, code="run_ended", status=409):
    """An operator acts on a run that has ended."""


class RunStillActive(ProtocolError, code="run_goes_on", status=409):
    """An operator forgets a run that has not ended."""


class NoStandby(ProtocolError, code="nobody_waits", status=409):
    """An operator admits waiting nodes, but a standby node for a free place is missing."""


class RunSucceeded(ProtocolError, code="run_succeeded", status=410):
    """The run has succeeded: there is nothing left to do."""


class RunFailed(ProtocolError, code="run_failed", status=410):
    """The run that the agent was part of has failed."""


class RunStopped(ProtocolError, code="run_stopped", status=410):
    """An operator has stopped the run, and the agent does not ask to start it again."""


class OutcomeUnknown(ProtocolError, code="outcome_unknown", status=410):
    """The run that the agent was part of has ended and is forgotten: the server does not know how it ended."""


class NotLeader(ProtocolError, code="not_leader", status=421):
    """Another server of the cluster leads.

    `leader`: HOST:PORT of the server to ask, or None if unknown; `leadership`: the number of its leadership.
    """

    def __init__(self, message: str, leader: str | None = None, leadership: int = 0) -> None:
        super().__init__(message)
        self.leader = leader
        self.leadership = leadership


class ServerUnavailable(ProtocolError, code="unavailable", status=503):
    """The server is starting, shutting down or full: try again."""


class TooManyRequests(ServerUnavailable, code="too_many_requests", status=429):
    """The caller's address has sent too many requests: try again later."""


KEPT_OUT = (TlsRequired, Unauthorized, Forbidden)


def from_code(code: str, message: str, leader: str | None = None, leadership: int = 0) -> ProtocolError:
    """Return the error that a reply names. A code from a newer server becomes a plain `ProtocolError`."""
    if code == NotLeader.code:
        return NotLeader(message, leader, leadership)
    return _BY_CODE.get(code, ProtocolError)(message)
