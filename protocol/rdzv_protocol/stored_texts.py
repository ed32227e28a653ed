"""Texts that this program wrote itself, in which an earlier version allowed more characters than names have today.

Limits of names apply to incoming data. Data in a store is always read.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rdzv_protocol.visible import is_visible

T = TypeVar("T")


def convert_stored(kind: type[T], value: object) -> T:
    """Return the value of type `kind` from plain maps, lists and texts, even if names in it have invisible characters.

    Raises `msgspec.ValidationError`.
    """
    texts = dict.fromkeys(_texts(value))
    numbers = count()
    stand_ins = {
        text: next(each for number in numbers if (each := f"stand-in {number}") not in texts)
        for text in texts
        if not is_visible(text)
    }
    made: T = _replaced(
        msgspec.convert(_replaced(value, stand_ins), kind), {new: old for old, new in stand_ins.items()}
    )
    return made


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _texts(each)


def _replaced(value: Any, texts: dict[str, str]) -> Any:
    """Return the value with some of its texts replaced."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, Struct):
        return type(value)(**{name: _replaced(getattr(value, name), texts) for name in value.__struct_fields__})
    if isinstance(value, dict):
        return {_replaced(key, texts): _replaced(each, texts) for key, each in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return type(value)(_replaced(each, texts) for each in value)
    return value
