"""msgpack on the wire, typed messages in the program.

msgspec packs. msgpack unpacks within limits of size, items and depth. msgspec converts the result to a message and
enforces the limits of the fields' types. A refusal names the field, the expected value and the value that was sent.
Unknown fields are ignored, so that a newer peer may send more. A missing field gets its default, or is named in the
refusal.
"""

import re
from _thread import allocate_lock
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import msgpack
import msgspec
from msgspec import Struct, inspect

from rdzv_protocol import words
from rdzv_protocol.constraints import MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES
from rdzv_protocol.errors import MalformedMessage, MessageTooLarge
from rdzv_protocol.visible import NAME

T = TypeVar("T")


def encode(message: Struct) -> bytes:
    """Return the bytes of a message. In a text such as a path, bytes that are not UTF-8 become question marks."""
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        packed: bytes = msgpack.packb(msgspec.to_builtins(message), unicode_errors="replace")
        return packed


def decode(kind: type[T], body: bytes) -> T:
    """Return the message of type `kind` in `body`.

    Raises `MessageTooLarge` above `MAX_MESSAGE_BYTES`, else `MalformedMessage` with the field's name.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(words.codec.too_large(MAX_MESSAGE_BYTES, len(body)))
    return convert(kind, _unpack(body, MAX_ITEMS))


def decode_own(kind: type[T], body: bytes) -> T:
    """Return a message that this program has encoded itself, of any size. Raises `MalformedMessage`."""
    return convert(kind, _unpack(body, len(body)))


def convert(kind: type[T], value: object) -> T:
    """Return the message of type `kind` from plain maps, lists and texts. Raises `MalformedMessage`."""
    learn(kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(_explanation(kind, value, str(error))) from None


_known: set[object] = set()
_learning = allocate_lock()
_nothing = object()
"""Value that no message has: converting it makes msgspec inspect only the type."""


def learn(kind: type[Any]) -> None:
    """Make msgspec inspect the type's fields, which takes up to a millisecond. `convert` does so if nothing has before.

    Names need a regular expression, which takes another one if it has not been compiled.

    It is done once and under a lock: two threads that do so at the same time crash.
    """
    if kind in _known:
        return
    re.compile(NAME)  # `re` keeps it
    with _learning, suppress(msgspec.ValidationError):
        msgspec.convert(_nothing, kind)
    _known.add(kind)


def _unpack(body: bytes, most_items: int) -> object:
    limits = {"max_array_len": most_items, "max_map_len": most_items}
    try:
        value: object = msgpack.unpackb(body, strict_map_key=True, use_list=False, **limits)
    except Exception as error:  # msgpack's own errors, and any that hostile bytes cause in it
        detail = str(error) or type(error).__name__
        raise MalformedMessage(words.codec.not_msgpack(detail)) from None
    if len(body.translate(None, _NO_CONTAINER)) > MAX_DEPTH:
        _check_depth(value)
    return value


_NO_CONTAINER = bytes({*range(256)} - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})
"""Bytes with which no map or array of MessagePack begins. A message with few others is not nested deeply."""
_NESTED = frozenset((dict, tuple))


def _check_depth(value: object) -> None:
    level: list[Any] = [value] if type(value) in _NESTED else []
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            children = item.values() if type(item) is dict else item
            if not _NESTED.isdisjoint(map(type, children)):  # usually nothing is nested: the quickest way to find out
                deeper += [child for child in children if type(child) in _NESTED]
        if not deeper:
            return
        level = deeper
    raise MalformedMessage(words.codec.too_deep(MAX_DEPTH))


@cache
def _type_info(kind: Any) -> Any:
    """Return what msgspec knows of a type, once: each inspection takes 0.5 ms, and leaves garbage in cycles."""
    return inspect.type_info(kind)


def _explanation(kind: Any, value: Any, complaint: str) -> str:
    """Return field, expectation and value as text. msgspec's complaint only has the path: "... - at `$.a.b[3]`"."""
    _, _, where = complaint.partition(" - at `$")
    expected: Any = _type_info(kind)
    if "`key` in" in complaint:
        return words.codec.bad_key(kind.__name__)
    path = re.findall(r"\.(\w+)|\[(\d+)\]", where)
    if missing := re.search(r"missing required field `(\w+)`", complaint):
        path.append((missing[1], ""))
    name = kind.__name__
    for field, index in path:
        if field:
            name, expected = f"{name}.{field}", _field(expected, field, value)
            if field not in value:
                is_tag = field == "tag"
                return words.codec.missing_tag(name, wanted(expected)) if is_tag else words.codec.missing(name)
            value = value[field]
        else:
            name, expected, value = f"{name}[{index}]", _one_of(expected)[0].item_type, value[int(index)]
    return words.codec.unexpected(name, wanted(expected), _brief(value))


def _one_of(expected: Any) -> list[Any]:
    """Return the types that a value may have, without None."""
    types = expected.types if isinstance(expected, inspect.UnionType) else [expected]
    return [each for each in types if not isinstance(each, inspect.NoneType)]


def _field(expected: Any, name: str, value: Any) -> Any:
    """Return the type of the field `name` of a map. If several maps are possible, the tag in `value` decides."""
    types = _one_of(expected)
    if name == "tag":
        return inspect.LiteralType(tuple(each.tag for each in types))
    kind = next(each for each in types if each.tag is None or each.tag == value["tag"])
    return next(field.type for field in kind.fields if field.name == name)


def wanted(expected: Any) -> str:
    """Return the type of a value as text, with its limits."""
    match _one_of(expected)[0]:
        case inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            return words.codec.a_text(least or 0, most, is_visible=bool(pattern))
        case inspect.IntType(ge=low, le=high):
            return words.codec.an_integer(low, high)
        case inspect.FloatType(ge=low, le=high):
            return words.codec.A_NUMBER if low is None or high is None else words.codec.a_number(low, high)
        case inspect.BoolType():
            return words.codec.A_BOOLEAN
        case inspect.LiteralType(values=values):
            return words.codec.one_of(values)
        case inspect.EnumType(cls=cls):
            return words.codec.one_of([member.value for member in cls])
        case inspect.VarTupleType(max_length=most):
            return words.codec.A_LIST if most is None else words.codec.a_list(most)
    return words.codec.A_MAP


def _brief(value: object) -> str:
    """Return the value in a few characters, and quickly: it may be as large as a message."""
    if isinstance(value, dict | tuple | list) and value:
        return (words.codec.a_map_of if isinstance(value, dict) else words.codec.a_list_of)(len(value))
    if isinstance(value, str) and len(value) > 40:
        return words.codec.a_long_text(value)
    text = repr(value[:40] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."
