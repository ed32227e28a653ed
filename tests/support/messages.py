"""Messages as hypothesis strategies, drawn from the type hints that the codec reads."""

from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Meta
from rdzv_protocol import evidence, messages, queries
from rdzv_protocol.actions import (
    ActionRequest,
    AgentDescription,
    DescribeRequest,
    Done,
    LogsRequest,
    StacksRequest,
    WorkerLog,
    WorkerStacks,
)
from rdzv_protocol.messages import Message
from rdzv_protocol.visible import is_visible

KINDS: tuple[Any, ...] = get_args(Message)
"""All types that are sent as a whole."""
AGENT_PARTS = sorted(
    {
        kind: None
        for kind in (vars(messages) | vars(queries) | vars(evidence)).values()
        if getattr(kind, "__struct_fields__", ())
    },
    key=lambda kind: kind.__module__ != messages.__name__,
)
"""All types that agents send or receive, whole or as a part."""
PARTS = [
    *AGENT_PARTS, *get_args(ActionRequest), LogsRequest, Done, WorkerLog, StacksRequest, WorkerStacks, DescribeRequest,
    AgentDescription,
]  # fmt: skip
"""All types that are sent, whole or as a part."""


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type, within its limits and at them."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [each for each in args[1:] if isinstance(each, Meta)]
        return _limited(args[0], limits[0]) if limits else values(args[0])
    if origin in (Union, UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if hint is NoneType:
        return st.none()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is bool:
        return st.booleans()
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{name: values(hints[name]) for name in hint.__struct_fields__})


def _limited(base: Any, limit: Meta) -> st.SearchStrategy[Any]:
    if get_origin(base) is tuple:
        return st.lists(values(get_args(base)[0]), max_size=min(limit.max_length or 3, 3)).map(tuple)
    if base is str:
        visible = st.characters(exclude_categories=("C", "Z", "Mn", "Me")).filter(is_visible)
        letters = visible if limit.pattern else st.characters(exclude_categories=("Cs",))
        least, most = limit.min_length or 0, limit.max_length or 8
        longest = st.just("x" if limit.pattern else "\n").map(lambda letter: letter * most)
        return st.text(letters, min_size=least, max_size=max(least, 8)) | longest
    if base is int:
        return st.integers(limit.ge, limit.le)
    return st.floats(limit.ge, limit.le)
