"""The page about the wire agrees with the types, the paths and the refusals.

Its messages are made from the types: `python -m tests.unit.protocol.test_readme` writes them.
"""

import re
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, inspect, json
from rdzv_protocol import constraints, errors, paths, queries
from rdzv_protocol.codec import wanted
from rdzv_protocol.exit_codes import ExitCode

from rdzv_server.http.openapi import meanings
from rdzv_server.http.routes import ROUTES
from tests.support.messages import AGENT_PARTS

FILE = Path(__file__).parents[3] / "protocol" / "README.md"
PAGE = FILE.read_text()
BEGIN = "\n### "


def message(kind: Any) -> str:
    """Return the page's section about a message."""
    info: Any = inspect.type_info(kind)
    tag = f" Its `tag` is `{info.tag}`." if info.tag else ""
    told = meanings(kind)
    fields = [
        ". ".join([f"- `{each.name}`{default_of(each)}: {value_of(each.type)}", *filter(None, [told.get(each.name)])])
        for each in info.fields
    ]
    return "\n".join(
        [f"### `{kind.__name__}`", "", " ".join(kind.__doc__.replace("None", "null").split()) + tag, "", *fields, ""]
    )


def value_of(expected: Any) -> str:
    types = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    maps = [f"`{each.cls.__name__}`" for each in types if isinstance(each, inspect.StructType)]
    items = [f": {value_of(each.item_type)}" for each in types if isinstance(each, inspect.VarTupleType)]
    return (" or ".join(maps) or wanted(expected)) + "".join(items)


def default_of(field: inspect.Field) -> str:
    if field.required:
        return ""
    default = {} if field.default is NODEFAULT else field.default
    return f" (`{json.encode(default).decode()}`)"


def whole() -> str:
    """Return the page with its messages as the types define them."""
    return "\n".join([PAGE.partition(BEGIN)[0], *map(message, AGENT_PARTS)])


def test_the_messages_match_the_types() -> None:
    assert whole() == PAGE, f"python -m {__name__} writes them again"


def test_every_path_of_agents_is_there() -> None:
    assert [route.path for route in ROUTES if route.path.startswith(paths.AGENT) and route.path not in PAGE] == []


def test_every_refusal_of_agents_is_there_with_its_status() -> None:
    common = [
        errors.Unauthorized,
        errors.Forbidden,
        errors.TlsRequired,
        errors.TooManyRequests,
        errors.ServerUnavailable,
    ]
    for kind in [*common, *(each for route in ROUTES if route.path.startswith(paths.AGENT) for each in route.refusals)]:
        assert re.search(rf"^\| {kind.status} \| .*`{kind.code}`", PAGE, re.MULTILINE), kind.code


def test_a_refusal_that_ends_an_agent_is_there_with_the_agents_exit_code() -> None:
    exits = re.findall(r"`(\w+)` \| .*: exit with (\d+) \|", PAGE)
    assert dict(exits) == {
        kind.code: f"{ExitCode.REFUSED:d}"
        for kind in (errors.SettingsConflict, errors.NodeRankTaken, errors.RunStopped)
    }


def test_the_readme_has_the_protocols_numbers() -> None:
    limits = (constraints.MAX_MESSAGE_BYTES, constraints.MAX_DEPTH, constraints.MAX_ITEMS, paths.DEFAULT_PORT)
    for number in (*limits, queries.PAIR_TEST_PINGS, queries.PAIR_TEST_BYTES):
        assert re.search(rf"\b({number}|{number:,})\b", PAGE), number


if __name__ == "__main__":
    FILE.write_text(whole())
