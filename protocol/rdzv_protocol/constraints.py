"""Named types of messages' fields, with the limits that `codec` enforces and the published schema states."""

from typing import Annotated

from msgspec import Meta

from rdzv_protocol.visible import NAME

MAX_MESSAGE_BYTES = 256 * 1024
SEGMENT_BYTES = 1220
"""Most bytes of data in a TCP packet between agents or other clients and a server, in both directions. It fits IPv6's
smallest MTU of 1280, so messages also pass on a path that silently drops large packets."""
MAX_DEPTH = 8
MAX_ITEMS = 1_024
"""Most items of one list or map: at every level, msgpack allocates memory for as many as the data claims to have."""

Id = Annotated[str, Meta(min_length=1, max_length=256, pattern=NAME)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=NAME)]
RoleName = Annotated[str, Meta(max_length=128, pattern=NAME)]
"""Name of a role, which may be empty, as in TorchX."""
SortKey = Annotated[str, Meta(max_length=512, pattern=NAME)]
"""Key by which nodes are ordered, such as a node's path in the network's tree, with leading zeros in its numbers."""
Secret = Annotated[str, Meta(max_length=128, pattern=NAME)]
"""Secret that only its sender knows; empty if there is none."""
Nonce = Annotated[str, Meta(min_length=32, max_length=32, pattern=NAME)]
"""Random text for one use, which cannot be guessed."""
Fingerprint = Annotated[str, Meta(max_length=64, pattern=NAME)]
ProgramName = Annotated[str, Meta(max_length=128, pattern=NAME)]
Address = Annotated[str, Meta(min_length=1, max_length=256, pattern=NAME)]
Sentence = Annotated[str, Meta(max_length=8_192)]
Line = Annotated[str, Meta(max_length=1_024)]
Lines = Annotated[tuple[Line, ...], Meta(max_length=32)]
Traceback = Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(max_length=40)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Round = Annotated[int, Meta(ge=0, le=2**31)]
Revision = Annotated[int, Meta(ge=0, le=2**53)]
Rank = Annotated[int, Meta(ge=0, le=10_000_000)]
Count = Annotated[int, Meta(ge=0, le=10_000_000)]
NodeCount = Annotated[int, Meta(ge=1, le=100_000)]
WorkerCount = Annotated[int, Meta(ge=1, le=4_096)]
MAX_SECONDS = 10_000_000
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Duration = Annotated[float, Meta(description="seconds")]
"""Seconds in a server's answer to people."""
Lifetime = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds that a run may last: years."""
WallClock = Annotated[float, Meta(ge=0, le=1e12)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
WorkerExitCode = Annotated[int, Meta(ge=-255, le=255)]


def sendable(seconds: float) -> float:
    """Return measured seconds, or the nearest number that `Seconds` allows: a longer time must not refuse a message."""
    return min(max(0.0, seconds), float(MAX_SECONDS))
