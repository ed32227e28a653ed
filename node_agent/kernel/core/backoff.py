"""Retry policy of one transport to the server: when to try again after a failure, and which failures to report.

Like the machine, it is pure: it takes errors, times and jitter, and returns decisions. The machine decides how long an
agent continues without a server.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from rdzv_protocol.errors import KEPT_OUT, NotLeader, ProtocolError, ServerUnavailable

if TYPE_CHECKING:
    from node_agent.words.connection import Stage

FIRST_S, FACTOR, LONGEST_S = 0.05, 1.6, 1.0
HANDOVER_S = 0.5
"""Seconds in which one of several servers hands over to another. Shorter outages are not reported."""
CUT_S = 0.5
"""Seconds after which a held poll counts as cut, perhaps by an idle timeout, if its connection breaks."""


class Signal(Protocol):
    """The part of `asyncio.Event` that the policy uses."""

    def is_set(self) -> bool: ...

    def wait(self) -> Awaitable[object]: ...


class Unreachable(Exception):
    """The exchange failed, and trying again may help. `stage`: how far the exchange got.

    `sooner`: set when another try is worth it before its time, such as with another one of several servers.
    `is_final`: trying again does not help until something is changed.
    `is_cut`: the exchange ended without an answer, as by an idle timeout of a proxy.
    """

    def __init__(
        self, stage: "Stage", detail: str, sooner: Signal | None = None, *, is_final: bool = False, is_cut: bool = False
    ) -> None:
        super().__init__(f"{stage}: {detail}")
        self.stage = stage
        self.detail = detail
        self.sooner = sooner
        self.is_final = is_final
        self.is_cut = is_cut


def is_from_server(error: Unreachable | ProtocolError) -> bool:
    """Return whether rdzv-server itself answered that it cannot serve now. Such a server lives and may recover."""
    if isinstance(error, Unreachable):
        return error.stage in ("server", "leader")
    return isinstance(error, ServerUnavailable | NotLeader)


class ServerLost(Exception):
    """No server will ever come. One line says what to do."""


RETRIED = (Unreachable, ServerUnavailable, NotLeader, *KEPT_OUT)
"""Failures after which an exchange is tried again. Other refusals are answers."""


class Pause(Struct, frozen=True):
    """Wait before the next try. `failure`: the failure to report, None if there is nothing to report."""

    delay_s: float
    failure: Unreachable | ProtocolError | None


class Cut(Struct, frozen=True):
    """A held poll that something between agent and server ended after `open_s` seconds. The next try was answered."""

    open_s: float
    error: Unreachable


class Retry:
    """State of one transport between two answers. `has_joined`: whether the agent was answered, over this or another
    one.
    """

    def __init__(self, *, has_joined: bool = False) -> None:
        self._has_joined = has_joined
        self._attempt = 0
        self._failing_since: float | None = None
        self._cause: Unreachable | ProtocolError | None = None
        """First of the failures that have not been reported."""
        self._reported: set[str] = set()
        self._cut: Cut | None = None

    def answered(self) -> Cut | None:
        """Record that the server has answered, if only to refuse. Return the failure before if it was a single cut."""
        self._has_joined = True
        self._attempt, self._failing_since, self._cause = 0, None, None
        self._reported.clear()
        cut, self._cut = self._cut, None
        return cut

    def failed(
        self,
        error: Unreachable | ProtocolError,
        now: float,
        tried_for_s: float,
        jitter: float,
        *,
        was_held: bool = False,
    ) -> Pause:
        """Return what to do after one of the `RETRIED` failures. Raise it if the server keeps out an agent that was
        never in.

        `was_held`: whether the request was a poll that the server holds. A cut of such a poll is reported only if the
        next try fails too.
        """
        if isinstance(error, KEPT_OUT) and not self._has_joined:
            raise error
        # Try at once if the connection lasted a while and broke: an agent has little time to come back.
        self._attempt = 1 if tried_for_s > LONGEST_S else self._attempt + 1
        is_first = self._failing_since is None
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._cause = self._cause or error
        sooner = error.sooner if isinstance(error, Unreachable) else None
        if sooner and sooner.is_set():
            return Pause(0.0, None)
        self._cut = None
        if is_first and was_held and isinstance(error, Unreachable) and error.is_cut and tried_for_s >= CUT_S:
            self._cut = Cut(tried_for_s, error)
            return Pause(delay(self._attempt, jitter), None)
        failure = None
        if sooner is None or now - self._failing_since >= HANDOVER_S:
            failure, self._cause = self._unreported(self._cause), None
        return Pause(delay(self._attempt, jitter), failure)

    def _unreported(self, cause: Unreachable | ProtocolError) -> Unreachable | ProtocolError | None:
        """Return the failure, None if it has been reported or only says that another server leads."""
        is_elsewhere = isinstance(cause, Unreachable) and cause.stage == "leader" and bool(self._reported)
        is_old = is_elsewhere or str(cause) in self._reported
        self._reported.add(str(cause))
        return None if is_old else cause


def delay(attempt: int, jitter: float, longest_s: float = LONGEST_S) -> float:
    """Return the seconds before try number `attempt` (from 1). `jitter`, from 0 to 1, spreads agents that lost one
    server.
    """
    longest = min(longest_s, FIRST_S * FACTOR ** min(attempt - 1, 32))
    return longest * (0.5 + jitter / 2)
