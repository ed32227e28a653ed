"""Table of the features that have flags. `--help` reads it, so it does not import features."""

from collections.abc import MutableMapping

from node_agent.features.checks import NodeChecks
from node_agent.features.event_log import EventLog
from node_agent.features.free_gpus import FreeGpus
from node_agent.features.hangs import Hangs
from node_agent.features.log_reads import LogReads
from node_agent.features.metrics import Metrics
from node_agent.features.notices import Notices
from node_agent.features.numa import NumaBinding
from node_agent.features.preemption import Preemption
from node_agent.features.readiness import Readiness
from node_agent.features.rules import FailureRules
from node_agent.features.tell_scheduler import TellScheduler
from node_agent.features.tracing import Tracing
from node_agent.features.warm import WarmWorkers
from node_agent.kernel.config import Options

OPTIONS: tuple[type[Options], ...] = (
    LogReads, Metrics, Readiness, NodeChecks, Notices, Preemption, FailureRules, Hangs, Tracing, EventLog, WarmWorkers,
    NumaBinding, TellScheduler, FreeGpus,
)  # fmt: skip
"""Options of features, each with its flags."""


def of_process(environment: MutableMapping[str, str]) -> tuple[Options, ...]:
    """Return the options of features that variables of this process turn on.

    The variables are meant for this process only, so they are removed.
    """
    if "NOTIFY_SOCKET" not in environment:
        return ()
    from node_agent.features.service_manager import ManagedService

    return (ManagedService.of(environment),)
