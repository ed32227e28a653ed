"""msgpack on the wire, typed messages in the program.

`decode` checks size, depth, type and limit of everything it lets in and names the field that is wrong. Fields that it
does not know are ignored, so that a newer peer may say more; a missing field takes its default, or is named.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from protocol.errors import MalformedMessage, MessageTooLarge
from protocol.schema import MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES, Limit

T = TypeVar("T")

Reader = Callable[[Any, str], Any]
"""Turns what msgpack unpacked into a checked value; the text names the field, for errors."""


def encode(message: Any) -> bytes:
    """The bytes of a message (any dataclass of `protocol.messages`)."""
    packed: bytes = msgpack.packb(_plain(message), use_bin_type=True)
    return packed


def decode(kind: type[T], body: bytes) -> T:
    """The message of type `kind` in `body`.

    Raises `MessageTooLarge` above `MAX_MESSAGE_BYTES`, else `MalformedMessage` with the field's name.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(body)}")
    value: T = _reader(kind)(_unpack(body, MAX_ITEMS), kind.__name__)
    return value


def read(kind: type[T], value: object) -> T:
    """The message of type `kind` that is in a value of plain maps and texts. Raises `MalformedMessage`."""
    message: T = _reader(kind)(value, kind.__name__)
    return message


def decode_own(kind: type[T], body: bytes) -> T:
    """The same of what this program has encoded itself, however large. Raises `MalformedMessage`."""
    value: T = _reader(kind)(_unpack(body, len(body)), kind.__name__)
    return value


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
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedMessage(f"the message nests deeper than {MAX_DEPTH} levels")
        level = [
            child
            for item in level
            if type(item) in (dict, tuple)
            for child in (item.values() if isinstance(item, dict) else item)
            if type(child) in (dict, tuple)
        ]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        tag = getattr(value, "tag", None)
        plain = {} if tag is None else {"tag": tag}
        for name in _slots(value):
            plain[name] = _plain(getattr(value, name))
        return plain
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _reader(kind: Any) -> Reader:
    if kind not in _READERS:
        _READERS[kind] = _make_reader(kind)
    return _READERS[kind]


def _make_reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limited(_reader(args[0]), args[1])
    if origin in (Union, UnionType):
        return _optional(args) if NoneType in args else _tagged(args)
    if origin is tuple:
        return _sequence(_reader(args[0]))
    if origin is Literal:
        return _choice(args)
    if isinstance(kind, EnumType):
        return _member(kind)
    return _record(kind) if is_dataclass(kind) else _scalar(kind)


def _scalar(kind: type) -> Reader:
    def read(value: Any, where: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise MalformedMessage(f"{where} must be {_WORDS[kind]}, not {_word(value)}")
        return value

    return read


def _limited(inner: Reader, limit: Limit) -> Reader:
    def read(value: Any, where: str) -> Any:
        value = inner(value, where)
        if complaint := limit.complaint(value):
            raise MalformedMessage(f"{where} {complaint}")
        return value

    return read


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if value not in choices:
            raise MalformedMessage(f"{where} must be one of {', '.join(choices)}, not {_word(value)}")
        return value

    return read


def _member(kind: Any) -> Reader:
    """An enumeration of texts."""
    choose = _choice(tuple(member.value for member in kind))
    return lambda value, where: kind(choose(value, where))


def _optional(args: tuple[Any, ...]) -> Reader:
    (inner,) = (_reader(arg) for arg in args if arg is not NoneType)
    return lambda value, where: None if value is None else inner(value, where)


def _sequence(inner: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, tuple):
            raise MalformedMessage(f"{where} must be a list, not {_word(value)}")
        return tuple(inner(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read


def _tagged(kinds: tuple[Any, ...]) -> Reader:
    """A union of dataclasses, told apart by their `tag`."""
    readers = {kind.tag: _reader(kind) for kind in kinds}

    def read(value: Any, where: str) -> Any:
        tag = value.get("tag") if isinstance(value, Mapping) else None
        if not isinstance(tag, str) or tag not in readers:
            raise MalformedMessage(f"{where}.tag must be one of {', '.join(readers)}, not {_word(tag)}")
        return readers[tag](value, where)

    return read


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    required = {field.name: _is_required(field) for field in fields(kind)}
    readers = {name: _reader(hints[name]) for name in required}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise MalformedMessage(f"{where} must be a map, not {_word(value)}")
        given = {}
        for name, reader in readers.items():
            if name in value:
                given[name] = reader(value[name], f"{where}.{name}")
            elif required[name]:
                raise MalformedMessage(f"{where}.{name} is missing")
        return kind(**given)

    return read


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


_WORDS: dict[type, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def _word(value: object) -> str:
    """The value in a few characters, and as quickly: it may be as large as a message."""
    if isinstance(value, dict | tuple) and value:
        return f"a {'map' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value[:40] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _slots(message: Any) -> tuple[str, ...]:
    """A message's field names; the fastest list of them there is, since every message has slots."""
    names: tuple[str, ...] = message.__slots__
    return names


_READERS: dict[Any, Reader] = {}
