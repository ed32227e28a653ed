"""The command line of `rdzv-server`."""

import argparse
import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
from contextlib import AsyncExitStack

from rdzv_protocol.paths import STATUS

from rdzv_server.auth.reload import BadSecurity, Security, make_limits
from rdzv_server.flags import LEADER_LEASE_S, fail, make_parser
from rdzv_server.limits import Limits
from rdzv_server.server import HttpServer, RendezvousServer, adopt, bind, run_until
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd_address import EtcdPlace, join_address
from rdzv_server.storage.factory import make_store

log = logging.getLogger("rdzv_server")

COLLECT_AFTER = (10_000, 1_000, 10)
"""Many nodes are many objects that stay: to look through all of them as often as Python does takes a quarter of the
time, and up to a second at once. The youngest are looked through; else there is only what `Door` clears away."""
SWITCH_S = 0.5e-3
"""How long the event loop keeps the store's thread waiting, several times in each write. Python's own is 5 ms."""


def main() -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 crashed, 2 bad input."""
    args = make_parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s rdzv-server: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # noise about peers that do not speak HTTP
    try:
        security, limits = Security(args), make_limits(args)
    except BadSecurity as error:
        fail(str(error))
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)
    return asyncio.run(_serve(args, security, limits))


async def _serve(args: argparse.Namespace, security: Security, limits: Limits) -> int:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    listener, idle = _listener(args), list[str]()
    async with AsyncExitStack() as stack:
        try:
            server, place = _make_server(args, listener.getsockname()[1], security, limits)
            await stack.enter_async_context(server)
        except (StoreBroken, StoreUnavailable) as error:
            fail(str(error))
        await server.listen(listener, security.tls)
        if security.has_files:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, security.renew, server.renew)
        address, bound = listener.getsockname()[:2]
        log.info("listening on %s", reach(address, bound, is_tls=security.tls is not None))
        log.info("state in %s%s", place, _remembered(server))
        for level, note in security.notes(address):
            log.log(level, note)
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


def _make_server(
    args: argparse.Namespace, port: int, security: Security, limits: Limits
) -> tuple[HttpServer, str]:  # fmt: skip
    """The server, and where its state is, for a person. Raises `StoreBroken`."""
    if args.store is not None and args.store.startswith("etcd://"):
        return _make_one_of_several(args, port, security, limits)
    for name in ("advertise", "leader_lease", "shards", "etcd_ca", "etcd_cert", "etcd_key"):
        if getattr(args, name) is not None:
            fail(f"--{name.replace('_', '-')} is for one of several servers: with --store etcd://HOST,HOST,HOST")
    store, place = make_store(args.store, 0 if args.listen_fd is not None else args.port)
    server = RendezvousServer(
        store=store, retention_s=args.retention, max_runs=args.max_runs, access=security.access, limits=limits
    )
    return server, place


def _make_one_of_several(
    args: argparse.Namespace, port: int, security: Security, limits: Limits
) -> tuple[HttpServer, str]:  # fmt: skip
    if args.exit_when_idle is not None:
        fail("--exit-when-idle: not with --store etcd://, where several servers stand by for any run")
    if (args.etcd_cert is None) != (args.etcd_key is None):
        fail("--etcd-cert and --etcd-key belong together")
    place = EtcdPlace.parse(args.store)
    try:
        from rdzv_server.cluster.replica_server import FailoverServer
        from rdzv_server.storage.etcd_client import EtcdTls
    except ImportError as error:
        fail(f"--store etcd:// needs aetcd ({error}): pip install 'rdzv-server[etcd]'")
    address = args.advertise or join_address(_own_host(args) or place.own_address(), port)
    files = EtcdTls(args.etcd_ca, args.etcd_cert, args.etcd_key)
    server = FailoverServer(
        place,
        files if args.etcd_ca or args.etcd_cert else None,
        address=address,
        lease_s=args.leader_lease or LEADER_LEASE_S,
        shards=args.shards or 1,
        retention_s=args.retention,
        max_runs=args.max_runs,
        access=security.access,
        limits=limits,
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
    from rdzv_server.service.idle_shutdown import IdleWatch

    def idle(reason: str) -> None:
        if not stop.is_set():
            reasons.append(reason)
            stop.set()

    IdleWatch(server.rendezvous, limit_s, idle)


def reach(address: str, port: int, *, is_tls: bool = False) -> str:
    """Where the server listens, for people."""
    is_any = address in ("::", "0.0.0.0")
    host = "127.0.0.1" if is_any else f"[{address}]" if ":" in address else address
    url = f"{'https' if is_tls else 'http'}://{host}:{port}"
    return f"port {port} of every address (status here: {url}{STATUS})" if is_any else f"{url} (status: {STATUS})"


def _bind_error(host: str | None, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use on this machine: stop what uses it, or choose another with --port (0: a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 with --port"
    return f"cannot listen on {host or 'every address'}, port {port}: {error.strerror or error}"
