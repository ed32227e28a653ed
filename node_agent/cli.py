"""The command line of `node-agent`."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import protocol
from node_agent.config import AgentConfig
from node_agent.console import Console
from node_agent.core.command import Command
from node_agent.driver import Driver
from protocol.paths import DEFAULT_PORT
from protocol.settings import RequestedSettings

DESCRIPTION = """\
Runs this node's workers of a distributed PyTorch run: joins the run at a rendezvous server, is told its place, starts
the workers with torchrun's environment, and restarts them together with every other node's when one fails."""

EPILOG = f"""\
examples:
  node-agent --standalone --nproc 2 train.py --lr 0.1      this node alone, no server needed
  rdzv-server --port {DEFAULT_PORT}                                on one machine that every node reaches, then
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py          on each of two nodes
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 1:4 --max-restarts 3 train.py   elastic: 1 to 4 nodes

Settings of a run (--nnodes, --max-restarts, timeouts) must be the same on every node; a node may leave them out.
Exit codes: 0 the run succeeded; 1 it failed, or this agent was told to leave; 2 bad input, nothing was started."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (node-agent --help explains every flag)")


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"node-agent: error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="node-agent", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"node-agent {protocol.VERSION}")
    _add_run(parser.add_argument_group("the run"))
    _add_node(parser.add_argument_group("this node"))
    _add_failures(parser.add_argument_group("failures and membership, for the whole run"))
    what = parser.add_argument_group("what the workers execute")
    what.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with python -m")
    what.add_argument("--no-python", action="store_true", help="SCRIPT is a program, not a Python script")
    what.add_argument("script", metavar="SCRIPT", help="what each worker runs")
    what.add_argument("args", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _add_run(group: Any) -> None:
    group.add_argument("--endpoint", type=_endpoint, metavar="HOST:PORT", help="where rdzv-server listens")
    group.add_argument("--standalone", action="store_true", help="this node alone, with a server of its own")
    group.add_argument("--run-id", metavar="ID", help="names the run; agents with one id are one run (default: none)")
    group.add_argument(
        "--nnodes", type=_nnodes, metavar="N|MIN:MAX", help="nodes of the run (default: the run's, or 1)"
    )
    group.add_argument("--rerun", action="store_true", help="begin again a run that has already succeeded")
    group.add_argument("--token-file", metavar="FILE", help="bear the token in this file, as rdzv-server asks")
    group.add_argument(
        "--connect-timeout", type=_seconds, default=300.0, metavar="S",
        help="how long the server's first answer may take; it may start after the agents (default: %(default)g)",
    )  # fmt: skip


def _add_node(group: Any) -> None:
    group.add_argument(
        "--nproc", type=_whole(1, 4096), default=1, metavar="N", help="workers on this node (default: 1)"
    )
    group.add_argument("--node-id", metavar="NAME", help="this node's name (default: the host name)")
    group.add_argument("--node-rank", type=_whole(0, 10**7), metavar="R", help="ask for this group rank")
    group.add_argument("--local-addr", metavar="ADDR", help="where other nodes reach this one (default: the address "
                       "from which it reaches the server)")  # fmt: skip
    group.add_argument("--role", default="default", help="name of the workers' role (default: %(default)s)")
    group.add_argument(
        "--shutdown-timeout", type=_seconds, default=30.0, metavar="S",
        help="time that workers get between SIGTERM and SIGKILL (default: %(default)g)",
    )  # fmt: skip


def _add_failures(group: Any) -> None:
    group.add_argument("--max-restarts", type=_whole(0, 10**7), metavar="N", help="restarts after worker failures; "
                       "membership changes are free (default: 0)")  # fmt: skip
    group.add_argument("--fatal-exit-codes", type=_codes, metavar="N,N", help="exit codes that fail the run at once")
    group.add_argument("--join-timeout", type=_seconds, metavar="S", help="wait for MIN nodes (default: 600)")
    group.add_argument("--last-call-timeout", type=_seconds, metavar="S", help="wait for more after MIN (default: 30)")
    group.add_argument("--lease", type=_lease, metavar="S", help="silence after which a node is lost (default: 10)")
    group.add_argument("--disconnect-grace", type=_seconds, metavar="S", help="time to come back after the connection "
                       "closed (default: 1)")  # fmt: skip
    group.add_argument("--scale-up", choices=("immediate", "cooldown", "manual"), help="when an arrival restarts the "
                       "run (default: immediate)")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run the agent. Exit codes: see `--help`."""
    args = make_parser().parse_args(argv)
    config = make_config(args)
    if args.endpoint is None and not args.standalone:
        fail("--endpoint HOST:PORT is missing: where does rdzv-server listen? (--standalone needs none)")
    token = _read_token(args.token_file)
    try:
        return asyncio.run(_run(config, None if args.standalone else args.endpoint, token))
    except KeyboardInterrupt:  # before the signal handlers stood
        return 1


async def _run(config: AgentConfig, endpoint: tuple[str, int] | None, token: str | None) -> int:
    console = Console("node-agent", asyncio.get_running_loop())
    try:
        if endpoint is None:
            from node_agent.standalone import Standalone

            async with Standalone(console.say) as server:
                return await Driver(config, server.link, "localhost", console).run()
        from node_agent.client import HttpLink

        host, port = endpoint
        return await Driver(config, lambda: HttpLink(host, port, token), f"{host}:{port}", console).run()
    finally:
        console.close()


def make_config(args: argparse.Namespace) -> AgentConfig:
    """The checked command line. Ends the process with one line if it makes no sense."""
    min_nodes, max_nodes = (1, 1) if args.standalone else args.nnodes or (None, None)
    if args.standalone and args.nnodes not in (None, (1, 1)):
        fail("--standalone is for one node: leave --nnodes out, or start rdzv-server and give --endpoint")
    return AgentConfig(
        command=make_command(args.script, args.args, module=args.module, no_python=args.no_python),
        nproc=args.nproc,
        run_id=_name("--run-id", args.run_id, default=os.urandom(8).hex() if args.standalone else "none"),
        explicit_run_id=args.run_id is not None,
        rerun=args.rerun,
        node_id=_name("--node-id", args.node_id, default=os.uname().nodename),
        role=_name("--role", args.role, default="default"),
        node_rank=args.node_rank,
        local_addr=args.local_addr and _name("--local-addr", args.local_addr, default=""),
        settings=RequestedSettings(
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            max_restarts=args.max_restarts,
            join_timeout_s=args.join_timeout,
            last_call_timeout_s=args.last_call_timeout,
            lease_s=args.lease,
            disconnect_grace_s=args.disconnect_grace,
            scale_up=args.scale_up,
            fatal_exit_codes=args.fatal_exit_codes,
        ),
        shutdown_timeout_s=args.shutdown_timeout,
        connect_timeout_s=args.connect_timeout,
        environment=dict(os.environ),
    )


def make_command(script: str, args: Sequence[str], *, module: bool, no_python: bool) -> Command:
    """What a worker executes. Ends the process with one line if there is no such script or program."""
    if no_python:
        if module:
            fail("-m is for Python modules, --no-python for other programs: give one of them")
        return Command((_program(script),), tuple(args))
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    if module:
        return Command((python, "-u", "-m", script), tuple(args))
    if not os.path.isfile(script):
        fail(f"there is no script {script} (looked in {os.getcwd()})")
    return Command((python, "-u", script), tuple(args))


def _program(name: str) -> str:
    import shutil

    found = shutil.which(name)
    if found is None:
        fail(f"there is no program {name} (looked in PATH and {os.getcwd()})")
    return found


def _name(flag: str, value: str | None, default: str) -> str:
    value = default if value is None else value
    if not 1 <= len(value) <= 128 or not value.isprintable():
        fail(f"{flag}: 1 to 128 printable characters, not {value!r:.60}")
    return value


def _read_token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file {path}: {getattr(error, 'strerror', None) or error}")
    if not token or not token.isascii() or not token.isprintable():
        fail(f"--token-file {path}: put one line of printable ASCII into it")
    return token


# Argument types: each says what it takes.


def _endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        raise argparse.ArgumentTypeError(
            f"{text!r} has no port: give HOST:PORT, such as {text or 'HOST'}:{DEFAULT_PORT}"
        )
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def _nnodes(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        nodes = int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of nodes nor MIN:MAX") from None
    if nodes[0] > nodes[1]:
        raise argparse.ArgumentTypeError(f"{text}: MIN is above MAX; did you mean {high}:{low}?")
    if nodes[0] < 1 or nodes[1] > 100_000:
        raise argparse.ArgumentTypeError(f"{text}: from 1 to 100000 nodes")
    return nodes


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"a whole number from {low} to {high}, not {text!r}")
        return number

    return parse


def _seconds(text: str, low: float = 0, high: float = 10**6) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not low <= seconds <= high:
        raise argparse.ArgumentTypeError(f"a number of seconds from {low:g} to {high:g}, not {text!r}")
    return seconds


def _lease(text: str) -> float:
    return _seconds(text, low=0.1, high=86_400)


def _codes(text: str) -> tuple[int, ...]:
    return tuple(_whole(-255, 255)(part) for part in text.split(","))
