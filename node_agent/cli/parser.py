"""The words of a command line to flags and their texts. What a text means is decided elsewhere."""

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import rdzv_protocol
from rdzv_protocol.paths import DEFAULT_PORT

from node_agent.cli.flags import FLAGS, GROUPS, Flag
from node_agent.config import UsageError

DESCRIPTION = """\
Runs this node's workers of a distributed PyTorch run: joins the run at a rendezvous server, is told its target, starts
the workers with torchrun's environment, and restarts them together with every other node's when one fails."""

EPILOG = f"""\
examples:
  node-agent --standalone --nproc 2 train.py --lr 0.1
        this node alone, no server needed
  rdzv-server --port {DEFAULT_PORT}
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py
        the server on one machine that every node reaches, the agent on each of two nodes
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 1:4 --max-restarts 3 train.py
        elastic: 1 to 4 nodes
  node-agent --nnodes 2 --node-rank R --master-addr HOST --nproc-per-node 8 train.py
        as with torchrun, no server needed: the node of rank 0, which is HOST, hosts it

Every torchrun command line is one for node-agent. Each --a-b may be written --a_b and be shortened as long as it is
torchrun's only flag that begins so; where it is left out, the variable PET_A_B stands in for it.
Settings of a run (--nnodes, --max-restarts, timeouts) must be the same on every node; a node may leave them out.
Exit codes: 0 the run succeeded; 1 it failed, or this agent was told to leave; 2 bad input, nothing was started."""

MOST_COLUMNS = 120
TORCHRUNS = frozenset(spelling for flag in FLAGS.values() for spelling in flag.torchruns)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows one spelling of each name. Finds the terminal's width without importing what argparse would."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=_columns())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "_" not in name]
        return f"{', '.join(names)} {action.metavar or ''}".rstrip() if names else str(action.metavar)


def _columns() -> int:
    try:
        return min(os.get_terminal_size().columns, MOST_COLUMNS)
    except OSError:  # not a terminal
        return MOST_COLUMNS


class Parser(argparse.ArgumentParser):
    """Refuses with `UsageError`. A shortened flag that could be one of torchrun's is torchrun's, whatever we have."""

    def __init__(self) -> None:
        super().__init__(
            prog="node-agent", usage="node-agent [FLAG ...] SCRIPT [ARGUMENT ...]", description=DESCRIPTION,
            epilog=EPILOG, formatter_class=_Help, exit_on_error=False,
        )  # fmt: skip
        self.add_argument("--version", action="version", version=f"node-agent {rdzv_protocol.VERSION}")
        for title, flags in GROUPS.items():
            group = self.add_argument_group(title)
            for flag in flags:
                group.add_argument(*flag.spellings, **_options(flag))
        group = self.add_argument_group("and then")
        group.add_argument("script", metavar="SCRIPT", help="what each worker runs; ${local_rank} in it, and in what "
                           "follows, is the worker's local rank")  # fmt: skip
        group.add_argument("args", metavar="...", nargs=argparse.REMAINDER, help="its arguments")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The flags that are given, each with the spelling and the text; `script` and `args`. Raises `UsageError`."""
        try:
            return self.parse_args(argv)
        except argparse.ArgumentError as error:
            name = (error.argument_name or "").partition("/")[0]
            self.error(f"{name}: {error.message}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (node-agent --help explains every flag)")

    def _get_option_tuples(self, option_string: str) -> Any:
        """What argparse lets an unknown option stand for: the flags that it begins, by each of their spellings."""
        found: dict[int, Any] = {}
        torchruns = set()
        for candidate in super()._get_option_tuples(option_string):
            found.setdefault(id(candidate[0]), candidate)
            if candidate[1] in TORCHRUNS:
                torchruns.add(id(candidate[0]))
        return [candidate for action, candidate in found.items() if len(torchruns) != 1 or action in torchruns]


class _Store(argparse.Action):
    """Keeps the text and how the flag was spelled."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        setattr(namespace, self.dest, (spelling, values if isinstance(values, str) else "true"))


def _options(flag: Flag) -> dict[str, Any]:
    takes = {"metavar": flag.metavar} if flag.metavar else {"nargs": 0}
    return {"dest": flag.dest, "action": _Store, "default": argparse.SUPPRESS, "help": flag.help, **takes}
