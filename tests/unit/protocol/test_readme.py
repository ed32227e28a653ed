"""The page about the wire says what the types, the paths and the refusals say."""

import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from msgspec import NODEFAULT, inspect
from rdzv_protocol import constraints, errors, paths
from rdzv_protocol.codec import words

from tests.support.messages import PARTS

PAGE = (Path(__file__).parents[3] / "protocol" / "README.md").read_text()
DEFAULTS = {None: "null", True: "true", False: "false", (): "[]"}


def section(name: str) -> str:
    return PAGE.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]


def value_of(expected: Any) -> str:
    types = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    maps = [f"`{each.cls.__name__}`" for each in types if isinstance(each, inspect.StructType)]
    items = [f" {value_of(each.item_type)}" for each in types if is_list_of_maps(each)]
    return " or ".join(maps) or words(expected) + "".join(items)


def is_list_of_maps(expected: Any) -> bool:
    is_list = isinstance(expected, inspect.VarTupleType)
    return is_list and isinstance(expected.item_type, inspect.StructType | inspect.UnionType)


def default_of(field: inspect.Field) -> str:
    if field.required:
        return ""
    if field.default_factory is not NODEFAULT:
        return "`{}`"
    is_plain = isinstance(field.default, str) or type(field.default) in (int, float)
    shown = f'"{field.default}"' if isinstance(field.default, str) else field.default
    if isinstance(field.default, Enum):
        shown, is_plain = f'"{field.default.value}"', True
    return f"`{shown if is_plain else DEFAULTS[field.default]}`"


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_every_message_is_there_with_each_field_its_value_and_its_default(kind: Any) -> None:
    info: Any = inspect.type_info(kind)
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*)\|$", section(kind.__name__), re.MULTILINE)
    assert [name for name, *_ in rows] == [field.name for field in info.fields]
    for (_, value, default), field in zip(rows, info.fields, strict=True):
        assert value.startswith(value_of(field.type)) and default.strip() == default_of(field), field.name
    assert info.tag is None or f"`tag` is `{info.tag}`" in section(kind.__name__)


def test_every_path_is_there() -> None:
    known = [value for name, value in vars(paths).items() if name.isupper() and str(value).startswith("/")]
    assert len(known) > 10 and [path for path in known if path not in PAGE] == []


def test_every_refusal_is_there_with_its_status() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and kind is not errors.ProtocolError:
            assert re.search(rf"^\| {kind.status} \| .*`{kind.code}`", PAGE, re.MULTILINE), kind.code


def test_the_limits_are_there() -> None:
    for limit in (constraints.MAX_MESSAGE_BYTES, constraints.MAX_DEPTH, constraints.MAX_ITEMS, paths.DEFAULT_PORT):
        assert re.search(rf"\b({limit}|{limit:,})\b", PAGE), limit
