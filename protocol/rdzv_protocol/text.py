"""Texts made fit to travel and to be shown: what a script has written may be as long and as strange as it likes."""

from collections.abc import Iterable, Sequence

from rdzv_protocol.visible import only_visible


def printable(text: str) -> str:
    """The text on one line, as a name may be: whatever would move a cursor or cannot be encoded becomes a space.

    Characters without a glyph are left out, and all but the first combining marks of a stack (see `visible`).
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text if text.isascii() else only_visible(text)


def clip(text: str, most_bytes: int) -> str:
    """The text, its end cut off where it has more than so many bytes in UTF-8."""
    if len(text) * 4 <= most_bytes or len(text.encode(errors="replace")) <= most_bytes:
        return text
    return text[:most_bytes].encode(errors="replace")[: most_bytes - 3].decode(errors="ignore") + "..."


def last_lines(lines: Sequence[str], most_lines: int, most_bytes: int) -> tuple[str, ...]:
    """The last lines of at most so many bytes in UTF-8 together. Each may take half of them, and is cut beyond."""
    kept: list[str] = []
    share = most_bytes // 2
    for line in reversed(lines[-most_lines:]):
        line = clip(line, share)
        most_bytes -= len(line.encode(errors="replace"))
        if most_bytes < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


def count(number: int | None, noun: str = "node") -> str:
    """A number of nodes, or of other things, in words."""
    return f"{number} {noun}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """A time in the largest unit in which it is a whole number: 24 h."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:g} s"


def one_line(texts: Iterable[str]) -> str:
    """The first of the texts that says something, printable."""
    return next((line for text in texts if (line := printable(text).strip())), "")


def closest(given: str, known: Iterable[str], least: float) -> str:
    """The known word that was probably meant; empty if none is alike.

    `least`: how alike, from 0 to 1 (the same), it must be.
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(given, [*known], 1, least)), "")
