"""Phases of a run and states of its health, as the status, the metrics, the page and `rdzvctl` name them."""

from typing import Literal, get_args

Phase = Literal["unhealthy", "forming", "restarting", "running", "finishing", "succeeded", "failed"]
PHASES: tuple[Phase, ...] = get_args(Phase)
ENDS: tuple[Phase, ...] = ("succeeded", "failed")
"""Phases of a run that has ended."""

Health = Literal[
    "unhealthy",
    "undecided",
    "hung",
    "lacks_nodes",
    "unreachable",
    "silent",
    "overdue",
    "looping",
    "stalled",
    "slow",
    "last_restart_spent",
    "below_size",
    "ok",
]
HEALTH: tuple[Health, ...] = get_args(Health)
"""States of health, the worst first."""
