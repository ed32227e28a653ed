"""The command line of `rdzv-server`."""

import argparse
import asyncio
import errno
import logging
import signal
import sys
from typing import NoReturn

import protocol
from protocol.paths import DEFAULT_PORT, STATUS
from rdzv_server.server import RETENTION_S, RendezvousServer, bind, run_until

log = logging.getLogger("rdzv_server")

DESCRIPTION = """\
The rendezvous service for elastic PyTorch runs. It holds the membership rounds, admission and restart
counters of any number of runs. Start one where every node reaches it, then one node-agent on each node."""

EPILOG = f"""\
examples:
  rdzv-server                          listen on port {DEFAULT_PORT} of every address
  rdzv-server --host 127.0.0.1 --port 0   this machine only, on a free port (printed)
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py     on each node
  curl HOST:{DEFAULT_PORT}{STATUS}           every run, its nodes, who is missing and until when

Ctrl-C or SIGTERM stops it. Workers keep running; their agents try again until it is back."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (rdzv-server --help explains every flag)")


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"rdzv-server: error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rdzv-server", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", help="address to listen on (default: every address, IPv4 and IPv6)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="default: %(default)s; 0: a free one")
    parser.add_argument("--token-file", metavar="FILE", help="agents and operators must bear the token in this file")
    parser.add_argument(
        "--retention", type=_seconds, default=RETENTION_S, metavar="SECONDS",
        help="how long an ended run is remembered (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"rdzv-server {protocol.VERSION}")
    return parser


def main() -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 crashed, 2 bad input."""
    args = make_parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s rdzv-server: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # noise about peers that do not speak HTTP
    return asyncio.run(_serve(args.host, args.port, _read_token(args.token_file), args.retention))


async def _serve(host: str | None, port: int, token: str | None, retention_s: float) -> int:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    try:
        listener = bind(host, port)
    except OSError as error:
        fail(_bind_error(host, port, error))
    async with RendezvousServer(retention_s=retention_s, token=token) as server:
        await server.listen(listener)
        address, bound = listener.getsockname()[:2]
        log.info("listening on %s (status: %s)", url(address, bound), STATUS)
        if token is None and address not in ("127.0.0.1", "::1"):
            log.warning("no --token-file: everybody who reaches this port can join, watch and disturb runs")
        try:
            await run_until(server, stop)
        except Exception:
            log.exception("cannot go on; workers keep running, and their agents try again")
            return 1
        log.info("shutting down; workers keep running")
    return 0


def url(address: str, port: int) -> str:
    """The server's own address as a URL; a wildcard as the address that works on this machine."""
    address = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(address, address)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _bind_error(host: str | None, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use on this machine: stop what uses it, or choose another with --port (0: a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 with --port"
    return f"cannot listen on {host or 'every address'}, port {port}: {error.strerror or error}"


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


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65_535:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"a number of seconds, not {text!r}")
    return seconds
