"""What a value on the wire may look like: the named types that the messages are made of.

Each is an ordinary type with a limit attached; `codec` enforces the limit and names the field.
"""

from typing import Annotated

from rdzv_protocol.classes import dataclass

MAX_MESSAGE_BYTES = 256 * 1024
MAX_DEPTH = 8
MAX_ITEMS = 1_024
"""Of one list or map: memory is set aside for as many as it claims to have, and lists may claim within lists."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def complaint(self, value: object) -> str | None:
        if isinstance(value, int | float) and self.low <= value <= self.high:
            return None
        return f"must be between {self.low:g} and {self.high:g}, not {value!r}"


@dataclass(frozen=True, slots=True)
class Printable:
    """A text of `shortest` to `longest` characters without control characters."""

    longest: int
    shortest: int = 1

    def complaint(self, value: object) -> str | None:
        if not isinstance(value, str):
            return f"must be text, not {value!r}"
        if not self.shortest <= len(value) <= self.longest:
            return f"must have {self.shortest} to {self.longest} characters, not {len(value)}"
        if not value.isprintable():
            return "must not contain control characters"
        return None


@dataclass(frozen=True, slots=True)
class AtMost:
    """A text or a sequence of at most `count` items."""

    count: int

    def complaint(self, value: object) -> str | None:
        size = len(value) if isinstance(value, str | tuple | dict) else 0
        return None if size <= self.count else f"must have at most {self.count} items, not {size}"


Limit = Between | Printable | AtMost

Id = Annotated[str, Printable(longest=256)]
Name = Annotated[str, Printable(longest=128)]
RoleName = Annotated[str, Printable(longest=128, shortest=0)]
"""A role may be nameless: TorchX gives such ones."""
Secret = Annotated[str, Printable(longest=128, shortest=0)]
"""Something that only the sender knows; empty for one that has none."""
Address = Annotated[str, Printable(longest=256)]
Sentence = Annotated[str, AtMost(8_192)]
Line = Annotated[str, AtMost(1_024)]
Lines = Annotated[tuple[Line, ...], AtMost(32)]
Traceback = Annotated[tuple[Annotated[str, AtMost(512)], ...], AtMost(40)]
Port = Annotated[int, Between(1, 65_535)]
Round = Annotated[int, Between(0, 2**31)]
Revision = Annotated[int, Between(0, 2**53)]
Rank = Annotated[int, Between(0, 10_000_000)]
Count = Annotated[int, Between(0, 10_000_000)]
NodeCount = Annotated[int, Between(1, 100_000)]
WorkerCount = Annotated[int, Between(1, 4_096)]
Seconds = Annotated[float, Between(0, 10_000_000)]
WallClock = Annotated[float, Between(0, 1e12)]
ExitCode = Annotated[int, Between(-255, 255)]
