"""Program `rdzvctl`: runs a command line and returns an exit code."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from rdzv_protocol import hung_disks, inherited
from rdzv_protocol.completion import add_print_completion
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.flag_values import LOG_LINES, LOG_STREAMS, MOST_LOG_LINES, node_counts, seconds
from rdzv_protocol.help_pages import add_version
from rdzv_protocol.paths import DEFAULT_PORT
from rdzv_protocol.standard_output import PIPE_CLOSED, discard
from rdzv_protocol.states import HEALTH, PHASES
from rdzv_protocol.text import printable

from rdzvctl import commands, completion, context_commands, words
from rdzvctl.client import DEFAULT_TIMEOUT_S
from rdzvctl.commands import MOST_EVENTS
from rdzvctl.contexts import FIELDS
from rdzvctl.errors import BadInput, CtlError
from rdzvctl.output import OutputFailed, ReaderGone, flush, write
from rdzvctl.session import Session

if TYPE_CHECKING:
    from rdzv_protocol.actions import Action

DESCRIPTION = """\
Shows the runs of an rdzv-server, explains why a run is in its current state, and acts on runs and nodes."""

EPILOG = f"""\
examples:
  rdzvctl --endpoint HOST:{DEFAULT_PORT} status      show the server and its runs
  rdzvctl why                             show what the only run waits for, what failed first, and what to do
  rdzvctl nodes r1                        list the nodes of run r1 by group rank
  rdzvctl events r1 --follow              show past and new events of run r1
  rdzvctl logs r1 3 --follow              show the output of the worker of rank 3
  rdzvctl bundle r1 --anonymize           write a file for a bug report
  rdzvctl stop r1 --reason "wrong data"   end run r1 on every node
  rdzvctl drain node-7 --deadline 10m     empty a node and cordon it; the other nodes continue
  rdzvctl config set-context lab --endpoint a:{DEFAULT_PORT},b:{DEFAULT_PORT} --token-file lab.token
  rdzvctl config use-context lab          use this server by default from now on

You can leave out RUN if only one run is active. --json writes JSON, for scripts; NO_COLOR=1 turns colours off.
Server: --endpoint, else --context, else RDZV_ENDPOINT, else the current context, else this machine.
Exit codes: 0 done; 1 refused, or no such run; 2 bad input; 75 no server answers; 77 wrong token; 130 Ctrl-C."""

FLAGS = {
    "endpoint": ("HOST:PORT", "connect to rdzv-server at this address; HOST:PORT,HOST:PORT for several servers "
        "(RDZV_ENDPOINT)"),
    "context": ("NAME", "use this context of the configuration file"),
    "token_file": ("FILE", "authenticate with the token in this file (RDZV_TOKEN_FILE)"),
    "tls_ca": ("FILE|system", "use TLS and verify the server's certificate against this CA bundle (PEM); system: "
               "against the system's CAs (RDZV_TLS_CA)"),
    "tls_cert": ("FILE", "present this client certificate (PEM) to rdzv-server --tls-client-ca (RDZV_TLS_CERT)"),
    "tls_key": ("FILE", "read the private key of --tls-cert from this file (PEM, not encrypted) (RDZV_TLS_KEY)"),
}  # fmt: skip
YES = ("--yes", "-y")
"""Flag of actions that ask for confirmation."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit code that a shell returns for this signal."""


class Command(NamedTuple):
    """One word of the command line: what it does, and its arguments. `example`: its words after the name."""

    name: str
    example: str
    help: str
    do: Callable[[Session], None]
    arguments: Callable[[argparse.ArgumentParser], Any] = lambda parser: None


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line and return the exit code: see `--help`."""
    _prepare_streams()
    try:
        return _carry_out(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, ReaderGone):  # such as a pipe into head, also while a command waits for something to write
        discard()
        return PIPE_CLOSED
    except OutputFailed as failed:
        discard()
        _tell(f"error: {failed}")
        return ExitCode.FAILED
    finally:
        hung_disks.end()


def _carry_out(argv: Sequence[str] | None) -> int:
    try:
        arguments = make_parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
        hung_disks.begin("rdzvctl", list)
        with Session(vars(arguments), os.environ) as session:
            arguments.do(session)
        flush()
        return ExitCode.SUCCEEDED
    except CtlError as error:
        flush()
        _tell(f"error: {error}", *error.help_lines)
        return error.exit_code


def _prepare_streams() -> None:
    """Use /dev/null in place of a closed stdout or stderr: otherwise the next socket would get its number.

    Names and output of workers may have characters that stdout's encoding has not: escape these, as stderr does.
    """
    inherited.correct()
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _tell(line: str, *more: str) -> None:
    print(f"rdzvctl: {printable(line)}", *(f"  {printable(each)}" for each in more), sep="\n", file=sys.stderr)  # noqa: T201


# The parser.


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        """Show the help. argparse itself ignores an error of stdout, such as a full disk."""
        write(self.format_help().rstrip(), at_once=True)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, but name an unknown flag before the command: argparse would take its value for the command."""
        line = sys.argv[1:] if args is None else list(args)
        first = line[0].partition("=")[0] if line else ""
        known = list(self._option_string_actions)
        if first.startswith("--") and not any(flag.startswith(first) for flag in known):
            self.error(words.command_line.no_flag(first, known))
        return super().parse_args(line, namespace)

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"argument COMMAND: invalid choice: '(.*?)'", message):
            message = words.command_line.no_command(wrong[1], [command.name for command in all_commands()])
        raise BadInput(words.command_line.see_help(message, self.prog))


class _CommandParser(_Parser):
    """Parser of what follows a command.

    It refuses unknown words itself, so that the error names the command's own help.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, surplus = super().parse_known_args(args, namespace)
        if surplus and surplus[0] in YES:
            raise BadInput(words.command_line.asks_nothing(surplus[0], self.prog))
        if surplus and surplus[0].startswith("--"):
            self.error(words.command_line.no_flag(surplus[0].partition("=")[0], list(self._option_string_actions)))
        if surplus:
            self.error(words.command_line.surplus(surplus))
        return found, surplus


def make_parser(line: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands. Its namespace contains what was given, and no defaults.

    If the command in this `line` is not an action, the parser lacks the actions, whose table takes long to import.
    """
    common: Any = _common()
    parser = _Parser(
        prog="rdzvctl", usage="rdzvctl [FLAG ...] COMMAND ...", description=DESCRIPTION, epilog=EPILOG,
        parents=[common], argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_version(parser)
    add_print_completion(parser, completion.PREAMBLE)
    names = parser.add_subparsers(
        title="commands", prog="rdzvctl", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for command in (*QUESTIONS, CONFIG) if _is_no_action(line) else all_commands():
        each = names.add_parser(
            command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example: rdzvctl {command.name} {command.example}", parents=[common],
            argument_default=argparse.SUPPRESS,
        )  # fmt: skip
        command.arguments(each)
        each.usage = _usage(each)
        each.set_defaults(do=command.do)
    _complete(names.add_parser(completion.COMMAND))
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage of a command, in which FLAG stands for all flags."""
    parts = [f"{parser.prog} [FLAG ...]"]
    for each in (action for action in parser._actions if not action.option_strings):
        part = f"{each.metavar} ..." if each.nargs == argparse.PARSER else str(each.metavar)
        parts.append(f"[{part}]" if each.nargs == "?" else part)
    return " ".join(parts)


def _is_no_action(line: Sequence[str]) -> bool:
    """Return whether every parser has the command."""
    with suppress(BadInput):
        _, left = _common().parse_known_args(line)
        known = {completion.COMMAND, *(command.name for command in (*QUESTIONS, CONFIG))}
        return next((word for word in left if not word.startswith("-")), "") in known
    return False


def _common() -> _Parser:
    """Return the flags that may stand before or after the command."""
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("server and output")
    for name, (metavar, text) in FLAGS.items():
        argument = group.add_argument(_flag(name), metavar=metavar, help=text)
        if name == "context":
            completion.completes(argument, "contexts")
    group.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        help=f"wait up to S seconds for a leader of several servers (default: {DEFAULT_TIMEOUT_S:g})",
    )
    group.add_argument("--json", action="store_true", help="write JSON, for scripts")
    return common


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


T = TypeVar("T")


def _read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return the type of an argument whose reader raises `ValueError` with one line for the user."""

    def type_(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return type_


_seconds, _node_counts = _read_by(seconds), _read_by(node_counts)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(words.command_line.not_whole(text))
    return int(text)


class _Size(argparse.Action):
    """Argument MIN:MAX, which sets two fields."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        namespace.min_nodes, namespace.max_nodes = values


class _Rank(argparse.Action):
    """Argument RANK after an optional RUN. A single word that is no number is the run, and the rank is None."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        try:
            namespace.rank = _whole(values)
        except argparse.ArgumentTypeError as error:
            if "run_id" in namespace or values.startswith("-"):
                raise argparse.ArgumentError(self, str(error)) from None
            namespace.run_id, namespace.rank = values, None


def _lines(text: str) -> int:
    if not 1 <= (lines := _whole(text)) <= MOST_LOG_LINES:
        raise argparse.ArgumentTypeError(words.command_line.not_within(MOST_LOG_LINES, text))
    return lines


def _run(parser: argparse.ArgumentParser, kind: str = "runs") -> None:
    """Add the argument RUN. `kind`: kind of names that the shell completes."""
    text = f"the run's id (default: the only {'ended' if kind == 'ended-runs' else 'active'} run)"
    completion.completes(parser.add_argument("run_id", metavar="RUN", nargs="?", help=text), kind)


def _action(action: "Action", parser: argparse.ArgumentParser) -> None:
    if action.of_node:
        node = parser.add_argument("node_id", metavar="NODE", help="the node's name, as rdzvctl nodes shows it")
        completion.completes(node, "cordoned-nodes" if action.of_absent else "nodes")
    else:
        _run(parser, "ended-runs" if action.of_ended else "live-runs")
    if "min_nodes" in action.fields:
        size = "the new limits of the run's number of nodes"
        parser.add_argument("size", metavar="MIN:MAX", type=_node_counts, action=_Size, help=size)
    for name, asked, is_time in ((each.name, each.asked, each.is_time) for each in action.inputs if each.asked.flag):
        metavar, read = ("TIME", _seconds) if is_time else ("N", _whole)
        parser.add_argument(asked.flag, dest=name, metavar=metavar, type=read, help=asked.help)
    shown_in = "the server's log shows" if action.of_ended else "the run's events and the server's log show"
    parser.add_argument("--reason", metavar="TEXT", help=f"say why; {shown_in} it")
    parser.add_argument("--request-id", metavar="ID", help="set the idempotency key: a second request with the same "
                        "key changes nothing (default: a new key)")  # fmt: skip
    if action.question:
        parser.add_argument(*YES, action="store_true", help="do not ask for confirmation on a terminal")


def _example(action: "Action") -> str:
    """Return an action's arguments in an example."""
    parts = ["node-7" if action.of_node else "r1"]
    parts += ["2:8"] if "min_nodes" in action.fields else []
    times = [each.asked.flag for each in action.inputs if each.is_time]
    return " ".join([*parts, *(f"{flag} 10m" for flag in times[:1])])


def _config(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(metavar="WHAT", required=True)
    for name, text, do in (
        ("get-contexts", "list the contexts and mark the current one", context_commands.get_contexts),
        ("current-context", "print the name of the current context", context_commands.current_context),
        ("use-context", "make this context the current one", context_commands.use_context),
        ("set-context", "add a context, or change the given fields of one", context_commands.set_context),
        ("delete-context", "delete a context", context_commands.delete_context),
    ):
        each = names.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", argument_default=argparse.SUPPRESS
        )
        each.add_argument("--json", action="store_true", help="write JSON, for scripts")
        if name in ("use-context", "set-context", "delete-context"):
            completion.completes(each.add_argument("name", metavar="NAME", help="the context"), "contexts")
        if name == "set-context":
            for field in FIELDS:
                each.add_argument(_flag(field), metavar=FLAGS[field][0], help=FLAGS[field][1].partition(" (RDZV")[0])
        each.usage = _usage(each)
        each.set_defaults(do=do)


def _choice(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the arguments that choose among all runs."""
    completion.completes(parser.add_argument("run_id", metavar="RUN", nargs="?", help=text), "runs")
    parser.add_argument(
        "--phase",
        metavar="PHASE",
        choices=PHASES,
        help=f"show only runs in this phase: {', '.join(PHASES)}",
    )
    parser.add_argument(
        "--health", metavar="STATE", choices=("trouble", *HEALTH), type=lambda text: re.sub("[- ]", "_", text),
        help="show only runs in this state of health, such as hung or looping; trouble: all runs that need a person",
    )  # fmt: skip
    parser.add_argument("--node", metavar="NODE", help="show only runs with a node of this name or pattern: 'gpu-1*'")


def _runs(parser: argparse.ArgumentParser) -> None:
    _choice(parser, "the run's id, or a pattern: 'eval-*' (default: all runs)")


def _status(parser: argparse.ArgumentParser) -> None:
    _choice(parser, "the run's id, to show its details, or a pattern: 'eval-*' (default: all runs)")
    parser.add_argument(
        "--watch", "-w", action="store_true", help="show the status again whenever it changes, until Ctrl-C"
    )


def _events(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="continue with new events, until Ctrl-C")
    parser.add_argument(
        "--last", metavar="N", type=_whole, help=f"show the latest N events (default: {MOST_EVENTS}; 0: all)"
    )


def _logs(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("rank", metavar="RANK", action=_Rank, help="the worker's rank")
    parser.add_argument("--lines", "-n", metavar="N", type=_lines, help=f"show the last N lines (default: {LOG_LINES})")
    parser.add_argument(
        "--stream",
        choices=LOG_STREAMS,
        metavar="STREAM",
        help="show only stdout or only stderr (default: both)",
    )
    parser.add_argument("--follow", "-f", action="store_true", help="continue with new lines, until the run has ended")


def _stacks(parser: argparse.ArgumentParser) -> None:
    _run(parser, "live-runs")
    parser.add_argument(
        "rank", metavar="RANK", nargs="?", type=_whole, default=None, help="one worker's rank (default: all)"
    )
    parser.add_argument("--reason", metavar="TEXT", help="record this reason, for people who look later")


def _bundle(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        help="write to this new file; -: to stdout (default: a name made of the run and the time)",
    )
    parser.add_argument(
        "--anonymize", action="store_true", help="replace names of runs, nodes, hosts, users, addresses and paths"
    )


def _write_bundle(session: Session) -> None:
    from rdzvctl.bundle import bundle  # imports what makes archives, too

    bundle(session)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command that shells run for completion. No help page lists it."""

    def do(session: Session) -> None:
        given = completion.flags_of(session.environment.get(completion.LINE, ""), _common())
        for name in completion.names(session.given["kind"], session.given["begun"], given, session.environment):
            session.out.line(name)

    parser.add_argument("kind", choices=completion.KINDS)
    parser.add_argument("begun", nargs="?", default="")
    parser.set_defaults(do=do)


QUESTIONS = (
    Command("status", "--watch", "show the server and its runs, or the details of one run", commands.status, _status),
    Command("runs", "--health trouble", "list the runs", commands.runs, _runs),
    Command("nodes", "r1", "list a run's nodes by group rank", commands.nodes, _run),
    Command("events", "r1 --follow", "show a run's past events, and new ones with --follow", commands.events, _events),
    Command("timeline", "r1", "show a run over time: its rounds, steps and events", commands.timeline, _run),
    Command(
        "logs",
        "r1 3 --follow",
        "show where a worker's output is, and its last lines if the agent has --allow-log-reads",
        commands.logs,
        _logs,
    ),
    Command("stacks", "r1 3", "show the current Python stacks of a run's workers", commands.stacks, _stacks),
    Command("why", "r1", "explain why a run is in its current state, and what to do", commands.why, _run),
    Command(
        "bundle",
        "r1 --anonymize",
        "write a file for a bug report about a run; replace the secrets that it recognizes",
        _write_bundle,
        _bundle,
    ),
)
"""Commands that change nothing."""
CONFIG = Command(
    "config", "use-context lab", "manage contexts: servers and tokens by name", lambda session: None, _config
)


def all_commands() -> Iterator[Command]:
    """Yield every command in the order of the help; actions in the order of their table."""
    from rdzv_protocol.actions import ACTIONS  # imports msgspec, too

    yield from QUESTIONS
    for action in ACTIONS:
        yield Command(
            action.name, _example(action), action.help, partial(commands.act, action), partial(_action, action)
        )
    yield CONFIG
