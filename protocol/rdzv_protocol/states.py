"""Phases of a run, states of its health and tones, as the status, the metrics, the page and `rdzvctl` name them."""

from collections.abc import Mapping
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
    "unstable",
    "slow",
    "last_restart_spent",
    "below_size",
    "ok",
]
HEALTH: tuple[Health, ...] = get_args(Health)
"""States of health, the worst first."""

Tone = Literal["bad", "busy", "calm", "none", "done", "good"]
"""What the colour of a word tells: `bad` and `busy` need attention."""
TONES: tuple[Tone, ...] = get_args(Tone)
"""All tones, the most urgent first."""
_OF_TONE: Mapping[Tone, tuple[str, ...]] = {
    "bad": (
        "failed", "missing", "gone", "unhealthy", "undecided", "hung", "unreachable", "looping", "detecting", "lost",
    ),
    "busy": (
        "restarting", "stopping", "draining", "silent", "disconnected", "cordoned", "excluded", "held", "raised",
        "slow", "stalled", "unstable", "overdue", "lacks_nodes", "last_restart_spent",
    ),
    "calm": ("forming", "starting", "waiting", "below_size"),
    "none": ("standby",),
    "done": ("finishing", "succeeded", "checkpointing"),
    "good": ("running", "training", "ok"),
}  # fmt: skip
TONE_OF: Mapping[str, Tone] = {word: tone for tone, words in _OF_TONE.items() for word in words}
"""Tones of phases, of states of health and of nodes, and of parts of a run's time. Other words are `busy`."""
