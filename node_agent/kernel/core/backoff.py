"""Retry policy of one transport to the server: when to try again after a failure, and which failures to report.

Pure, as the machine is: errors, times and jitter go in, decisions come out. How long an agent goes on without a server
is the machine's to decide.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from rdzv_protocol.errors import KEPT_OUT, NotLeader, ProtocolError, ServerUnavailable

if TYPE_CHECKING:
    from node_agent.words.connection import Stage

FIRST_S, FACTOR, LONGEST_S = 0.05, 1.6, 1.0
HANDOVER_S = 0.5
"""Seconds within which one of several servers hands over to another one: shorter outages are not reported."""
CUT_S = 0.5
"""Seconds for which a poll was held before its connection broke: if so, an idle time-out may have ended it."""


class Signal(Protocol):
    """An `asyncio.Event`, as far as the policy knows."""

    def is_set(self) -> bool: ...

    def wait(self) -> Awaitable[object]: ...


class Unreachable(Exception):
    """The exchange did not come about. `stage` says how far it got. Trying again may help.

    `sooner` is set when another try is worth it before its time: with several servers, when another one is to be asked.
    `is_final`: it will not help unless somebody changes something first.
    `is_cut`: the exchange ended without an answer, as by an idle time-out of a proxy.
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


class ServerLost(Exception):
    """No server will come, however long one waits; one line says what to do."""


RETRIED = (Unreachable, ServerUnavailable, NotLeader, *KEPT_OUT)
"""Failures after which an exchange is tried again; other refusals are answers."""


class Pause(Struct, frozen=True):
    """Wait before the next try. `failure`: what has happened, if that is to be reported."""

    delay_s: float
    failure: Unreachable | ProtocolError | None


class Cut(Struct, frozen=True):
    """A held poll that something between agent and server ended after `open_s` seconds; the next try was answered."""

    open_s: float
    error: Unreachable


class Retry:
    """State of one transport between two answers. `has_joined`: the agent has been answered, on this one or another."""

    def __init__(self, *, has_joined: bool = False) -> None:
        self._has_joined = has_joined
        self._attempt = 0
        self._failing_since: float | None = None
        self._cause: Unreachable | ProtocolError | None = None
        """First failure of those that have not been reported."""
        self._reported: set[str] = set()
        self._cut: Cut | None = None

    def answered(self) -> Cut | None:
        """Note that the server has answered, if only to refuse. Returns the only failure before, if that was a cut."""
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
        """Decide what follows one of `RETRIED`. Raises it again if it keeps out an agent that was never in.

        `was_held`: the request was a poll that the server holds. If it was cut, that is reported only if the next try
        fails too.
        """
        if isinstance(error, KEPT_OUT) and not self._has_joined:
            raise error
        # A connection that stood for a while and broke is worth another at once: the grace for coming back is short.
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
        """The failure, unless it has been reported, or says no more than that another server leads."""
        is_elsewhere = isinstance(cause, Unreachable) and cause.stage == "leader" and bool(self._reported)
        is_old = is_elsewhere or str(cause) in self._reported
        self._reported.add(str(cause))
        return None if is_old else cause


def delay(attempt: int, jitter: float, longest_s: float = LONGEST_S) -> float:
    """Seconds before try number `attempt` (from 1). `jitter` from 0 to 1 spreads agents that lost the same server."""
    longest = min(longest_s, FIRST_S * FACTOR ** min(attempt - 1, 32))
    return longest * (0.5 + jitter / 2)
