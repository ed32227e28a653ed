"""The agent of a node: joins a run, starts the node's workers and supervises them.

`kernel.core` makes the decisions and uses no processes or sockets. All other modules carry those decisions out. No
module imports torch. A module that the first worker does not need is imported later.

Used as a library, the package offers torch's launcher API under the names below: see docs/reference/python-api.md.
"""

TYPE_CHECKING = False  # a script that imports only `progress` need not import typing, which takes longer

if TYPE_CHECKING:
    from typing import Any

    from node_agent.compat.api.default_logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs, to_map
    from node_agent.compat.api.elastic_launch import elastic_launch, launch_agent
    from node_agent.compat.api.errors import ChildFailedError, LaunchError, ProcessFailure, SignalException
    from node_agent.compat.api.launch_config import LaunchConfig
    from node_agent.compat.api.processes import (
        MultiprocessContext,
        PContext,
        RunProcsResult,
        SubprocessContext,
        start_processes,
        start_processes_async,
    )
    from node_agent.compat.api.record import ErrorHandler, get_error_handler, record
    from node_agent.in_worker import Notice, acknowledge, notice, progress
    from node_agent.kernel.core.log_options import Std
    from node_agent.survivors import Saved, SavedBySurvivors, newest_saved, saved_by_survivors

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LaunchConfig",
    "LaunchError",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "Notice",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "Saved",
    "SavedBySurvivors",
    "SignalException",
    "Std",
    "SubprocessContext",
    "acknowledge",
    "elastic_launch",
    "get_error_handler",
    "launch_agent",
    "newest_saved",
    "notice",
    "progress",
    "record",
    "saved_by_survivors",
    "start_processes",
    "start_processes_async",
    "to_map",
]


_MODULES = ("in_worker", "survivors", "kernel.core.log_options", "compat.api.record", "compat.api.errors",
            "compat.api.default_logs_specs", "compat.api.launch_config",
            "compat.api.processes", "compat.api.elastic_launch")  # fmt: skip


def __getattr__(name: str) -> "Any":
    """Import a name of the launcher API on first use: neither `node-agent` nor its workers need these names."""
    from importlib import import_module

    for module in map(import_module, (f"node_agent.{each}" for each in _MODULES if name in __all__)):
        if name in vars(module):
            return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
