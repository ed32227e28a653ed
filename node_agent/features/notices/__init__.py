"""Notices: tell the workers that their round is about to end, so that they save their work."""

from collections.abc import Callable, Iterator
from typing import Annotated

from msgspec.structs import replace
from rdzv_protocol.queries import Notice, Query

from node_agent.flags import RESTART, ours, seconds, signal_name
from node_agent.kernel.config import LaunchPlan, Options, UsageError

SHARE = 0.8
"""Largest part of `--shutdown-timeout` for a notice. A scheduler gives no more time between SIGTERM and SIGKILL."""


class Notices(Options, frozen=True, kw_only=True):
    """Notices to the workers."""

    feature = "node_agent.features.notices.feature:Notices"
    after = "signals_to_handle"

    # fmt: off
    notice_timeout: Annotated[float | None, ours(
        "S", seconds(), "before a node leaves (a signal, a drain, a preemption), tell the workers of all nodes to "
        "save. Wait for them up to S seconds, at most 4/5 of --shutdown-timeout (default: stop workers at once, as "
        "torchrun does)", task=RESTART)] = None
    notice_signal: Annotated[str | None, ours(
        "NAME", signal_name, "with a notice, send this signal to each worker that handles it, and wait for those "
        "workers (default: wait only for workers that listen, by node_agent.notice() or NODE_AGENT_NOTICE_ACK)")] = None
    # fmt: on
    notice_s: float | None = None
    """Seconds that this agent, when told to leave, waits until the workers of all nodes have saved; None for no wait.
    The rest of its time is for their end."""
    gives_notices: bool = False
    """Whether workers get the files for notices."""

    @property
    def is_on(self) -> bool:
        return self.gives_notices

    @property
    def answers(self) -> tuple[type[Query], ...]:
        return (Notice,)

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "Notices":
        asked, name = self.notice_timeout, self.notice_signal
        gives_notices = asked is not None or plan.config.join.settings.scale_up == "on-notice"
        if name and not gives_notices:
            from node_agent.features.notices import words

            raise UsageError(words.signal_without_notice(source("notice_signal")))
        if name in plan.config.signals and name in ("SIGTERM", "SIGINT"):
            from node_agent.features.notices import words

            raise UsageError(words.signal_that_stops(source("notice_signal"), name))
        notice_s = None if asked is None else min(asked, plan.config.shutdown_timeout_s * SHARE)
        return replace(self, notice_s=notice_s, gives_notices=gives_notices)

    def notes(self, plan: LaunchPlan, source: Callable[[str], str]) -> Iterator[str]:
        asked, given = self.notice_timeout, self.notice_s
        if asked is not None and given is not None and given < asked:
            from node_agent.features.notices import words

            shutdown_s = plan.config.shutdown_timeout_s
            yield words.shortened(source("notice_timeout"), asked, given, shutdown_s, enough_s=asked / SHARE)
