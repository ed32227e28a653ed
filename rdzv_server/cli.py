"""The command line of `rdzv-server`: flags that fill a `ServerConfig`, and the server's life from there."""

import argparse
import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import NoReturn, TypeVar

import rdzv_protocol
from rdzv_protocol.paths import DEFAULT_PORT, STATUS

from rdzv_server.auth.reload import BadSecurity, Security
from rdzv_server.config import MOST_CONNECTIONS, ServerConfig
from rdzv_server.server import HttpServer, RendezvousServer, adopt, bind, run_until
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd_address import EtcdPlace, is_address, join_address
from rdzv_server.storage.factory import make_store

log = logging.getLogger("rdzv_server")

MOST_SHARDS = 256
OTHER_FILES = 128
"""What a server has open besides its agents' connections: the store, etcd, its own pipes; and room."""
FEW_CONNECTIONS = 512
"""Fewer are too few for a run of some size, and are said."""
FEWEST_FILES = 16
COLLECT_AFTER = (10_000, 1_000, 10)
"""Many nodes are many objects that stay: to look through all of them as often as Python does takes a quarter of the
time, and up to a second at once. The youngest are looked through; else there is only what the listener clears away."""
SWITCH_S = 0.5e-3
"""How long the event loop keeps the store's thread waiting, several times in each write. Python's own is 5 ms."""

DESCRIPTION = """\
The rendezvous service for elastic PyTorch runs. It holds the membership rounds, admission and restart
counters of any number of runs. Start one where every node reaches it, then one node-agent on each node."""

EPILOG = f"""\
examples:
  rdzv-server                          listen on port {DEFAULT_PORT} of every address
  rdzv-server --host 127.0.0.1 --port 0   this machine only, on a free port (printed)
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py     on each node
  curl HOST:{DEFAULT_PORT}{STATUS}           every run, its nodes, who is missing and until when
  rdzv-server --token-file agents --admin-token-file admins --tls-cert cert.pem --tls-key key.pem

Ctrl-C or SIGTERM stops it. Workers keep running; their agents try again until it is back."""


def main() -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 crashed, 2 bad input."""
    config = parse()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s rdzv-server: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # noise about peers that do not speak HTTP
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)
    try:
        return asyncio.run(_serve(_with_room(config), Security(config)))
    except (BadSecurity, StoreBroken, StoreUnavailable) as error:
        fail(str(error))


async def _serve(config: ServerConfig, security: Security) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    listener, idle = _listener(config), list[str]()
    async with AsyncExitStack() as stack:
        server, place = _make_server(config, listener.getsockname()[1], security)
        await stack.enter_async_context(server)
        await server.listen(listener, security.tls)
        if security.has_files:
            loop.add_signal_handler(signal.SIGHUP, security.renew, server.renew)
        address, port = listener.getsockname()[:2]
        log.info("listening on %s", reach(address, port, is_tls=security.tls is not None))
        log.info("state in %s%s", place, _remembered(server))
        if config.limits.connections < FEW_CONNECTIONS:
            log.warning(
                "room for %d connections, and an agent has two: %s", config.limits.connections, _why_few(config)
            )
        for level, note in security.notes(address):
            log.log(level, note)
        if config.exit_when_idle_s is not None and isinstance(server, RendezvousServer):
            _stop_when_idle(server, config.exit_when_idle_s, stop, idle)
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


def _make_server(config: ServerConfig, port: int, security: Security) -> tuple[HttpServer, str]:
    """The server, and where its state is, for a person. Raises `StoreBroken`."""
    if config.store is not None and config.store.startswith("etcd://"):
        return _make_one_of_several(config, port, security)
    for name in ("advertise", "leader_lease_s", "shards", "rebalance_after_s", "etcd_ca", "etcd_cert", "etcd_key"):
        if getattr(config, name) != getattr(ServerConfig(), name):
            flag = name.removesuffix("_s").replace("_", "-")
            fail(f"--{flag} is for one of several servers: with --store etcd://HOST,HOST,HOST")
    store, place = make_store(config.store, 0 if config.listen_fd is not None else config.port)
    server = RendezvousServer(
        store=store,
        retention_s=config.retention_s,
        max_runs=config.max_runs,
        access=security.access,
        limits=config.limits,
    )
    return server, place


def _make_one_of_several(config: ServerConfig, port: int, security: Security) -> tuple[HttpServer, str]:
    if config.exit_when_idle_s is not None:
        fail("--exit-when-idle: not with --store etcd://, where several servers stand by for any run")
    if (config.etcd_cert is None) != (config.etcd_key is None):
        fail("--etcd-cert and --etcd-key belong together")
    place = EtcdPlace.parse(config.store or "")
    try:
        from rdzv_server.cluster.sharding import ClusterServer
        from rdzv_server.storage.etcd_client import EtcdTls
    except ImportError as error:
        fail(f"--store etcd:// needs aetcd ({error}): pip install 'rdzv-server[etcd]'")
    address = config.advertise or join_address(_own_host(config) or place.own_address(), port)
    files = EtcdTls(config.etcd_ca, config.etcd_cert, config.etcd_key)
    tls = files if config.etcd_ca or config.etcd_cert else None
    server = ClusterServer(place, tls, address, config, security.access)
    return server, f"etcd ({', '.join(place.members)}) below {place.prefix}; agents reach this server at {address}"


def _own_host(config: ServerConfig) -> str | None:
    """The host that this server was told to listen on, if that is one address."""
    return None if config.listen_fd is not None or config.host in (None, "", "0.0.0.0", "::") else config.host


def _remembered(server: HttpServer) -> str:
    runs = [run.run_id for run in server.service.runs() if not run.stage.is_end]
    return f"; goes on with {len(runs)} run{'s' * (len(runs) != 1)}" if runs else ""


def _stop_when_idle(server: RendezvousServer, limit_s: float, stop: asyncio.Event, reasons: list[str]) -> None:
    from rdzv_server.service.idle_shutdown import IdleWatch

    def idle(reason: str) -> None:
        if not stop.is_set():
            reasons.append(reason)
            stop.set()

    IdleWatch(server.rendezvous, limit_s, idle)


# Sockets and files.


def _listener(config: ServerConfig) -> socket.socket:
    try:
        return bind(config.host, config.port) if config.listen_fd is None else adopt(config.listen_fd)
    except OSError as error:
        if config.listen_fd is not None:
            fail(f"--listen-fd {config.listen_fd}: {error.strerror or error}")
        fail(_bind_error(config.host, config.port, error))


def _bind_error(host: str | None, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use on this machine: stop what uses it, or choose another with --port (0: a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 with --port"
    return f"cannot listen on {host or 'every address'}, port {port}: {error.strerror or error}"


def reach(address: str, port: int, *, is_tls: bool = False) -> str:
    """Where the server listens, for people."""
    is_any = address in ("::", "0.0.0.0")
    host = "127.0.0.1" if is_any else f"[{address}]" if ":" in address else address
    url = f"{'https' if is_tls else 'http'}://{host}:{port}"
    return f"port {port} of every address (status here: {url}{STATUS})" if is_any else f"{url} (status: {STATUS})"


def _with_room(config: ServerConfig) -> ServerConfig:
    """The same with as many connections as are asked for, or as this process may have. Raises `BadSecurity`."""
    most, asked = _file_limit(), config.max_connections
    if most < FEWEST_FILES:
        fail(f"this process may have {most} files open, too few to serve: raise its limit (ulimit -Hn, LimitNOFILE=)")
    room = most - min(OTHER_FILES, most // 2)
    if asked is not None and asked > room:
        raise BadSecurity(
            f"--max-connections {asked}: this process may have {most} files open, and needs {most - room} besides; "
            "raise its hard limit (ulimit -Hn, LimitNOFILE=)"
        )
    connections = asked or max(1, min(room, MOST_CONNECTIONS))
    return replace(config, limits=replace(config.limits, connections=connections))


def _why_few(config: ServerConfig) -> str:
    if config.max_connections is not None:
        return "see --max-connections"
    return f"this process may have {_file_limit()} files open (ulimit -Hn, LimitNOFILE=)"


def _file_limit() -> int:
    """How many files this process may have open, once its soft limit is as high as its hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


# Flags. Each one's destination is a field of `ServerConfig`, which has its default.


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (rdzv-server --help explains every flag)")


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"rdzv-server: error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def parse(argv: list[str] | None = None) -> ServerConfig:
    """The settings that a command line asks for; ends the process with exit code 2 if it is a mistake."""
    asked = vars(make_parser().parse_args(argv))
    return ServerConfig(**{**asked, "allow_host": tuple(asked["allow_host"]), "limits": ServerConfig().limits})


Number = TypeVar("Number", int, float)


def _number(kind: Callable[[str], Number], low: float, high: float, what: str) -> Callable[[str], Number]:
    """A reader of numbers within these bounds. `what` they are, for people."""

    def read(text: str) -> Number:
        try:
            number = kind(text) if text.isascii() else kind("")
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{what}, not {text!r}")
        return number

    return read


def _address(text: str) -> str:
    if is_address(text):
        return text
    raise argparse.ArgumentTypeError(f"HOST:PORT, not {text!r}")


_seconds = _number(float, 0, 1e9, "a number of seconds")
_count = _number(int, 1, 10_000_000, "a number from 1 to 10000000")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rdzv-server", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    port = _number(int, 0, 65_535, "a port is a number from 0 to 65535")
    add("--host", help="address to listen on (default: every address, IPv4 and IPv6)")
    add("--port", type=port, help="default: %(default)s; 0: a free one")
    add(
        "--retention", dest="retention_s", type=_seconds, metavar="SECONDS",
        help="how long an ended run is remembered (default: %(default)g)",
    )  # fmt: skip
    add(
        "--store", metavar="WHERE",
        help="where runs are written down, so that a restart of the server disturbs nobody: sqlite:PATH, or memory "
        "(default: a file for this port in the user's state folder; memory with --port 0); or "
        "etcd://HOST,HOST,HOST/CLUSTER for several servers, of which one leads and another takes over",
    )  # fmt: skip
    add(
        "--exit-when-idle", dest="exit_when_idle_s", type=_seconds, metavar="SECONDS",
        help="exit by itself: at once when every run is over and every agent has heard so, or when no agent has been "
        "connected for this long (default: serve for ever)",
    )  # fmt: skip
    add(
        "--listen-fd", type=_number(int, 0, 2**31, "the number of a file descriptor"), metavar="N",
        help="serve on this socket, which the parent process has bound and listens on, instead of --host and --port",
    )  # fmt: skip
    add("--version", action="version", version=f"rdzv-server {rdzv_protocol.VERSION}")
    _add_security(parser.add_argument_group("security (docs/security.md); SIGHUP has these files read again"))
    _add_failover(parser.add_argument_group("one of several servers: --store etcd://HOST,HOST,HOST/CLUSTER"))
    parser.set_defaults(**{**asdict(ServerConfig()), "allow_host": []})
    return parser


def _add_security(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--token-file", metavar="FILE",
        help="agents must bear a token of this file: one on each line, or TOKEN RUN_ID_PATTERN for such runs alone, as "
        "in 'r4nd0m team-a-*' (default: everybody who reaches the port may join, watch and disturb runs)",
    )  # fmt: skip
    add("--read-token-file", metavar="FILE", help="tokens of those who only look")
    add(
        "--admin-token-file", metavar="FILE",
        help="tokens of those who act on runs, and may do all the rest (without any token: from this machine alone)",
    )  # fmt: skip
    add("--tls-cert", metavar="FILE", help="speak TLS alone, and show this certificate (PEM, a chain)")
    add("--tls-key", metavar="FILE", help="its key (PEM, not encrypted)")
    add(
        "--tls-client-ca", metavar="FILE",
        help="let in only those whose certificate one of these authorities vouches for (PEM)",
    )  # fmt: skip
    add(
        "--allow-host", action="append", metavar="NAME",
        help="a name by which browsers may ask for the status where no tokens are set, besides this machine's, its "
        "addresses and what agents call it; may be repeated",
    )  # fmt: skip
    add(
        "--max-connections", type=_count, metavar="N",
        help=f"beyond it, new ones are closed; an agent has two (default: as many as this process may have files open, "
        f"at most {MOST_CONNECTIONS})",
    )  # fmt: skip
    add(
        "--max-runs", type=_count, metavar="N",
        help="beyond it, no new run begins; ended ones count until they are forgotten (default: %(default)s)",
    )  # fmt: skip


def _add_failover(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--advertise", type=_address, metavar="HOST:PORT",
        help="where agents reach this server, as the others tell them (default: --host, or this machine's address on "
        "its way to etcd; and --port)",
    )  # fmt: skip
    add(
        "--leader-lease", dest="leader_lease_s", metavar="SECONDS",
        type=_number(int, 1, 3_600, "a whole number of seconds from 1 to 3600"),
        help="how long a leader that is gone is waited for (default: %(default)s)",
    )  # fmt: skip
    add(
        "--shards", type=_number(int, 1, MOST_SHARDS, f"a number from 1 to {MOST_SHARDS}"), metavar="N",
        help="share the runs in so many parts, which the servers lead evenly; fixed for the life of a cluster "
        "(default: %(default)s, one server leads all runs)",
    )  # fmt: skip
    add(
        "--rebalance-after", dest="rebalance_after_s", type=_seconds, metavar="SECONDS",
        help="with shards: how long this server must have been there before others leave it its part "
        "(default: %(default)g)",
    )  # fmt: skip
    add("--etcd-ca", metavar="FILE", help="speak TLS to etcd, and trust these certificates (PEM)")
    add("--etcd-cert", metavar="FILE", help="this server's certificate for etcd (PEM)")
    add("--etcd-key", metavar="FILE", help="its key (PEM)")
