"""Values of any message type in which no field is empty, as a program of today may write them."""

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


def sample(kind: type[T]) -> T:
    """Return an instance of the type in which no field is empty."""
    return msgspec.convert(_plain(inspect.type_info(kind)), kind)


def _plain(kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _plain(inner)
        case inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            tagged = {tag_field: tag} if tag_field else {}
            return tagged | {field.encode_name: _plain(field.type) for field in fields}
        case inspect.UnionType(types=types):
            return _plain(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.DictType(key_type=key, value_type=value):
            return {_plain(key): _plain(value)}
        case inspect.TupleType(item_types=items):
            return [_plain(item) for item in items]
        case inspect.CollectionType(item_type=item):
            return [_plain(item)]
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            return max(1, least or 1)
        case inspect.BoolType():
            return True
        case inspect.NoneType():
            return None
        case inspect.BytesType():
            return b"x"
    return "x"
