"""Show progress, health and restarts of the run where the scheduler shows a job to people."""

import re
from typing import Annotated

from node_agent.flags import ours, text
from node_agent.kernel.config import Options

KINDS = ("job", "jobset", "trainjob", "leaderworkerset", "pod")
"""Kinds of Kubernetes objects that can get annotations."""
_OBJECT = r"([a-z]+)/([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)"


def scheduler(given: object) -> tuple[str, str, str]:
    """Parse `slurm`, `trainer` or `kubernetes=KIND/NAME` into three words. Missing words are empty."""
    which, _, at = text(given).partition("=")
    match = re.fullmatch(_OBJECT, at)
    is_object = match is not None and match[1] in KINDS
    if (which in ("slurm", "trainer") and which == text(given)) or (which == "kubernetes" and is_object):
        return which, match[1] if match else "", match[2] if match else ""
    from node_agent.features.tell_scheduler import words

    raise ValueError(words.not_a_scheduler(KINDS, str(given)))


class TellScheduler(Options, frozen=True, kw_only=True):
    """Scheduler that shows the run."""

    feature = "node_agent.features.tell_scheduler.feature:TellScheduler"
    after = "preemption_annotations"

    # fmt: off
    tell_scheduler: Annotated[tuple[str, str, str] | None, ours(
        "WHERE", scheduler, "show progress, health and restarts of the run in the scheduler: slurm (the comment of the "
        "job), trainer (status.trainerStatus of Kubeflow's TrainJob) or kubernetes=KIND/NAME (annotations of this job, "
        "jobset, trainjob, leaderworkerset or pod)")] = None
    # fmt: on
