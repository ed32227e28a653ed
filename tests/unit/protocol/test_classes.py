"""A class of `rdzv_protocol.classes` is what the standard library would have made of it."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
from rdzv_protocol import classes


def make_point(dataclass: Any) -> Any:
    @dataclass(frozen=True, slots=True)
    class Point:
        """A place."""

        kind: ClassVar[str] = "point"
        x: int
        y: int = 2
        """How high."""
        marks: list[str] = dataclasses.field(default_factory=list)

        @property
        def sum(self) -> int:
            return self.x + self.y

    return Point


def make_frozen_by_keyword(dataclass: Any) -> Any:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str = "nobody"
        age: int

        def __repr__(self) -> str:
            return "its own"

    return Named


def make_changeable(dataclass: Any) -> Any:
    @dataclass(slots=True)
    class Changeable:
        a: int
        b: str = "b"

    return Changeable


def make_empty(dataclass: Any) -> Any:
    @dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    return Empty


class Kind(NamedTuple):
    make: Callable[[Any], Any]
    arguments: dict[str, Any]
    others: dict[str, Any]


KINDS = {
    "defaults": Kind(make_point, {"x": 1}, {"x": 2, "y": 5}),
    "keywords": Kind(make_frozen_by_keyword, {"age": 3}, {"age": 3, "name": "somebody"}),
    "not frozen": Kind(make_changeable, {"a": 1}, {"a": 1, "b": "c"}),
    "no fields": Kind(make_empty, {}, {}),
}
DEEDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "str": lambda cls, one, other: str(one),
    "equal": lambda cls, one, other: [one == copy.copy(one), one == other, one != other, one == 7],
    "hash": lambda cls, one, other: hash(one) == hash(copy.copy(one)),
    "fields": lambda cls, one, other: [(f.name, f.type, f.default, f.kw_only) for f in dataclasses.fields(cls)],
    "is a dataclass": lambda cls, one, other: [dataclasses.is_dataclass(cls), dataclasses.is_dataclass(one)],
    "asdict": lambda cls, one, other: dataclasses.asdict(one),
    "replace": lambda cls, one, other: str(dataclasses.replace(one, **dataclasses.asdict(other))),
    "slots": lambda cls, one, other: cls.__slots__,
    "match": lambda cls, one, other: cls.__match_args__,
    "names": lambda cls, one, other: [cls.__name__, cls.__qualname__, cls.__module__, cls.__annotations__],
    "doc": lambda cls, one, other: cls.__doc__ if "(" not in (cls.__doc__ or "(") else None,
    "assign a field": lambda cls, one, other: [setattr(one, name, 7) for name in cls.__slots__],
    "delete a field": lambda cls, one, other: [delattr(one, name) for name in cls.__slots__],
    "too few": lambda cls, one, other: str(cls(*[])),
    "too many": lambda cls, one, other: cls(1, 2, 3, 4, 5),
    "unknown": lambda cls, one, other: cls(unknown=1),
    "parameters": lambda cls, one, other: [(p.name, p.kind) for p in inspect.signature(cls).parameters.values()],
    "class attribute": lambda cls, one, other: getattr(cls, "kind", None),
    "property": lambda cls, one, other: getattr(one, "sum", None),
    "no dict": lambda cls, one, other: hasattr(one, "__dict__"),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_does_what_the_standard_librarys_does(kind: str, deed: str) -> None:
    ours, theirs = (outcome(KINDS[kind], DEEDS[deed], how) for how in (classes.dataclass, dataclasses.dataclass))
    assert ours == theirs


def test_a_default_that_is_made_is_made_for_each() -> None:
    point = make_point(classes.dataclass)
    assert point(1).marks == [] and point(1).marks is not point(1).marks
    assert point(1, marks=["given"]).marks == ["given"]


@pytest.mark.parametrize("kind", KINDS)
def test_takes_nothing_else(kind: str) -> None:
    """As the standard library's does by mistake: of a frozen class with a `TypeError` that speaks of `super`."""
    with pytest.raises(AttributeError):
        KINDS[kind].make(classes.dataclass)(**KINDS[kind].arguments).unknown = 7


def test_pickles_into_another_process() -> None:
    """Which makes the class's parts from the pickle alone."""
    from rdzv_protocol.messages import Ack, JoinRequest

    join = JoinRequest(run_id="r", agent_id="a", node_id="n", after_round=0, addr="h", port=1, local_world_size=2)
    assert pickle.loads(pickle.dumps(join)) == join
    read = f"import pickle; print(pickle.loads({pickle.dumps(Ack(epoch='e'))!r}))"
    told = subprocess.run([sys.executable, "-c", read], stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout.strip() == "Ack(epoch='e')"


def test_an_unused_class_has_nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither here nor by the standard library: that is what the module is for."""
    compiled: list[str] = []
    real = exec

    def noting(text: Any, *scopes: Any) -> None:
        compiled.append(text)
        real(text, *scopes)

    monkeypatch.setattr(classes, "exec", noting, raising=False)
    monkeypatch.setattr(dataclasses, "exec", noting, raising=False)
    point = make_point(classes.dataclass)
    assert compiled == []
    point(1)
    point(2)
    assert sum("def __init__" in text for text in compiled) == 1
    assert not any("__eq__" in text or "__repr__" in text for text in compiled)


def outcome(kind: Kind, deed: Callable[[Any, Any, Any], Any], dataclass: Any) -> object:
    """What came of it: a value, or an error."""
    cls = kind.make(dataclass)
    one, other = cls(**kind.arguments), cls(**kind.others)
    try:
        return deed(cls, one, other)
    except (TypeError, AttributeError) as error:
        return type(error).__name__, "" if "unknown" in str(error) else str(error)
