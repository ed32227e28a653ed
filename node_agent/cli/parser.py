"""Parser of all command lines, including shortened flags, and the text of --help and --help-all."""

import argparse
from collections.abc import Sequence
from itertools import islice
from typing import Any, NoReturn

from rdzv_protocol import words as protocol_words
from rdzv_protocol.completion import add_print_completion
from rdzv_protocol.help_pages import add_help, add_version
from rdzv_protocol.paths import DEFAULT_PORT

from node_agent import words
from node_agent.cli.arguments import FLAGS, HEADINGS, Given
from node_agent.flags import TASKS
from node_agent.kernel.config import UsageError

DESCRIPTION = """\
Starts this node's workers of a distributed PyTorch run. The agent joins the run at a rendezvous server, which assigns \
the ranks, and starts the workers with torchrun's environment. If a worker fails, all nodes restart together."""

OF_THE_SERVER = {
    *("--advertise", "--allow-host", "--admin-token-file", "--etcd-ca", "--etcd-cert"),
    *("--etcd-key", "--exclude-after", "--exclude-for", "--exit-when-idle", "--host"),
    *("--leader-lease", "--listen-fd", "--max-agents", "--max-connections", "--max-events"),
    *("--max-runs", "--metrics-per-run", "--on-exclude", "--port", "--probe"),
    *("--read-token-file", "--rebalance-after", "--retention", "--shards", "--stand-by-for"),
    *("--store", "--take-over-after", "--tls-client-ca", "--webhook", "--webhook-secret-file"),
}
"""Flags that rdzv-server has and the agent does not."""

_EXAMPLES = f"""\
examples:
  node-agent --standalone --nproc 2 train.py --lr 0.1
        run on this node only; no server is needed
  rdzv-server --port {DEFAULT_PORT}
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py
        run on two nodes: start the server on HOST, which every node reaches, and the agent on each node
  srun --ntasks-per-node=1 node-agent --endpoint auto train.py
        run in a Slurm job; the agent reads the rest from the variables of Slurm or of another scheduler"""

FIRST_DAYS_EXAMPLES = f"""\
{_EXAMPLES}

node-agent accepts every command line of torchrun. All flags and exit codes: node-agent --help-all"""

EPILOG = f"""\
{_EXAMPLES}
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 1:4 --max-restarts 3 train.py
        run on 1 to 4 nodes
  node-agent --nnodes 2 --node-rank R --master-addr HOST --nproc 8 train.py
        run as under torchrun; HOST, the node of rank 0, hosts the server

node-agent accepts every command line of torchrun. You can write --a-b as --a_b, and shorten a flag if only one flag \
of torchrun begins with these letters. If a flag is missing, the agent reads the variable PET_A_B.
Settings of the run (--nnodes, --max-restarts, timeouts) must be the same on every node that sets them.
Exit codes: 0 the run succeeded; 1 the run failed; 2 bad input, nothing was started. With --endpoint also: 70 restarts \
made no progress; 71 this node is unfit; 75 the agent was told to leave or has no server: start it again, here or on \
another node; 77 the server refused the agent."""

MOST_COLUMNS = 120
TORCHRUNS = {"--help", *(spelling for flag in FLAGS.values() for spelling in flag.torchruns)}


FIRST_OF_ITS_TASK = "max_restarts"
"""Flag that --help shows before the others of its task, since most people need only this one."""


def _flags_by_task() -> dict[str, list[str]]:
    """Return the names of the flags that --help shows."""
    names = sorted(FLAGS, key=lambda name: name != FIRST_OF_ITS_TASK)
    return {task: [name for name in names if FLAGS[name].task == task] for task in TASKS}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows one spelling of each name, and wraps whole paragraphs."""

    def __init__(self, prog: str, width: int = MOST_COLUMNS) -> None:
        super().__init__(prog, max_help_position=min(34, width // 3), width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "_" not in name]
        return f"{', '.join(names)} {action.metavar or ''}".rstrip() if names else str(action.metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import fill

        return "\n".join(fill(line, width, subsequent_indent=line[: -len(line.lstrip())]) for line in text.split("\n"))


class Parser(argparse.ArgumentParser):
    """Parser of flags only: it first finds SCRIPT, and reads nothing from there on.

    It raises `UsageError` to refuse. A shortened flag that may be torchrun's means torchrun's, even if one of ours also
    matches.
    """

    def __init__(self) -> None:
        super().__init__(
            prog="node-agent", usage="node-agent [FLAG ...] SCRIPT [ARGUMENT ...]", description=DESCRIPTION,
            epilog=EPILOG, exit_on_error=False, allow_abbrev=False, add_help=False,
        )  # fmt: skip
        add_help(self, _flags_by_task(), FIRST_DAYS_EXAMPLES)
        add_version(self)
        add_print_completion(self)
        group = self.add_argument_group()
        for name, flag in FLAGS.items():
            if name in HEADINGS:
                group = self.add_argument_group(HEADINGS[name])
            takes: dict[str, Any] = {"metavar": flag.metavar} if flag.metavar else {"nargs": 0}
            group.add_argument(
                *flag.spellings, dest=name, action=_Store, default=argparse.SUPPRESS, help=flag.help, **takes
            )
        group = self.add_argument_group("script")
        group.add_argument("script", metavar="SCRIPT", help="what each worker runs; ${local_rank} in SCRIPT and in its "
                           "arguments becomes the worker's local rank").required = False  # fmt: skip
        rest = group.add_argument("args", metavar="...", nargs=argparse.REMAINDER, help="arguments of SCRIPT")
        rest.required = False

    def read(self, argv: Sequence[str]) -> tuple[Given, list[str]]:
        """Return the given flags, each with spelling and text, and SCRIPT with all that follows.

        Raises `UsageError`, or `SystemExit` after --help and the like.
        """
        flags, command = self._split(argv)
        try:
            namespace = self.parse_args(flags)
        except argparse.ArgumentError as error:
            names = (error.argument_name or "").split("/")
            spelled = [name for word in flags if (name := word.partition("=")[0]) in names]
            self.error(f"{[*spelled, *names][0]}: {error.message}")
        given = {name: value for name, value in vars(namespace).items() if name in FLAGS}
        if not command and all(FLAGS[name].needs_script for name in given):
            self.error(self._no_script(flags))
        if command and not command[0]:
            self.error(words.cli.SCRIPT_IS_EMPTY)
        return given, command

    def _split(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the flags with their values, spelled out, and SCRIPT with all that follows, even words that look like
        flags.

        A word `--` just before or after SCRIPT is dropped, as argparse does for torchrun. Raises `UsageError` if a word
        before SCRIPT is not a flag.
        """
        flags: list[str] = []
        left = iter(argv)
        for word in left:
            if word == "--":
                return flags, [*left]
            if word == "-" or not word.startswith("-"):
                rest = [*left]
                return flags, [word, *(rest[1:] if rest[:1] == ["--"] else rest)]
            name, *value = word.split("=", 1)
            spelling = self.spelling(name)
            if spelling is None and name in OF_THE_SERVER:
                self.error(words.cli.flag_of_server(name))
            if spelling is None:
                self.error(words.cli.unknown_argument(word, self._instead_of(word)))
            flags.append("=".join([spelling, *value]))
            if not value and spelling in self._option_string_actions:
                flags += islice(left, 0 if self._option_string_actions[spelling].nargs == 0 else 1)
        return flags, []

    def spelling(self, name: str) -> str | None:
        """Return the spelling of a flag for a name that may be shortened, or short with a value; None if there is no
        such flag.

        Raises `UsageError` if the name may mean several flags, of which none or several are torchrun's.
        """
        known = self._option_string_actions
        if name in known or (name[1] != "-" and name[:2] in known):
            return name
        longer = [spelling for spelling in known if name.startswith("--") and spelling.startswith(name)]
        meant: dict[argparse.Action, str] = {}
        for spelling in longer:
            meant.setdefault(known[spelling], spelling)
        torchruns = [known[spelling] for spelling in longer if spelling in TORCHRUNS]
        if len(set(torchruns)) == 1:
            return meant[torchruns[0]]
        if len(meant) > 1:
            self.error(words.cli.ambiguous_flag(name, [*meant.values()]))
        return next(iter(meant.values()), None)

    def _instead_of(self, word: str) -> str:
        """Return the flag that the user probably meant."""
        names = [name for name in self._option_string_actions if name.startswith("--") and "_" not in name]
        return protocol_words.flags.did_you_mean(word.partition("=")[0].replace("_", "-"), names, 0.75)

    def _no_script(self, flags: Sequence[str]) -> str:
        """Return a line about a missing script. The last flag may have taken it as its value."""
        flag, value = flags[-2:] if len(flags) > 1 else ("", "")
        action = self._option_string_actions.get(flag)
        if action is None or action.nargs == 0 or not value.endswith(".py"):
            return words.cli.NO_SCRIPT
        return words.cli.script_taken_for_value(flag, str(action.metavar), value)

    def _get_formatter(self) -> argparse.HelpFormatter:
        from shutil import get_terminal_size

        return _Help(self.prog, min(get_terminal_size().columns, MOST_COLUMNS) - 2)

    def error(self, message: str) -> NoReturn:
        raise UsageError(words.cli.see_help(message))


class _Store(argparse.Action):
    """Stores the flag's spelling and text, or a list of its texts if it may be given several times."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        text = values if isinstance(values, str) else "true"
        _, before = getattr(namespace, self.dest, (None, []))
        setattr(namespace, self.dest, (spelling, [*before, text] if FLAGS[self.dest].repeats else text))
