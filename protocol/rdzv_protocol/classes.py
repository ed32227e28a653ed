"""Dataclasses that cost next to nothing until they are used: for all that an agent loads on the way to its workers.

The standard library writes and compiles six methods for each class when its module is imported: half a millisecond for
each of a hundred classes, of which an agent's start uses thirty, and of those one method. Here `__init__` is made for
the first instance, and the rest when somebody first needs it. To everybody else, type checkers included, the classes
are the standard library's. See docs/adr/0021.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, kw_only: bool = False) -> Callable[[type], type]:
        """`dataclasses.dataclass` for classes with slots, without base classes, and with no `__post_init__`."""
        assert slots
        return lambda written: _Maker(written, frozen, kw_only).made


class _Maker:
    """Makes one class of the class as it is written, and its methods later."""

    def __init__(self, written: type, frozen: bool, kw_only: bool) -> None:
        assert written.__bases__ == (object,) and not hasattr(written, "__post_init__")
        self._frozen, self._kw_only = frozen, kw_only
        names = tuple(name for name, kind in written.__annotations__.items() if not _is_of_class(kind))
        self._body = {name: value for name, value in vars(written).items() if name not in ("__dict__", "__weakref__")}
        own = {name: value for name, value in self._body.items() if name not in names}
        match_args = () if kw_only else names
        body = {"__match_args__": match_args, **(_FROZEN if frozen else {}), **self._stand_ins(), **own}
        self.made = type(written.__name__, (), {**body, "__slots__": names, "__qualname__": written.__qualname__})

    def _stand_ins(self) -> dict[str, "_StandIn"]:
        alone = {"init": False, "repr": False, "eq": False}
        parts = {
            "__dataclass_fields__": alone,
            "__dataclass_params__": {"frozen": self._frozen, "slots": True},
            "__repr__": {**alone, "repr": True},
            "__eq__": {**alone, "eq": True},
            "__hash__": {**alone, "eq": True, "unsafe_hash": self._frozen},
        }
        stand_ins = {name: _StandIn(name, partial(self._make, name, options)) for name, options in parts.items()}
        return {"__init__": _StandIn("__init__", self._make_init), **stand_ins}

    def _make(self, name: str, options: Mapping[str, bool]) -> None:
        """Have the standard library make it for a copy of the class, and as little else as may be."""
        copied = type(self.made.__name__, (), {**self._body, "__doc__": "as written"})  # it would write one
        whole: type = dataclasses.dataclass(kw_only=self._kw_only, **options)(copied)
        setattr(self.made, name, vars(whole)[name])

    def _make_init(self) -> None:
        init = _init(dataclasses.fields(self.made), self._frozen)
        init.__qualname__ = f"{self.made.__qualname__}.__init__"
        setattr(self.made, "__init__", init)  # noqa: B010, mypy


class _StandIn:
    """Stands for a part of a class until somebody asks for it. `make` puts the real one in its place."""

    def __init__(self, name: str, make: Callable[[], None]) -> None:
        self._name = name
        self._make = make

    def __get__(self, instance: object, owner: type) -> Any:
        self._make()  # by two threads at once: the same twice
        return getattr(owner if instance is None else instance, self._name)


def _is_of_class(kind: object) -> bool:
    return getattr(kind, "__origin__", kind) is ClassVar


def _init(fields: Iterable["dataclasses.Field[Any]"], frozen: bool) -> Any:
    """As the standard library's; the function alone, without those that go with it there."""
    assignment = "_set(self, {0!r}, {1})" if frozen else "self.{0} = {1}"
    scope: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    positional, keywords, lines = ["self"], ["*"], ["pass"]
    for field in fields:
        assert field.init
        name = value = parameter = field.name
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_made_{name}"] = field.default_factory
            parameter, value = f"{name}=_MISSING", f"_made_{name}() if {name} is _MISSING else {name}"
        elif field.default is not dataclasses.MISSING:
            scope[f"_usual_{name}"] = field.default
            parameter = f"{name}=_usual_{name}"
        (keywords if field.kw_only else positional).append(parameter)
        lines.append(assignment.format(name, value))
    parameters = positional + (keywords if len(keywords) > 1 else [])
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), scope)
    return scope["__init__"]


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """For pickle."""
    return [getattr(self, name) for name in self.__slots__]


def _restore(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN = {
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__getstate__": _state,
    "__setstate__": _restore,
}
