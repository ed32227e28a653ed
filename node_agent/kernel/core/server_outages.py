"""Outages of the server as an agent sees them: what to log about them, and when the agent stops waiting.

With running workers the agent waits as long as the user allows, by default forever. Without workers a long wait has no
use, so the limit is that of the wait for the first answer. A server that answers that it cannot serve now, such as one
whose disk is full, lives and still has the run. Without a limit from the user, the agent waits as long as it answers.
"""

from math import inf
from typing import TYPE_CHECKING

from rdzv_protocol.errors import ProtocolError

from node_agent import words
from node_agent.kernel.core.backoff import Cut, Unreachable, is_from_server

if TYPE_CHECKING:
    from node_agent.words.connection import Stage

FIRST_TRY_S = 1.0
"""Seconds that the first try may take, even if the user's limit is shorter."""
QUIET_S = 2.0
"""Seconds of silence after which the agent logs what it waits for."""
SAME_S = 0.3
"""Most seconds by which the times of two polls may differ if the same idle timeout has ended both."""


def stage_of(failure: Unreachable | ProtocolError) -> "Stage":
    """Return the stage that the failed exchange reached. A refusal comes from the server itself."""
    return failure.stage if isinstance(failure, Unreachable) else "server"


NOT_REACHED = ("name", "connect", "TLS", "host", "port", "another program")
"""Stages before anything was sent to a server, so that no server knows this agent."""


class ServerOutages:
    """Knowledge of one agent about its server: whether it answers, and since when it does not.

    `server`: the server's name for people.
    """

    def __init__(self, server: str, *, connect_timeout_s: float, server_lost_timeout_s: float) -> None:
        self.is_known = False
        """Whether the server has answered at least once, so that it knows this agent."""
        self.failure: Unreachable | ProtocolError | None = None
        """Latest failure of the connection since the server's last answer, None if there was none."""
        self._idle_since: float | None = 0.0
        """Start of the time without workers, None while there are workers."""
        self._server = server
        self._connect_timeout_s = connect_timeout_s
        self._server_lost_timeout_s = server_lost_timeout_s
        self._silent_since: float | None = None
        """Start of the time without an answer, None while the server answers."""
        self._refused_at = -inf
        """Time at which the server last answered that it cannot serve now."""
        self._notice_at: float | None = None
        """Time to log that the server has not answered yet."""
        self._cut: Cut | None = None
        """Latest poll that was cut."""
        self._has_warned_of_cuts = False

    @property
    def has_workers(self) -> bool:
        """Whether the agent has workers, for which it waits longer."""
        return self._idle_since is None

    @property
    def longest_s(self) -> float:
        """Most seconds to wait for a server that does not answer. Infinite only while workers run."""
        may_be_endless = self.is_known and (self.has_workers or self._server_lost_timeout_s < inf)
        return self._server_lost_timeout_s if may_be_endless else self._connect_timeout_s

    @property
    def gives_up_at(self) -> float:
        """Time at which the agent stops waiting for the server, infinite while it answers or without a limit."""
        if self._silent_since is None:
            return inf
        if not self.is_known:
            first_try_s = 0.0 if self.failure else FIRST_TRY_S
            return self._silent_since + max(self.longest_s, first_try_s)
        if self._waits_idle:
            return max(self._silent_since, self._idle_since or 0.0, self._refused_at) + self.longest_s
        return self._silent_since + self.longest_s

    @property
    def server_lives(self) -> bool:
        """Whether the agent waits as long as the server answers that it cannot serve now."""
        return self._waits_idle and self.failure is not None and is_from_server(self.failure)

    @property
    def _waits_idle(self) -> bool:
        """Whether the agent waits without workers for a server that knows it, and the user gave no limit for that."""
        return self.is_known and not self.has_workers and self._server_lost_timeout_s == inf

    @property
    def reason_to_give_up(self) -> str:
        """Sentence about why the agent stops waiting for the server, with advice."""
        failure = self.failure or Unreachable("HTTP", words.connection.NO_ANSWER)
        return words.connection.server_given_up(self._server, self.longest_s, str(failure), stage_of(failure))

    @property
    def was_never_reached(self) -> bool:
        """Whether no server knows this agent, judging by the latest failure."""
        return not self.is_known and isinstance(self.failure, Unreachable) and self.failure.stage in NOT_REACHED

    def workers_started(self) -> None:
        self._idle_since = None

    def workers_ended(self, now: float) -> None:
        self._idle_since = now

    def silent_s(self, now: float) -> float:
        """Return the seconds for which a server that has answered before has been silent."""
        return now - self._silent_since if self.is_known and self._silent_since is not None else 0.0

    def gone_at(self, after_s: float) -> float:
        """Return the time at which the server will not have answered for `after_s`, infinite without an outage."""
        if self.failure is None or self._silent_since is None:
            return inf
        return max(self._silent_since, self._refused_at) + after_s

    def next_deadline(self) -> float:
        """Return the time at which `unanswered` has a line to log or the agent stops waiting, infinite if never."""
        return min(self.gives_up_at, inf if self._notice_at is None else self._notice_at)

    def expect_first_answer(self, now: float) -> None:
        """Start to wait for the server's first answer, unless it has come or the wait has started."""
        if not self.is_known and self._silent_since is None:
            self._silent_since, self._notice_at = now, now + QUIET_S

    def answered(self, now: float) -> str:
        """Record that the server has answered. Return a line about the end of an outage, empty if there was none."""
        silent_since, failure = self._silent_since, self.failure
        self.is_known, self._silent_since, self.failure, self._notice_at = True, None, None, None
        if failure is None or silent_since is None:
            return ""
        return words.connection.server_reached(self._server, now - silent_since)

    def refused(self, now: float) -> None:
        """Record that the server has answered that it cannot serve now."""
        self._refused_at = now

    def failed(self, error: Unreachable | ProtocolError, now: float) -> str:
        """Record that the connection has failed. Return a line about it."""
        is_first, self.failure, self._notice_at = self.failure is None, error, None
        if self._silent_since is None:
            self._silent_since = now
        if not is_first:
            return words.connection.still_no_server(self._server, str(error), self.longest_s, self.server_lives)
        if self.is_known:
            return words.connection.server_lost(
                self._server, str(error), self.has_workers, self.longest_s, self.server_lives
            )
        return words.connection.not_reached_yet(self._server, str(error), self.longest_s, stage_of(error))

    def cut(self, cut: Cut, hold_s: float) -> str:
        """Record that a poll was cut, which the server may hold for `hold_s` seconds. Return the warning once,
        otherwise empty.

        A proxy that stops waiting says so. A closed connection may have other causes, but not if two connections were
        open for the same time.
        """
        before, self._cut = self._cut, cut
        is_repeated = before is not None and abs(before.open_s - cut.open_s) < SAME_S
        if self._has_warned_of_cuts or not (cut.error.stage == "proxy" or is_repeated):
            return ""
        self._has_warned_of_cuts = True
        return words.connection.poll_cut(self._server, cut.open_s, str(cut.error), hold_s)

    def unanswered(self, now: float) -> str:
        """Return the line that the server has not answered yet when it is due, otherwise empty."""
        if self._notice_at is None or now < self._notice_at:
            return ""
        self._notice_at = None
        return words.connection.not_answered_yet(self._server)
