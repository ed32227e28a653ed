"""msgpack on the wire, typed messages in the program.

`decode` checks size, depth, type and limit of everything it lets in and names the field that is wrong. Fields that it
does not know are ignored, so that a newer peer may say more; a missing field takes its default, or is named. Of what
nobody has asked for, which is most of an agent's settings, nothing travels: a field whose default is None is left out
when it is None.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from rdzv_protocol.constraints import MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES, AtMost, Between, Limit, Printable
from rdzv_protocol.errors import MalformedMessage, MessageTooLarge

T = TypeVar("T")

Getter = Callable[[Any], dict[str, Any]]
"""The fields of a dataclass by name, its tag first."""

Reader = Callable[[Any], Any]
"""Turns what msgpack unpacked into a checked value. Raises `_Wrong`."""


def encode(message: Any) -> bytes:
    """The bytes of a message (any dataclass of `rdzv_protocol.messages`)."""
    packed: bytes = msgpack.packb(message, default=_fields_of)
    return packed


def decode(kind: type[T], body: bytes) -> T:
    """The message of type `kind` in `body`.

    Raises `MessageTooLarge` above `MAX_MESSAGE_BYTES`, else `MalformedMessage` with the field's name.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(body)}")
    return read(kind, _unpack(body, MAX_ITEMS))


def read(kind: type[T], value: object) -> T:
    """The message of type `kind` that is in a value of plain maps and texts. Raises `MalformedMessage`."""
    try:
        message: T = _reader(kind)(value)
    except _Wrong as wrong:
        raise MalformedMessage(f"{kind.__name__}{wrong.where} {wrong.what}") from None
    return message


def decode_own(kind: type[T], body: bytes) -> T:
    """The same of what this program has encoded itself, however large. Raises `MalformedMessage`."""
    return read(kind, _unpack(body, len(body)))


def _unpack(body: bytes, most_items: int) -> object:
    limits = {"max_array_len": most_items, "max_map_len": most_items}
    try:
        value: object = msgpack.unpackb(body, strict_map_key=True, use_list=False, **limits)
    except Exception as error:  # msgpack's own errors, and whatever hostile bytes bring out of it
        detail = str(error) or type(error).__name__
        raise MalformedMessage(f"the body is not one msgpack value: {detail[:200]}") from None
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level: list[Any] = [value] if type(value) in _NESTED else []
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            children = item.values() if type(item) is dict else item
            if not _NESTED.isdisjoint(map(type, children)):  # as a rule nothing is nested: the quickest way to see it
                deeper += [child for child in children if type(child) in _NESTED]
        if not deeper:
            return
        level = deeper
    raise MalformedMessage(f"the message nests deeper than {MAX_DEPTH} levels")


def _fields_of(message: Any) -> dict[str, Any]:
    """For msgpack, which packs what it knows and asks about the rest: a message, or a part of one."""
    kind = type(message)
    if kind not in _GETTERS:
        _GETTERS[kind] = _make_getter(kind)
    return _GETTERS[kind](message)


def _make_getter(kind: Any) -> Getter:
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is no part of a message")
    names = (*(("tag",) if hasattr(kind, "tag") else ()), *(field.name for field in fields(kind)))
    get = attrgetter(*names, *_PADDING[len(names) :])
    optional = {field.name for field in fields(kind) if field.default is None}
    if not optional:
        return lambda message: dict(zip(names, get(message), strict=False))
    return lambda message: {
        name: value
        for name, value in zip(names, get(message), strict=False)
        if value is not None or name not in optional
    }


def _reader(kind: Any) -> Reader:
    if kind not in _READERS:
        _READERS[kind] = _make_reader(kind)
    return _READERS[kind]


def _make_reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limited(args[0], args[1])
    if origin in (Union, UnionType):
        return _optional(_reader(_but_none(args))) if NoneType in args else _tagged(args)
    if origin is tuple:
        return _sequence(_reader(args[0]))
    if origin is Literal:
        return _choice(args)
    if isinstance(kind, EnumType):
        return _member(kind)
    return _record(kind) if is_dataclass(kind) else _scalar(kind)


def _but_none(args: tuple[Any, ...]) -> Any:
    (kind,) = (arg for arg in args if arg is not NoneType)
    return kind


def _scalar(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _Wrong(f"must be {_WORDS[kind]}, not {_word(value)}")

    return read


def _limited(kind: Any, limit: Limit) -> Reader:
    inner = _reader(kind)

    def slowly(value: Any) -> Any:
        value = inner(value)
        if complaint := limit.complaint(value):
            raise _Wrong(complaint)
        return value

    quick = _QUICK.get((kind, type(limit)))
    return quick(kind, limit, slowly) if quick else slowly


# Nearly all values are of the common kinds and within their limits. What is not so at a glance is looked at again.


def _quick_name(kind: Any, limit: Printable, slowly: Reader) -> Reader:
    shortest, longest = limit.shortest, limit.longest

    def read(value: Any) -> Any:
        is_fit = type(value) is str and shortest <= len(value) <= longest and value.isprintable()
        return value if is_fit else slowly(value)

    return read


def _quick_text(kind: Any, limit: AtMost, slowly: Reader) -> Reader:
    longest = limit.count
    return lambda value: value if type(value) is str and len(value) <= longest else slowly(value)


def _quick_number(kind: Any, limit: Between, slowly: Reader) -> Reader:
    low, high = limit.low, limit.high
    return lambda value: value if type(value) is kind and low <= value <= high else slowly(value)


_QUICK: dict[tuple[Any, Any], Callable[..., Reader]] = {
    (str, Printable): _quick_name,
    (str, AtMost): _quick_text,
    (int, Between): _quick_number,
    (float, Between): _quick_number,
}


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise _Wrong(f"must be one of {', '.join(choices)}, not {_word(value)}")
        return value

    return read


def _member(kind: Any) -> Reader:
    """An enumeration of texts."""
    choose = _choice(tuple(member.value for member in kind))
    return lambda value: kind(choose(value))


def _optional(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _sequence(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, tuple):
            raise _Wrong(f"must be a list, not {_word(value)}")
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item))
        except _Wrong as wrong:
            raise wrong.within(f"[{len(items)}]") from None
        return tuple(items)

    return read


def _tagged(kinds: tuple[Any, ...]) -> Reader:
    """A union of dataclasses, told apart by their `tag`."""
    readers = {kind.tag: _reader(kind) for kind in kinds}

    def read(value: Any) -> Any:
        tag = value.get("tag") if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in readers:
            raise _Wrong(f"must be one of {', '.join(readers)}, not {_word(tag)}", where=".tag")
        return readers[tag](value)

    return read


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    plan = [(field.name, _reader(hints[field.name]), _is_required(field)) for field in fields(kind)]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Wrong(f"must be a map, not {_word(value)}")
        given = {}
        name = ""
        try:
            for name, reader, is_required in plan:
                if name in value:
                    given[name] = reader(value[name])
                elif is_required:
                    raise _Wrong("is missing")
        except _Wrong as wrong:
            raise wrong.within(f".{name}") from None
        return kind(**given)

    return read


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


class _Wrong(Exception):
    """What is wrong with a value, and with which part of it: readers know no more, so that good values cost little."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where

    def within(self, part: str) -> "_Wrong":
        return _Wrong(self.what, part + self.where)


_WORDS: dict[type, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def _word(value: object) -> str:
    """The value in a few characters, and as quickly: it may be as large as a message."""
    if isinstance(value, dict | tuple) and value:
        return f"a {'map' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value[:40] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


_NESTED = frozenset((dict, tuple))
_PADDING = ("__class__", "__class__")
"""Of fewer than two names an attrgetter makes no tuple."""
_GETTERS: dict[Any, Getter] = {}
_READERS: dict[Any, Reader] = {}
