"""Names for shell completion: the hidden command `rdzvctl __complete KIND`, which the scripts of `--print-completion`
run.

The command only writes names, one a line, and none if anything fails or a server does not answer in time. Any user may
name a run or a node, so only names that every shell takes literally are offered.
"""

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from rdzvctl import contexts
from rdzvctl.client import Client, Overview
from rdzvctl.errors import CtlError
from rdzvctl.views.state import is_over

COMMAND = "__complete"
LINE = "RDZVCTL_LINE"
"""Variable with the command line so far, which may contain --endpoint, --context and credentials."""
DEADLINE_S = 1.0
"""Seconds that servers have to answer, since a person waits at the prompt."""
HARMLESS = re.compile(r"[A-Za-z0-9_][\w@%+,./-]*", re.ASCII)
"""Names without anything that bash, zsh or fish would expand, split or quote."""


def _runs(is_wanted: Callable[[bool], bool]) -> Callable[[Overview], Iterable[str]]:
    return lambda found: (run["run_id"] for run in found.runs if is_wanted(is_over(run)))


def _nodes(found: Overview) -> Iterator[str]:
    return (node["node_id"] for run in found.runs if not is_over(run) for node in run["nodes"])


def _cordoned(found: Overview) -> Iterator[str]:
    return (cordon["node_id"] for server in found.servers for cordon in server["cordons"])


FROM_SERVERS: Mapping[str, Callable[[Overview], Iterable[str]]] = {
    "runs": _runs(lambda ended: True),
    "live-runs": _runs(lambda ended: not ended),
    "ended-runs": _runs(lambda ended: ended),
    "nodes": _nodes,
    "cordoned-nodes": _cordoned,
}
KINDS = (*FROM_SERVERS, "contexts")
"""Kinds of names that can complete an argument."""


def function_of(kind: str) -> str:
    """Return the name of the shell function that completes an argument of this kind."""
    return f"_rdzvctl_complete_{kind.replace('-', '_')}"


def completes(argument: argparse.Action, kind: str) -> None:
    """Let the shell complete the argument: `shtab` reads `complete`."""
    name = function_of(kind)
    argument.complete = {"bash": name, "zsh": name, "fish": f"({name})"}  # type: ignore[attr-defined]


def _script(ask: str, function: str) -> str:
    each = (function.format(name=function_of(kind), kind=kind) for kind in KINDS)
    return "\n".join((ask, *each))


PREAMBLE = {
    "bash": _script(
        f'_rdzvctl_ask() {{ {LINE}="${{COMP_LINE:0:COMP_POINT}}" command rdzvctl {COMMAND} "$@" 2>/dev/null; }}',
        '{name}() {{ _rdzvctl_ask {kind} "$1"; }}',
    ),
    "zsh": _script(
        f'_rdzvctl_ask() {{ local kind=$1; shift; local -a names; names=(${{(f)"$({LINE}=$LBUFFER '
        f'command rdzvctl {COMMAND} $kind 2>/dev/null)"}}); compadd "$@" -a names; }}',
        '{name}() {{ _rdzvctl_ask {kind} "$@"; }}',
    ),
    "fish": _script(
        f"function _rdzvctl_ask; {LINE}=(commandline -cp | string collect) command rdzvctl {COMMAND} $argv "
        "2>/dev/null; end",
        "function {name}; _rdzvctl_ask {kind}; end",
    ),
}
"""Functions of each shell that ask for names, placed before its script."""


def names(kind: str, begun: str, given: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return the names of a kind that begin with `begun`, sorted; empty if they come too late.

    `given`: flags by name.
    """
    found: list[str] = []
    asking = Thread(target=lambda: found.extend(_find(kind, given, environment)), daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    return sorted({name for name in found if name.startswith(begun) and HARMLESS.fullmatch(name)})


def _find(kind: str, given: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    with suppress(CtlError):
        if kind not in FROM_SERVERS:
            return [*contexts.load(contexts.path_of(environment)).contexts]
        client = Client(contexts.choose(given, environment), timeout_s=0.0)
        return [*FROM_SERVERS[kind](client.overview())]
    return []


def flags_of(line: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the parser's flags in a command line; empty if it cannot be parsed, for example after an open quote."""
    with suppress(ValueError, CtlError):
        words = [os.path.expandvars(os.path.expanduser(word)) for word in shlex.split(line)]
        return vars(parser.parse_known_args(words)[0])
    return {}
