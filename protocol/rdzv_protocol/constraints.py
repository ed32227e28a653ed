"""Named types of the fields of messages, with the limits that `codec` enforces and the published schema states."""

from typing import Annotated

from msgspec import Meta

MAX_MESSAGE_BYTES = 256 * 1024
MAX_DEPTH = 8
MAX_ITEMS = 1_024
"""Most items of one list or map: msgpack allocates memory for as many as it claims to have, at every level."""

PRINTABLE = (
    r"^[^\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]*(?![\\s\\S])"
)
"""Regular expression of a text of one line: no control characters, none that are invisible or turn the direction of
writing, no space but the common one. For Python as for JavaScript, whose `$` differ. Texts of a message have no
surrogates: msgpack and msgspec refuse them."""

Id = Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
RoleName = Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
"""Name of a role, which may be empty: TorchX gives such ones."""
SortKey = Annotated[str, Meta(max_length=512, pattern=PRINTABLE)]
"""Key by which nodes are ordered, such as a node's path in the network's tree, its numbers with leading zeros."""
Secret = Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
"""Secret that only its sender knows; empty for none."""
Nonce = Annotated[str, Meta(min_length=32, max_length=32, pattern=PRINTABLE)]
"""Random text for one use, which nobody can guess."""
Fingerprint = Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
ProgramName = Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
Address = Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)]
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
Seconds = Annotated[float, Meta(ge=0, le=10_000_000)]
Lifetime = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds that a run may last: years."""
WallClock = Annotated[float, Meta(ge=0, le=1e12)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
WorkerExitCode = Annotated[int, Meta(ge=-255, le=255)]
