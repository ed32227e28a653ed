"""Example values for the fields of messages."""

import enum
import pkgutil
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tests.golden import examples

_MODULES = [import_module(f"{examples.__name__}.{each.name}") for each in pkgutil.iter_modules(examples.__path__)]
_EXAMPLES = dict(chain.from_iterable(getattr(each, "EXAMPLES", {}).items() for each in _MODULES))
_BY_TYPE: dict[Any, tuple[Any, ...]] = {
    int: (3,),
    float: (12.5,),
    bool: (True, False),
    object: ("<any>",),
    Any: ("<any>",),
    type(None): (None,),
    OSError: (OSError(28, "No space left on device"),),
    Exception: (OSError(28, "No space left on device"),),
    ModuleType: (types,),
} | dict(chain.from_iterable(getattr(each, "BY_TYPE", {}).items() for each in _MODULES))


def examples_of(maker: Callable[..., str]) -> Iterable[Mapping[str, Any]]:
    """Return fields of examples: those given for the function, otherwise first values, then each other value of a
    field.
    """
    if given := _EXAMPLES.get(maker):
        return given
    hints = get_type_hints(maker)
    values = {name: _values(name, hint) for name, hint in hints.items() if name != "return"}
    first = {name: of_one[0] for name, of_one in values.items()}
    return [first, *(first | {name: value} for name, of_one in values.items() for value in of_one[1:])]


def _values(name: str, hint: Any) -> tuple[Any, ...]:
    """Return example values of a field by its type. A text is shown as the field's name: `<node_id>`."""
    if hint is str:
        return (f"<{name}>",)
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _values(name, arguments[0])
    if origin in (Union, types.UnionType):
        return tuple(value for each in arguments for value in _values(name, each))
    if origin is Literal:
        return arguments
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(hint)
    if origin is tuple and Ellipsis not in arguments:
        return (tuple(_values(name, each)[0] for each in arguments),)
    if origin in (dict, Mapping):
        return ({_values(f"{name} key", arguments[0])[0]: _values(name, arguments[1])[0]},)
    if isinstance(origin, type) and issubclass(origin, Collection | Sequence | Iterable):
        made: Any = origin if origin in (list, tuple, set, frozenset) else tuple
        return (made((f"<{name} 1>", f"<{name} 2>") if arguments[0] is str else _values(name, arguments[0])[:2]),)
    raise LookupError(f"{name}: {hint}: give example values of it in a module of tests/golden/examples/")
