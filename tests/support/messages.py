"""Messages as hypothesis strategies, drawn from the very hints that the codec reads."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from rdzv_protocol.constraints import Printable
from rdzv_protocol.messages import Message

KINDS: tuple[Any, ...] = get_args(Message)
"""Everything that is sent as a whole."""


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, within its limits and at them."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(args[0], args[1])
    if origin in (Union, UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if hint is NoneType:
        return st.none()
    if hint is bool:
        return st.booleans()
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})


def _limited(base: Any, limit: Any) -> st.SearchStrategy[Any]:
    if get_origin(base) is tuple:
        return st.lists(values(get_args(base)[0]), max_size=min(limit.count, 3)).map(tuple)
    if base is str and isinstance(limit, Printable):
        letters = st.characters(exclude_categories=("C", "Z"))
        texts = st.text(letters, min_size=limit.shortest, max_size=8).filter(str.isprintable)
        return texts | st.just("x" * limit.longest)
    if base is str:
        return st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.just("\n" * limit.count)
    if base is int:
        return st.integers(int(limit.low), int(limit.high))
    return st.floats(limit.low, limit.high)
