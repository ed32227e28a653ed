"""Kinds of faults, and the table that assigns kinds to the classes of the trace.

The trace names the part of a server that was at fault, not the effect on its processes. This table is therefore an
assumption, and every figure that depends on it says so.
"""

from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """Effect of a fault on a node's processes."""

    CRASH = "crash"
    """A worker ends with a signal or an error."""
    HANG = "hang"
    """A worker stops, and its peers wait for it; its agent runs."""
    DEATH = "death"
    """The node dies without closing its connections."""
    CUT = "cut"
    """The node's network is cut: the node runs, but other nodes do not receive anything from it."""
    AGENT_KILLED = "agent killed"
    """Agent and workers are killed; the node runs, and its kernel closes their connections."""
    SLOW = "slow"
    """The node needs longer for a step than the others."""
    DRAIN = "drain"
    """An operator takes the node out of the run."""


Odds = tuple[tuple[Kind, int], ...]
"""Kinds with their weights."""

_FOUND_BY_CHECKS = (
    "GPU DBE(Double Bit ECC) > Threshold",  # ecc
    "GPU device unknow error",  # gpus
    "GPU xid Error",  # xid
    "nvidia-smi Timeout",  # gpus
    "GPU Lost",  # gpus
    "GPU device not found",  # gpus
)
"""Descriptions of what `--check gpus,ecc,xid` looks for: nearly all faults after which a node stays bad."""
_SLOW_GPU = ("GPU PCI link width low", "GPU P2P Bandwidth Low", "GPU Temperature High")
_DEAD: Odds = ((Kind.DEATH, 1),)
_DRAINED: Odds = ((Kind.DRAIN, 1),)
_SOFTWARE: Odds = ((Kind.AGENT_KILLED, 1), (Kind.HANG, 1))
_ANY: Odds = ((Kind.CRASH, 1), (Kind.HANG, 1), (Kind.DEATH, 1))
_CLASSES: dict[str, Odds] = {
    "GPU": ((Kind.CRASH, 2), (Kind.HANG, 1)),
    "Parameter Plane Cable": ((Kind.CUT, 1), (Kind.HANG, 1)),
    "NIC": ((Kind.CUT, 1), (Kind.HANG, 1)),
    "Fan": _DEAD,
    "Power Supply": _DEAD,
    "Motherboard": _DEAD,
    "Motherboard Battery": _DEAD,
    "Riser Card": _DEAD,
    "RAID Card": _DEAD,
    "CPU": _DEAD,
    "System Crash": _DEAD,
    "Software Tool": _SOFTWARE,
    "Operating System": _SOFTWARE,
    "File System": _SOFTWARE,
    "Firmware": _SOFTWARE,
    "Unknown Error": _ANY,
    "Other Failures": _ANY,
    "Stress Test Failure": _DRAINED,
    "Change": _DRAINED,
    "Test": _DRAINED,
    "Training Task Troubleshooting": _DRAINED,
}
STAYS_BAD = frozenset(("GPU",))
"""Classes whose nodes stay up, and whose workers fail again until the fault is repaired."""


def odds(class_: str, description: str) -> Odds:
    """Return the kinds that a fault of the trace may have. Raises `KeyError` for a class without a row."""
    return ((Kind.SLOW, 1),) if description in _SLOW_GPU else _CLASSES[class_]


def is_checked(description: str) -> bool:
    """Return whether the built-in checks look for faults with this description."""
    return description in _FOUND_BY_CHECKS


def draw(class_: str, description: str, rng: Random) -> Kind:
    kinds, weights = zip(*odds(class_, description), strict=True)
    (kind,) = rng.choices(kinds, weights)
    return Kind(kind)
