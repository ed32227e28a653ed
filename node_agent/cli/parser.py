"""Parser of the command line: words, also shortened, and variables to `Arguments`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import rdzv_protocol
from rdzv_protocol.paths import DEFAULT_PORT

from node_agent.cli.arguments import FLAGS, HEADINGS, Arguments, Flag, Given, make
from node_agent.config import UsageError

DESCRIPTION = """\
Runs this node's workers of a distributed PyTorch run: joins the run at a rendezvous server, gets its ranks there, \
starts the workers with torchrun's environment, and restarts them together with every other node's when one fails."""

EPILOG = f"""\
examples:
  node-agent --standalone --nproc 2 train.py --lr 0.1
        this node alone, no server needed
  rdzv-server --port {DEFAULT_PORT}
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py
        the server on one machine that every node reaches, the agent on each node
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 1:4 --max-restarts 3 train.py
        elastic: 1 to 4 nodes
  node-agent --nnodes 2 --node-rank R --master-addr HOST --nproc 8 train.py
        as with torchrun, no server needed: the node of rank 0, HOST, hosts it

Every torchrun command line is one for node-agent. Each --a-b may be written --a_b, and may be shortened if only one \
flag of torchrun's begins so. Where it is left out, the variable PET_A_B is read.
Settings of a run (--nnodes, --max-restarts, timeouts) must be the same on every node; a node may leave them out.
Exit codes: 0 the run succeeded; 1 it failed, or this agent was told to leave; 2 bad input, nothing was started."""

MOST_COLUMNS, USUAL_COLUMNS = 120, 80
SHELLS = ("bash", "zsh", "tcsh")
TORCHRUNS = frozenset(spelling for flag in FLAGS.values() for spelling in flag.torchruns)


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """The arguments of a command line. Raises `UsageError`; `SystemExit` after --help and the like."""
    given = vars(Parser().read(argv))
    script, args = given.pop("script"), given.pop("args")
    return make({**_from_variables(environment), **given}, script, args)


def _from_variables(environment: Mapping[str, str]) -> Given:
    """Operators for Kubernetes set these, and workers inherit them. An empty variable says nothing."""
    there = {name for name in environment if name.startswith(("PET_", "TORCH_ELASTIC_")) and environment[name].strip()}
    found = {}
    for argument, flag in FLAGS.items() if there else ():
        if variable := next((each for each in flag.variables if each in there), None):
            found[argument] = variable, environment[variable]
    return found


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows one spelling of each name, as wide as the terminal. Imports less than argparse would to find that out."""

    def __init__(self, prog: str) -> None:
        width = _columns() - 2
        super().__init__(prog, max_help_position=min(34, width // 3), width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "_" not in name]
        return f"{', '.join(names)} {action.metavar or ''}".rstrip() if names else str(action.metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import fill

        return "\n".join(fill(line, width, subsequent_indent=line[: -len(line.lstrip())]) for line in text.split("\n"))


def _columns() -> int:
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return min(int(given), MOST_COLUMNS)
    try:
        return min(os.get_terminal_size().columns or USUAL_COLUMNS, MOST_COLUMNS)
    except OSError:  # not a terminal
        return USUAL_COLUMNS


class Parser(argparse.ArgumentParser):
    """Refuses with `UsageError`. A shortened flag that could be one of torchrun's is torchrun's, whatever we have."""

    def __init__(self) -> None:
        super().__init__(
            prog="node-agent", usage="node-agent [FLAG ...] SCRIPT [ARGUMENT ...]", description=DESCRIPTION,
            epilog=EPILOG, formatter_class=_Help, exit_on_error=False,
        )  # fmt: skip
        self.add_argument("--version", action="version", version=f"node-agent {rdzv_protocol.VERSION}")
        self.add_argument("--print-completion", "--print_completion", action=_PrintCompletion, metavar="SHELL",
                          default=argparse.SUPPRESS, help="print what makes a shell complete these flags: bash, zsh "
                          "or tcsh")  # fmt: skip
        group = self.add_argument_group()
        for name, flag in FLAGS.items():
            if name in HEADINGS:
                group = self.add_argument_group(HEADINGS[name])
            group.add_argument(*flag.spellings, **_options(name, flag))
        group = self.add_argument_group("and then")
        group.add_argument("script", metavar="SCRIPT", help="what each worker runs; ${local_rank} in it, and in what "
                           "follows, is the worker's local rank")  # fmt: skip
        group.add_argument("args", metavar="...", nargs=argparse.REMAINDER, help="its arguments")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The flags that are given, each with the spelling and the text; `script` and `args`. Raises `UsageError`."""
        try:
            namespace, unknown = self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            names = (error.argument_name or "").split("/")
            typed = [word.partition("=")[0] for word in argv]
            name = next((each for each in typed if len(each) > 2 and _begins_one(each, names)), names[0])
            self.error(f"{name}: {error.message}")
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_instead_of(unknown[0])}")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (node-agent --help explains every flag)")

    def _get_option_tuples(self, option_string: str) -> Any:
        """The flags that argparse lets an unknown option stand for: those it begins, by each of their spellings."""
        found: dict[int, Any] = {}
        torchruns = set()
        for candidate in super()._get_option_tuples(option_string):
            found.setdefault(id(candidate[0]), candidate)
            if candidate[1] in TORCHRUNS:
                torchruns.add(id(candidate[0]))
        return [candidate for action, candidate in found.items() if len(torchruns) != 1 or action in torchruns]


def _begins_one(word: str, names: Sequence[str]) -> bool:
    return any(name.startswith(word) for name in names)


def _instead_of(word: str) -> str:
    """The flag that was probably meant."""
    from difflib import get_close_matches

    names = [name for flag in FLAGS.values() for name in flag.names if name.startswith("--")]
    close = get_close_matches(word.partition("=")[0].replace("_", "-"), names, 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""


class _Store(argparse.Action):
    """Keeps the text and how the flag was spelled."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        setattr(namespace, self.dest, (spelling, values if isinstance(values, str) else "true"))


class _PrintCompletion(argparse.Action):
    """Prints what `shtab`, an optional package, makes of this parser, and ends the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        if values not in SHELLS:
            raise UsageError(f"{spelling}: {', '.join(SHELLS[:-1])} or {SHELLS[-1]}, not {values!r}")
        from importlib import import_module

        try:
            shtab = import_module("shtab")
        except ImportError:
            parser.exit(1, f"{parser.prog}: {spelling} needs the package shtab: pip install shtab\n")
        print(shtab.complete(parser, values))  # noqa: T201
        parser.exit()


def _options(name: str, flag: Flag) -> dict[str, Any]:
    takes = {"metavar": flag.metavar} if flag.metavar else {"nargs": 0}
    return {"dest": name, "action": _Store, "default": argparse.SUPPRESS, "help": flag.help, **takes}
