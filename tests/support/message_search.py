"""Search a text for a message by its kind and by known fields. The test does not know the sentence itself.

    assert has_message(stderr, words.workers.died, rank=3)         # each other field may have any value
    pid = message_fields(stderr, words.workers.died, rank=3)["pid"]
    with pytest.raises(UsageError, match=pattern(words.cli.no_script)):
    await server.line(f"opened: {part(words.slow, node_id='b')}.*takes its place")   # in a longer expression

A test that knows all fields calls the function: `assert words.workers.died(rank=3, pid=7) in stderr`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

_MARK = re.compile(r"\0(\d+)\0")
_END = r"(?=\s|$)"


class _Unknown(str):
    """Value of an unknown field: the message has a mark in its place."""

    def __format__(self, spec: str) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def __iter__(self) -> Iterator[str]:
        """A field with several texts has one mark."""
        yield str(self)


def pattern(maker: Callable[..., str] | str, /, **known: Any) -> str:
    """Return a regular expression for a message with these fields.

    If a message computes or decides something from a field, that field's value must be known, unless it is a `bool`.
    """
    if isinstance(maker, str):
        return re.escape(maker)
    unknown = [each for each in inspect.signature(maker).parameters.values() if each.name not in known]
    switches = [each.name for each in unknown if each.annotation is bool]
    every = (
        known | dict(zip(switches, values, strict=True)) for values in product((True, False), repeat=len(switches))
    )
    first, *others = dict.fromkeys(_pattern(maker, fields) for fields in every)
    renamed = (re.sub(r"\(\?P(<|=)(\w+)", rf"(?P\1\2_{at}", each) for at, each in enumerate(others, 2))  # each once
    return f"(?:{'|'.join([first, *renamed])})" if others else first


def _pattern(maker: Callable[..., str], known: Mapping[str, Any]) -> str:
    names, texts = _split(maker, known)
    found = ""
    for text, at in zip(texts[::2], [*texts[1::2], ""], strict=True):
        group = f"(?P<{names[int(at)]}>" if at else ""
        found += re.escape(text) + (f"(?P={names[int(at)]})" if group and group in found else group and f"{group}.*?)")
    return found if texts[-1] else found + _END


def beginning(maker: Callable[..., str], **known: Any) -> str:
    """Return the text of a message up to the first unknown field."""
    return _split(maker, known)[1][0]


def part(maker: Callable[..., str] | str, **known: Any) -> str:
    """Return `pattern` for use inside a longer expression: its fields have no names, and text may follow the last."""
    return f"(?:{nameless(pattern(maker, **known).replace(_END, ''))})"


def nameless(expression: str) -> str:
    """Return a regular expression in which no group has a name."""
    return re.sub(r"\(\?P=\w+\)", ".*?", re.sub(r"\(\?P<\w+>", "(?:", expression))


def any_numbers(pattern: str) -> str:
    """Return a pattern with any number in place of each, for times that a test does not know."""
    return re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", pattern)


def has_message(text: object, maker: Callable[..., str] | str, /, **known: Any) -> bool:
    """Return whether the text, exception or list of lines has a message of this kind with these fields."""
    return re.search(pattern(maker, **known), _lines(text)) is not None


def message_fields(text: object, maker: Callable[..., str] | str, /, **known: Any) -> dict[str, str]:
    """Return the other fields of the first message of this kind. Fail if there is none."""
    found = re.search(pattern(maker, **known), _lines(text))
    assert found, f"no message {pattern(maker, **known)} in:\n{text}"
    return {re.sub(r"_\d+$", "", name): value for name, value in found.groupdict().items() if value is not None}


def _lines(text: object) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list | tuple) else str(text)


def _split(maker: Callable[..., str], known: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the other fields, and the message's texts alternating with the numbers of these fields."""
    names = [each for each in inspect.signature(maker).parameters if each not in known]
    return names, _MARK.split(maker(**known, **{name: _Unknown(f"\0{at}\0") for at, name in enumerate(names)}))
