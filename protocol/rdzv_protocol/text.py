"""Functions that make any text of a script fit to travel and to be shown."""

from collections.abc import Iterable, Sequence

from rdzv_protocol.visible import only_visible

MOST_RANGES = 4
"""Most ranges of ranks that a sentence names."""


def printable(text: str) -> str:
    """Return the text on one line: every character that would move a cursor or cannot be encoded becomes a space.

    Characters without a glyph are left out, and all but the first combining marks of a stack (see `visible`).
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text if text.isascii() else only_visible(text)


def clip(text: str, most_bytes: int) -> str:
    """Return the text, cut off at the end if it has more than `most_bytes` bytes in UTF-8."""
    if len(text) * 4 <= most_bytes or len(text.encode(errors="replace")) <= most_bytes:
        return text
    return text[:most_bytes].encode(errors="replace")[: most_bytes - 3].decode(errors="ignore") + "..."


def last_lines(lines: Sequence[str], most_lines: int, most_bytes: int) -> tuple[str, ...]:
    """Return the last lines within `most_bytes` bytes of UTF-8.

    Each line may take half of them, and is cut off after that.
    """
    kept: list[str] = []
    share = most_bytes // 2
    for line in reversed(lines[-most_lines:]):
        line = clip(line, share)
        most_bytes -= len(line.encode(errors="replace"))
        if most_bytes < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


class NextStep(str):
    """Step that a person can take: a text that ends with a command. A name in the text may look like a command, too."""

    command: str

    def __new__(cls, text: str, command: str) -> "NextStep":
        step = super().__new__(cls, f"{text} {command}")
        step.command = command
        return step


def count(number: int | None, noun: str = "node") -> str:
    """Return a number of nodes, or of other things, as text."""
    return f"{number} {noun}{'s' * (number != 1)}"


def ranks(ascending: Sequence[int]) -> str:
    """Return ranks as text, with ranges: rank 3; ranks 0-7, 9; ranks 0, 2, 4, 6 and 12 more."""
    ranges: list[tuple[int, int]] = []
    for rank in ascending:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = ranges[-1][0], rank
        else:
            ranges.append((rank, rank))
    named = ranges[:MOST_RANGES]
    more = len(ascending) - sum(high - low + 1 for low, high in named)
    shown = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in named)
    return f"rank{'s' * (len(ascending) != 1)} {shown}" + (f" and {more} more" if more else "")


def size_range(least: int, most: int) -> str:
    """Return the sizes of a run from `least` to `most` as `--nnodes` takes them: 2:4, or 3."""
    return f"{least}:{most}" if least != most else f"{most}"


def length(seconds: float) -> str:
    """Return a duration in a unit of which it has at least two, to a tenth: 2.5 h."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def span(seconds: float) -> str:
    """Return a time in the largest unit in which it is a whole number: 24 h."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:g} s"


def age(seconds: float | None) -> str:
    """Return a duration in at most two units: 12s, 3m20s, 2h5m, 4d3h; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    for size, unit, smaller, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{below}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def one_line(texts: Iterable[str]) -> str:
    """Return the first text that is not blank, in printable characters."""
    return next((line for text in texts if (line := printable(text).strip())), "")


def closest(given: str, known: Iterable[str], least: float) -> str:
    """Return the known word that was probably meant; empty if none is similar.

    `least`: how similar it must be, from 0 to 1 (equal).
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(given, [*known], 1, least)), "")
