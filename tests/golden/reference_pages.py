"""Pages that are made: the reference of flags, requests and Python names, and the list of decision records."""

import argparse
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_agent
import node_agent.data
from node_agent.cli.parser import Parser
from rdzv_server.cli import make_parser as server_parser
from rdzv_server.http import openapi
from rdzv_server.http.routes import ROUTES
from rdzvctl.cli import make_parser as rdzvctl_parser
from tests.golden.help_pages import with_commands

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
RECORDS = Path(__file__).parents[2] / "docs" / "development" / "adr"
MADE = "<!-- Made by `python -m tests.golden --write`; what is changed here by hand is lost. -->"

CLI = f"""{MADE}

# Command line

Every flag of the three programs. `--help` shows the most used flags, `--help-all` shows them all.

Each flag of `node-agent` can also be given as a variable: `PET_MAX_RESTARTS=3` for `--max-restarts 3`.
You can write `--max_restarts` for `--max-restarts`, as under torchrun.

Set the variable of a switch to `1`, `true`, `yes` or `on`, or to `0`, `false`, `no` or `off`. If a switch is a setting
of the run, leave its variable out to take the run's value: `PET_REPLACE_STRAGGLERS=0` asks for a run that has it off.
"""
HTTP = f"""{MADE}

# HTTP requests

Every request that `rdzv-server` answers. This page is made of the OpenAPI document (`GET /openapi.json`).
[The HTTP API](http-api.md) tells how to use them. A server without tokens asks for none.

Any request can also be refused with these codes: {{common}}.
[Refusals](http-api.md#refusals) says what to do about each code.
"""
PYTHON = f"""{MADE}

# Python names

Every name of `node_agent` and of `node_agent.data`, with its signature and its docstring.
[The Python API](python-api.md) shows how to use them.
"""
DECISIONS = f"""{MADE}

# Decisions

One page for each decision that someone may question: what was decided, why, and what else was considered. The pages are
numbered in the order of the decisions. Comments and other pages refer to them by number, for example `ADR 12`.
"""
TOKENS = {"agentToken": "agents'", "readToken": "read", "adminToken": "admin"}


def reference_pages() -> dict[Path, str]:
    """Return the text of each page, by its path."""
    return {
        FOLDER / "cli.md": "\n".join(cli()),
        FOLDER / "http-requests.md": "\n".join(http()),
        FOLDER / "python-names.md": "\n".join(python()),
        RECORDS / "README.md": "\n".join(records()),
    }


def cell(text: str) -> str:
    """Return the text as a cell of a table shows it."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def plain(text: str) -> str:
    """Return the text escaped for Markdown, except for its code."""
    return re.sub(r"(`+[^`]*`+)|([<*])", lambda found: found[1] or f"\\{found[2]}", text)


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def cli() -> Iterator[str]:
    yield CLI
    for root in (Parser(), server_parser(), rdzvctl_parser()):
        for parser in with_commands(root):
            yield f"{'##' if parser is root else '###'} {name_of(parser)}\n"
            yield f"```text\n{parser.usage}\n```\n"
            yield f"{' '.join((parser.description or '').split())}\n".lstrip()
            yield from tables(parser, root)


def tables(parser: argparse.ArgumentParser, root: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a table for each group of arguments. A command has no table of the flags that it shares with all others."""
    shared = () if parser is root else [group.title for group in root._action_groups if group._group_actions]
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        actions = [each for each in shown if parser is root or not isinstance(each, argparse._HelpAction)]
        title = (group.title or "").removeprefix("options")
        if not actions:
            continue
        if title in shared:
            yield f"Also the flags of [{title}](#{root.prog}-{title.replace(' ', '-')}).\n"
            continue
        if title and parser is root:
            yield f"### {parser.prog}: {title}\n"
        yield "| argument | what it does |\n|---|---|"
        for action in actions:
            yield from rows(action)
        yield ""


def name_of(parser: argparse.ArgumentParser) -> str:
    """Return the words that start a command."""
    return " ".join(word for word in parser.prog.split() if re.fullmatch(r"[a-z-]+", word))


def argument(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar or ()) or action.dest
    if isinstance(action, argparse._SubParsersAction):
        return metavar if action.metavar else "COMMAND"
    return f"[{metavar}]" if action.nargs in ("?", "*", argparse.REMAINDER) else metavar


def rows(action: argparse.Action) -> Iterator[str]:
    """Yield a row for a flag or an argument, or one for each command."""
    if isinstance(action, argparse._SubParsersAction):
        for shown in action._choices_actions:
            yield f"| {code(shown.dest)} | {cell(shown.help or '')} |"
        return
    spellings = [name for name in action.option_strings if "_" not in name]
    takes = "" if action.nargs == 0 else argument(action) if not spellings or action.metavar else action.dest.upper()
    if isinstance(action, argparse._HelpAction | argparse._VersionAction | argparse._StoreTrueAction):
        takes = ""
    name = f"{', '.join(spellings)} {takes}".strip()
    default = "" if action.default in (None, argparse.SUPPRESS) else action.default
    text = (action.help or "") % {"default": default, "prog": ""} if "%(" in (action.help or "") else action.help or ""
    yield f"| {code(name)} | {cell(text.replace('%%', '%'))} |"


def http() -> Iterator[str]:
    document = openapi.document(ROUTES)
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    common = set.intersection(*(refusals(operation) for _, operation in operations))
    yield HTTP.format(common=", ".join(code(name) for name in sorted(common)))
    for tag, title in (("operators", "For operators"), ("agents", "For agents")):
        yield f"## {title}\n"
        for name, operation in operations:
            if tag in operation["tags"]:
                yield from request(name, operation, document["components"]["schemas"], common)


def request(name: str, operation: Any, schemas: Any, common: set[str]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{plain(operation['summary'])}\n"
    answer = operation["responses"]["200"]
    if answer["description"] != operation["summary"]:
        yield f"- Answer: {plain(answer['description'])}"
    yield f"- Type of the answer: {', '.join(code(media) for media in sorted(answer['content']))}"
    tokens = [TOKENS[scheme] for each in operation["security"] for scheme in each]
    yield f"- Token: {' or '.join(tokens) or 'none'}"
    if refused := sorted(refusals(operation) - common):
        yield f"- Refusals: {', '.join(code(each) for each in refused)}"
    yield ""
    rows = [
        (each["name"], f"in the {each['in']}", each.get("description", "")) for each in operation.get("parameters", ())
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
        needed = schema.get("required", ())
        rows += [
            (field, "in the body" + (", required" if field in needed else ""), about.get("description", ""))
            for field, about in schema.get("properties", {}).items()
        ]
    if rows:
        yield "| parameter | where | what it is |\n|---|---|---|"
        yield from (f"| {code(field)} | {where} | {cell(about)} |" for field, where, about in rows)
        yield ""


def refusals(operation: Any) -> set[str]:
    return {
        name
        for answer in operation["responses"].values()
        for content in answer["content"].values()
        for part in content["schema"].get("allOf", ())
        for name in part.get("properties", {}).get("code", {}).get("enum", ())
    }


def records() -> Iterator[str]:
    yield DECISIONS
    for path in sorted(RECORDS.glob("0*.md")):
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        yield f"{number}. [{title}]({path.name})"
    yield ""


def python() -> Iterator[str]:
    yield PYTHON
    for module in (node_agent, node_agent.data):
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            yield f"## {name}\n"
            yield f"```python\n{signature(name, value)}\n```\n"
            yield f"{plain(inspect.getdoc(value) or '')}\n"


def signature(name: str, value: Any) -> str:
    """Return how a name is called, with an argument on each line if it is long."""
    if isinstance(value, enum.EnumMeta):
        return f"class {name}({', '.join(f'{each.name} = {each.value}' for each in value)})"
    kind = "class" if inspect.isclass(value) else "def"
    try:
        called = inspect.signature(value)
    except ValueError:
        return f"{kind} {name}"
    shown = re.sub(r"<(\w+\.\w+): \d+>", r"\1", str(called).replace("<factory>", "..."))
    shown = re.sub(r"\b(?:\w+\.)+(?=[A-Z]\w)(?!NONE)", "", shown).replace("~", "")
    if kind == "class":
        shown = re.sub(r" -> .*$", "", shown)
    if len(shown) > 90:
        shown = re.sub(r", (?=[*\w]+[:=,)]|\*)", ",\n    ", shown.replace("(", "(\n    ", 1))
    return f"{kind} {name}{shown}"
