"""Readiness: a file exists while the agent is a member of its run."""

import os
from collections.abc import Callable
from typing import Annotated

from node_agent.flags import ours, text
from node_agent.kernel.config import LaunchPlan, Options, UsageError


class Readiness(Options, frozen=True, kw_only=True):
    """Path of the file."""

    feature = "node_agent.features.readiness.ready_file:ReadyFile"
    after = "metrics_port"

    # fmt: off
    ready_file: Annotated[str | None, ours(
        "FILE", text, "keep the agent's process id in this file while the agent takes part in the run or stands by, "
        "for readiness probes (test -e FILE)", is_for_one=True)] = None
    # fmt: on

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "Readiness":
        """Refuse a file that cannot be written. Otherwise a probe would report the node as broken much later."""
        path = self.ready_file
        if path is not None and (os.path.isdir(path) or not os.access(os.path.dirname(path) or ".", os.W_OK)):
            from node_agent.features.readiness import words

            raise UsageError(words.not_writable(source("ready_file"), path))
        return self
