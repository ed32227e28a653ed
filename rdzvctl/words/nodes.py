"""Messages about the nodes of a run."""

from collections.abc import Sequence

from rdzv_protocol.text import age, count


def listed(names: Sequence[str], more: int) -> str:
    """Nodes, or runs. `more`: number of those that are not named here."""
    return f"{', '.join(names)}{f' and {more} more' if more else ''}"


# Cells of their table.


def more_gone(number: int) -> str:
    return f"and {count(number, 'more node')}"


NAMELESS = "the server remembers only the latest names"


def failures(number: int) -> str:
    return count(number, "failure")


def lost_within(left_s: float) -> str:
    """The node is disconnected or silent."""
    return f"lost within {age(left_s)}"


RUN_WAITS = "the run waits for it"


def gone(cause: str, ago_s: float) -> str:
    return f"{cause}, {age(ago_s)} ago"


def drains(left_s: float) -> str:
    return f"its workers have {age(left_s)} left"


def ranks(first: int, last: int) -> str:
    return f"{first}-{last}" if first != last else f"{first}"
