"""The wire's types as JSON Schema: what `rdzv_protocol.codec` checks, for people and for other programs."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rdzv_protocol.constraints import AtMost, Between, Limit, Printable

Schema = dict[str, Any]

PRINTABLE = "printable"
"""The format of a text without control characters and other invisible ones: Python's `str.isprintable`."""

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(hint: Any) -> Schema:
    """What a value of this type looks like; a dataclass by its name among `components`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return schema_of(args[0]) | _limit(args[0], args[1])
    if origin in (Union, UnionType):
        return _optional(args) if NoneType in args else _tagged(args)
    if origin is tuple:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    return reference(hint) if is_dataclass(hint) else {"type": _TYPES[hint]}


def reference(kind: Any) -> Schema:
    """A message by its name."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def components(kinds: Iterable[Any]) -> dict[str, Schema]:
    """These messages and everything that they are made of, by name."""
    found: dict[str, Schema] = {}
    missing = list(kinds)
    while missing:
        kind = missing.pop()
        if kind.__name__ not in found:
            found[kind.__name__] = record(kind)
            missing += _parts(tuple(_hints(kind).values()))
    return dict(sorted(found.items()))


def record(kind: Any) -> Schema:
    """A message: a map. Fields that it does not know are ignored, and a field with a default may be left out."""
    hints, tag = _hints(kind), getattr(kind, "tag", None)
    properties: dict[str, Schema] = {} if tag is None else {"tag": {"type": "string", "const": tag}}
    for field in fields(kind):
        properties[field.name] = schema_of(hints[field.name]) | _default(field)
    required = list(properties) if tag is None else ["tag", *hints]
    optional = {field.name for field in fields(kind) if not _is_required(field)}
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or kind.__name__).split()),
        "properties": properties,
        "required": [name for name in required if name not in optional],
    }


def nullable(schema: Schema) -> Schema:
    """The same, or nothing."""
    return {"anyOf": [schema, {"type": "null"}]}


def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _parts(hints: tuple[Any, ...]) -> Iterator[Any]:
    for hint in hints:
        if isinstance(hint, type) and is_dataclass(hint):
            yield hint
        yield from _parts(get_args(hint))


def _limit(base: Any, limit: Limit) -> Schema:
    match limit:
        case Between(low, high):
            number = int if base is int else float
            return {"minimum": number(low), "maximum": number(high)}
        case Printable(longest, shortest):
            return {"minLength": shortest, "maxLength": longest, "format": PRINTABLE}
        case AtMost(count):
            return {"maxLength" if base is str else "maxItems": count}


def _optional(args: tuple[Any, ...]) -> Schema:
    (inner,) = (arg for arg in args if arg is not NoneType)
    return nullable(schema_of(inner))


def _tagged(kinds: tuple[Any, ...]) -> Schema:
    """Told apart by `tag`."""
    return {
        "oneOf": [reference(kind) for kind in kinds],
        "discriminator": {
            "propertyName": "tag",
            "mapping": {kind.tag: reference(kind)["$ref"] for kind in kinds},
        },
    }


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: "Field[Any]") -> Schema:
    if field.default is MISSING:
        return {}
    return {"default": list(field.default) if isinstance(field.default, tuple) else field.default}
