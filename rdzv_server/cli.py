"""The command line of `rdzv-server`."""

import argparse
import asyncio
import errno
import logging
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import NoReturn

import protocol
from protocol.paths import DEFAULT_PORT, STATUS
from rdzv_server.etcd_place import EtcdPlace, is_address, join_address
from rdzv_server.server import RETENTION_S, HttpServer, RendezvousServer, adopt, bind, run_until
from rdzv_server.store import StoreBroken, StoreUnavailable
from rdzv_server.stores import make_store

log = logging.getLogger("rdzv_server")

LEADER_LEASE_S = 5

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
    parser.add_argument(
        "--store", metavar="WHERE",
        help="where runs are written down, so that a restart of the server disturbs nobody: sqlite:PATH, or memory "
        "(default: a file for this port in the user's state folder; memory with --port 0); or "
        "etcd://HOST,HOST,HOST/CLUSTER for several servers, of which one leads and another takes over",
    )  # fmt: skip
    parser.add_argument(
        "--exit-when-idle", type=_seconds, metavar="SECONDS",
        help="exit by itself: at once when every run is over and every agent has heard so, or when no agent has been "
        "connected for this long (default: serve for ever)",
    )  # fmt: skip
    parser.add_argument(
        "--listen-fd", type=_descriptor, metavar="N",
        help="serve on this socket, which the parent process has bound and listens on, instead of --host and --port",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"rdzv-server {protocol.VERSION}")
    _add_failover(parser.add_argument_group("one of several servers: --store etcd://HOST,HOST,HOST/CLUSTER"))
    return parser


def _add_failover(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--advertise", type=_address, metavar="HOST:PORT",
        help="where agents reach this server, as the others tell them (default: --host, or this machine's address on "
        "its way to etcd; and --port)",
    )  # fmt: skip
    group.add_argument(
        "--leader-lease", type=_lease, metavar="SECONDS",
        help=f"how long a leader that is gone is waited for (default: {LEADER_LEASE_S})",
    )  # fmt: skip
    group.add_argument("--etcd-ca", metavar="FILE", help="speak TLS to etcd, and trust these certificates (PEM)")
    group.add_argument("--etcd-cert", metavar="FILE", help="this server's certificate for etcd (PEM)")
    group.add_argument("--etcd-key", metavar="FILE", help="its key (PEM)")


def main() -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 crashed, 2 bad input."""
    args = make_parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s rdzv-server: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # noise about peers that do not speak HTTP
    return asyncio.run(_serve(args, _read_token(args.token_file)))


async def _serve(args: argparse.Namespace, token: str | None) -> int:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    listener, idle = _listener(args), list[str]()
    async with AsyncExitStack() as stack:
        try:
            server, place = _make_server(args, listener.getsockname()[1], token)
            await stack.enter_async_context(server)
        except (StoreBroken, StoreUnavailable) as error:
            fail(str(error))
        await server.listen(listener)
        address, bound = listener.getsockname()[:2]
        log.info("listening on %s (status: %s)", url(address, bound), STATUS)
        log.info("state in %s%s", place, _remembered(server))
        if token is None and address not in ("127.0.0.1", "::1"):
            log.warning("no --token-file: everybody who reaches this port can join, watch and disturb runs")
        if args.exit_when_idle is not None and isinstance(server, RendezvousServer):
            _stop_when_idle(server, args.exit_when_idle, stop, idle)
        try:
            await run_until(server, stop)
        except StoreBroken as error:
            log.error("cannot go on; workers keep running, and their agents try again: %s", error)
            return 1
        except Exception:
            log.exception("cannot go on; workers keep running, and their agents try again")
            return 1
        log.info("shutting down; %s", idle[0] if idle else "workers keep running")
    return 0


def _make_server(args: argparse.Namespace, port: int, token: str | None) -> tuple[HttpServer, str]:
    """The server, and where its state is, for a person. Raises `StoreBroken`."""
    if args.store is not None and args.store.startswith("etcd://"):
        return _make_one_of_several(args, port, token)
    for name in ("advertise", "leader_lease", "etcd_ca", "etcd_cert", "etcd_key"):
        if getattr(args, name) is not None:
            fail(f"--{name.replace('_', '-')} is for one of several servers: with --store etcd://HOST,HOST,HOST")
    store, place = make_store(args.store, 0 if args.listen_fd is not None else args.port)
    return RendezvousServer(store=store, retention_s=args.retention, token=token), place


def _make_one_of_several(args: argparse.Namespace, port: int, token: str | None) -> tuple[HttpServer, str]:
    if args.exit_when_idle is not None:
        fail("--exit-when-idle: not with --store etcd://, where several servers stand by for any run")
    if (args.etcd_cert is None) != (args.etcd_key is None):
        fail("--etcd-cert and --etcd-key belong together")
    place = EtcdPlace.parse(args.store)
    try:
        from rdzv_server.etcd_client import EtcdTls
        from rdzv_server.failover_server import FailoverServer
    except ImportError as error:
        fail(f"--store etcd:// needs aetcd ({error}): pip install 'rdzv-server[etcd]'")
    address = args.advertise or join_address(_own_host(args) or place.own_address(), port)
    files = EtcdTls(args.etcd_ca, args.etcd_cert, args.etcd_key)
    server = FailoverServer(
        place,
        files if args.etcd_ca or args.etcd_cert else None,
        address=address,
        lease_s=args.leader_lease or LEADER_LEASE_S,
        retention_s=args.retention,
        token=token,
    )
    return server, f"etcd ({', '.join(place.members)}) below {place.prefix}; agents reach this server at {address}"


def _own_host(args: argparse.Namespace) -> str | None:
    """The host that this server was told to listen on, if that is one address."""
    return None if args.listen_fd is not None or args.host in (None, "", "0.0.0.0", "::") else str(args.host)


def _remembered(server: HttpServer) -> str:
    runs = [run.run_id for run in server.service.runs() if not run.stage.is_end]
    return f"; goes on with {len(runs)} run{'s' * (len(runs) != 1)}" if runs else ""


def _listener(args: argparse.Namespace) -> socket.socket:
    try:
        return bind(args.host, args.port) if args.listen_fd is None else adopt(args.listen_fd)
    except OSError as error:
        if args.listen_fd is not None:
            fail(f"--listen-fd {args.listen_fd}: {error.strerror or error}")
        fail(_bind_error(args.host, args.port, error))


def _stop_when_idle(server: RendezvousServer, limit_s: float, stop: asyncio.Event, reasons: list[str]) -> None:
    from rdzv_server.idle import IdleWatch

    def idle(reason: str) -> None:
        if not stop.is_set():
            reasons.append(reason)
            stop.set()

    IdleWatch(server.rendezvous, limit_s, idle)


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


def _address(text: str) -> str:
    if is_address(text):
        return text
    raise argparse.ArgumentTypeError(f"HOST:PORT, not {text!r}")


def _lease(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 3_600:
        return int(text)
    raise argparse.ArgumentTypeError(f"a whole number of seconds from 1 to 3600, not {text!r}")


def _descriptor(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"the number of a file descriptor, not {text!r}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"a number of seconds, not {text!r}")
    return seconds
