"""Outages of the server as an agent sees them: what is said of them, and when the agent gives the server up.

How long it goes on without the server depends on its workers. While they run: as long as the user allows, by default
for ever. Without workers nobody gains by waiting: as long as for the first answer.
"""

from math import inf
from typing import TYPE_CHECKING

from rdzv_protocol.errors import ProtocolError

from node_agent import words
from node_agent.kernel.core.backoff import Cut, Unreachable

if TYPE_CHECKING:
    from node_agent.words.connection import Stage

FIRST_TRY_S = 1.0
"""Seconds that the first try may take, however short the user's limit."""
QUIET_S = 2.0
"""Silence after which a person is told what the agent waits for."""
SAME_S = 0.3
"""Greatest difference between the times of two polls that the same idle time-out has ended."""


def stage_of(failure: Unreachable | ProtocolError) -> "Stage":
    """The stage that the failure reached; a refusal of the server comes from the server."""
    return failure.stage if isinstance(failure, Unreachable) else "server"


NOT_REACHED = ("name", "connect", "TLS", "host", "port", "another program")
"""Stages of a failure before anything was sent to a server: none has heard of this agent."""


class ServerOutages:
    """Knowledge of one agent about its server: whether that answers, and since when it does not.

    `server` names the server for people.
    """

    def __init__(self, server: str, *, connect_timeout_s: float, server_lost_timeout_s: float) -> None:
        self.is_known = False
        """Whether the server has answered at least once: then it knows of this agent."""
        self.failure: Unreachable | ProtocolError | None = None
        """Latest failure of the connection since the server has answered; None: there was none."""
        self.idle_since: float | None = 0.0
        """Beginning of the time without workers; None while there are any."""
        self._server = server
        self._connect_timeout_s = connect_timeout_s
        self._server_lost_timeout_s = server_lost_timeout_s
        self._silent_since: float | None = None
        """Beginning of the time without an answer; None while the server answers."""
        self._notice_at: float | None = None
        """Time to say that the server has not answered yet."""
        self._cut: Cut | None = None
        """Latest poll that was cut."""
        self._has_warned_of_cuts = False

    @property
    def longest_s(self) -> float:
        """Limit of the wait for a server that does not answer; endless only while workers run."""
        may_be_endless = self.is_known and (self.idle_since is None or self._server_lost_timeout_s < inf)
        return self._server_lost_timeout_s if may_be_endless else self._connect_timeout_s

    @property
    def gives_up_at(self) -> float:
        """Time at which the agent gives the server up; infinite while it answers, or is waited for without a limit."""
        if self._silent_since is None:
            return inf
        if not self.is_known:
            first_try_s = 0.0 if self.failure else FIRST_TRY_S
            return self._silent_since + max(self.longest_s, first_try_s)
        is_idle = self._server_lost_timeout_s == inf and self.idle_since is not None
        return (max(self._silent_since, self.idle_since or 0.0) if is_idle else self._silent_since) + self.longest_s

    @property
    def reason_to_give_up(self) -> str:
        """Sentence of an agent that gives the server up, with advice."""
        failure = self.failure or Unreachable("HTTP", words.connection.NO_ANSWER)
        return words.connection.server_given_up(self._server, self.longest_s, str(failure), stage_of(failure))

    @property
    def was_never_reached(self) -> bool:
        """Whether no server has heard of this agent, as far as the latest failure tells."""
        return not self.is_known and isinstance(self.failure, Unreachable) and self.failure.stage in NOT_REACHED

    def silent_s(self, now: float) -> float:
        """Time for which the server, which has answered before, does not answer."""
        return now - self._silent_since if self.is_known and self._silent_since is not None else 0.0

    def next_deadline(self) -> float:
        """Time at which `unanswered` has something to say, or the server is given up; infinite for never."""
        return min(self.gives_up_at, inf if self._notice_at is None else self._notice_at)

    def expect_first_answer(self, now: float) -> None:
        """Wait for the server's first answer from now on, if that has not come or been waited for."""
        if not self.is_known and self._silent_since is None:
            self._silent_since, self._notice_at = now, now + QUIET_S

    def answered(self, now: float) -> str:
        """Note that the server has answered. Returns the line about the end of an outage; empty if there was none."""
        silent_since, failure = self._silent_since, self.failure
        self.is_known, self._silent_since, self.failure, self._notice_at = True, None, None, None
        if failure is None or silent_since is None:
            return ""
        return words.connection.server_reached(self._server, now - silent_since)

    def failed(self, error: Unreachable | ProtocolError, now: float) -> str:
        """Note that the connection has failed. Returns the line about it."""
        is_first, self.failure, self._notice_at = self.failure is None, error, None
        if self._silent_since is None:
            self._silent_since = now
        if not is_first:
            return words.connection.still_no_server(self._server, str(error))
        if self.is_known:
            return words.connection.server_lost(self._server, str(error), self.idle_since is None, self.longest_s)
        return words.connection.not_reached_yet(self._server, str(error), self.longest_s, stage_of(error))

    def cut(self, cut: Cut, hold_s: float) -> str:
        """Note that a poll was cut, which may be held for `hold_s`. Returns the warning, once; empty before and after.

        A proxy that gives up waiting says so. A closed connection may have other causes; two that were open for the
        same time have not.
        """
        before, self._cut = self._cut, cut
        is_repeated = before is not None and abs(before.open_s - cut.open_s) < SAME_S
        if self._has_warned_of_cuts or not (cut.error.stage == "proxy" or is_repeated):
            return ""
        self._has_warned_of_cuts = True
        return words.connection.poll_cut(self._server, cut.open_s, str(cut.error), hold_s)

    def unanswered(self, now: float) -> str:
        """The line that the server has not answered yet, once it is due; empty if it is not."""
        if self._notice_at is None or now < self._notice_at:
            return ""
        self._notice_at = None
        return words.connection.not_answered_yet(self._server)
