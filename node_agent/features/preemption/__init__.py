"""Preemption: the agent leaves when a file or a cloud's metadata service announces the end of its machine."""

import os
import re
from collections.abc import Callable
from typing import Annotated

from node_agent.flags import ours, text
from node_agent.kernel.config import LaunchPlan, Options, UsageError

CLOUDS = ("aws", "gcp", "azure")


def cloud(given: object) -> tuple[str, str]:
    """Parse the name of a cloud, and the address of its metadata service, http://HOST:PORT, empty for the usual one."""
    which, has_base, base = text(given).partition("=")
    match = re.fullmatch(r"http://[A-Za-z0-9.-]+(?::([1-9]\d{0,4}))?", base)
    is_base = match is not None and int(match[1] or 80) <= 65_535
    if which not in CLOUDS or (has_base and not is_base):
        from node_agent.features.preemption import words

        raise ValueError(words.not_a_cloud(CLOUDS, str(given)))
    return which, base


class Preemption(Options, frozen=True, kw_only=True):
    """Signs of a preemption."""

    feature = "node_agent.features.preemption.feature:Preemption"
    after = "notice_signal"

    # fmt: off
    preemption_file: Annotated[str | None, ours(
        "FILE", text, "leave, as on SIGTERM, when this file appears. Schedulers and daemons that learn of a preemption "
        "can write it")] = None
    preemption_poll: Annotated[tuple[str, str] | None, ours(
        "CLOUD", cloud, "leave, as on SIGTERM, when this cloud's metadata service reports that it takes the machine "
        "back: aws (spot), gcp or azure. CLOUD=http://HOST:PORT asks at another address")] = None
    preemption_annotations: Annotated[str | None, ours(
        "FILE", text, "leave, as on SIGTERM, when Slinky drains this pod. FILE lists the annotations of the pod, in a "
        "downward API volume")] = None
    # fmt: on

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "Preemption":
        for name in ("preemption_file", "preemption_annotations"):
            path: str | None = getattr(self, name)
            folder = os.path.dirname(path or "") or "."
            if path is not None and not os.access(f"{folder}/.", os.X_OK):
                from node_agent.features.preemption import words

                refusal = words.folder_closed if os.path.isdir(folder) else words.not_a_file
                raise UsageError(refusal(source(name), path))
        return self
