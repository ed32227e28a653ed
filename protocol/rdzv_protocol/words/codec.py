"""Reasons why a message is refused: the field, what is expected there, and what was sent."""

from collections.abc import Sequence


def too_large(most: int, size: int) -> str:
    return f"a message can have at most {most} bytes, not {size}"


def not_msgpack(why: str) -> str:
    return f"the body is not one msgpack value: {why[:200]}"


def too_deep(most: int) -> str:
    return f"the message nests deeper than {most} levels"


def bad_key(message: str) -> str:
    return f"{message} has a key that is not text"


def missing(field: str) -> str:
    return f"{field} is missing"


def missing_tag(field: str, expected: str) -> str:
    return f"{field} is missing: {expected}"


def unexpected(field: str, expected: str, found: str) -> str:
    return f"{field} must be {expected}, not {found}"


# Expected values.

A_NUMBER = "a number"
A_BOOLEAN = "true or false"
A_LIST = "a list"
A_MAP = "a map"


def a_text(least: int, most: int | None, *, is_visible: bool) -> str:
    return f"text of {least} to {most} {'visible ' if is_visible else ''}characters"


def an_integer(low: int | None, high: int | None) -> str:
    return f"an integer from {low} to {high}"


def a_number(low: float, high: float) -> str:
    return f"a number from {low:g} to {high:g}"


def one_of(values: Sequence[object]) -> str:
    return f"one of {', '.join(map(str, values))}"


def a_list(most: int) -> str:
    return f"a list of at most {most}"


# Values that were found.


def a_map_of(items: int) -> str:
    return f"a map of {items}"


def a_list_of(items: int) -> str:
    return f"a list of {items}"


def a_long_text(text: str) -> str:
    return f"{text[:24]!r}... of {len(text)} characters"
