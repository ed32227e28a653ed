"""Command line of `rdzv-server`: parses the flags into a `ServerConfig`, and runs the server until it ends."""

import argparse
import asyncio
import errno
import gc
import logging
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import fields, replace
from functools import partial
from http import HTTPStatus
from typing import NoReturn

from rdzv_protocol import hung_disks, inherited, late_signals
from rdzv_protocol.certificates import BadCertificate
from rdzv_protocol.completion import add_print_completion
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.flag_values import address as address_of
from rdzv_protocol.help_pages import add_help, add_version
from rdzv_protocol.log_lines import Context, LineFormat, complaint, lowest_level
from rdzv_protocol.paths import DEFAULT_PORT, HEALTHZ, STATUS
from rdzv_protocol.service_manager import FIRST_PASSED, ServiceManager, passed_sockets
from rdzv_protocol.settings import flag_of
from rdzv_protocol.text import printable
from rdzv_protocol.words import flags as flag_words

from rdzv_server.auth.reload import BadTokenFile, Security
from rdzv_server.config import CLUSTER, LISTEN, MOST_CONNECTIONS, OTHER_FILES, RUNS, WATCH, Limits, ServerConfig
from rdzv_server.http.aiohttp_version import WrongAiohttp
from rdzv_server.http.exports import BadExport, Exports
from rdzv_server.http.garbage_collection import COLLECT_AFTER
from rdzv_server.log_output import LogOutput
from rdzv_server.server import HttpServer, RendezvousServer, adopt, bind, import_http, import_late
from rdzv_server.service.stand_by import StandBy
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.store_location import EtcdLocation, make_store
from rdzv_server.tasks import first_of
from rdzv_server.threads import Loop
from rdzv_server.words import auth as auth_words
from rdzv_server.words import startup as words

log = logging.getLogger("rdzv_server")

FEW_CONNECTIONS = 512
"""Number of connections below which the server warns that they are too few for a larger run."""
FEWEST_FILES = 16
STOPS = (signal.SIGINT, signal.SIGTERM)
PROBE_S = 4.0
"""Seconds within which a healthy server answers `--probe`."""
STOP_S = 10.0
"""Seconds that a stopping server asks its service manager for."""
SWITCH_S = 0.5e-3
"""Seconds for which the event loop may keep the store's thread waiting, several times a write. Python has 5 ms."""

DESCRIPTION = """\
Serves the rendezvous of any number of elastic PyTorch runs: the server decides which nodes take part in a round,
and counts restarts. Start one server where every node reaches it, then one node-agent on each node."""

FIRST_DAY = {
    LISTEN: ("host", "port", "allow_host"),
    RUNS: ("store", "retention_s", "exit_when_idle_s", "advertise"),
    "exclude bad nodes": ("exclude_after", "on_exclude"),
    "protect the server": ("token_file", "read_token_file", "admin_token_file", "tls_cert", "tls_key"),
    WATCH: ("log_format", "event_log", "webhook", "probe"),
}
"""Flags that --help shows, by task."""

_EXAMPLES = f"""\
examples:
  rdzv-server                             listen on port {DEFAULT_PORT} of every address
  rdzv-server --host 127.0.0.1 --port 0   listen on this machine only, on a free port, which the server prints
  rdzv-server --token-file agents --admin-token-file admins --tls-cert cert.pem --tls-key key.pem"""

FIRST_DAYS_EXAMPLES = f"""\
{_EXAMPLES}

All flags and exit codes: rdzv-server --help-all"""

EPILOG = f"""\
{_EXAMPLES}
  node-agent --endpoint HOST:{DEFAULT_PORT} --nnodes 2 --nproc 8 train.py     join a run, on each node
  curl HOST:{DEFAULT_PORT}{STATUS}              show every run, its nodes, and which nodes are missing until when

Exit codes: 0 stopped; 1 the server cannot continue; 2 bad input; 75 the store fails, start the server again.
Ctrl-C or SIGTERM stops the server. Workers continue, and their agents retry until a server is back."""


def main() -> int:
    """Parse the command line and serve. Return the exit code.

    With `--exit-when-idle` it is FAILED also if a run has not succeeded. A stand-by server returns START_AGAIN if no
    round has begun on it. It also does if an earlier server is back and a run has not ended.
    """
    inherited.correct()  # for the exit codes of --on-exclude's commands, among others
    signal.signal(signal.SIGUSR1, lambda *_: None)  # a scheduler sends it to all processes of a job before its end
    hung_disks.begin("rdzv-server", lambda: sys.argv[1:])
    config = _activated(parse())
    output = _open_log(is_json=config.log_format == "json")
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)
    try:
        with closing(output), asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(_run(config, output))
    except (BadTokenFile, BadCertificate, BadExport, StoreBroken, WrongAiohttp) as error:
        fail(str(error))
    except StoreUnavailable as error:
        fail(str(error), ExitCode.START_AGAIN)


def _open_log(*, is_json: bool) -> LogOutput:
    """Write log records to stderr, at the level that `LOGLEVEL` names and above. Return their output."""
    bad_level = ""
    try:
        lines = LineFormat("rdzv-server", is_json, lowest_level(os.environ))
    except ValueError as error:
        lines, bad_level = LineFormat("rdzv-server", is_json), str(error)
    output = LogOutput()
    output.setFormatter(LineFormatter(lines))
    logging.basicConfig(level=lines.lowest, handlers=[output])
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # noise about peers that do not speak HTTP
    if bad_level:
        log.warning(bad_level)
    return output


class LineFormatter(logging.Formatter):
    """Formatter of log records in the format of `lines`.

    Each message becomes one printable line, even if a request's text in it contains line ends. If a record has the
    attribute `about`, that is its `Context`.
    """

    def __init__(self, lines: LineFormat) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        context = Context()
        context.update(getattr(record, "about", Context()))
        if record.exc_info:
            context["traceback"] = "\n".join(map(printable, self.formatException(record.exc_info).split("\n")))
        message = printable(record.getMessage())
        return self._lines.line(message, record.levelno, record.created, context, shows_level=True)


async def _run(config: ServerConfig, output: LogOutput) -> int:
    """Serve. Return the exit code, which later signals do not change."""
    try:
        security = Security(config)
        return await _serve(config, _limits(config), security, ServiceManager.of(os.environ), output)
    finally:
        late_signals.ignore((*STOPS, signal.SIGHUP), asyncio.get_running_loop().remove_signal_handler)


async def _serve(
    config: ServerConfig, limits: Limits, security: Security, manager: ServiceManager | None, output: LogOutput
) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()
    watch = None

    def stop(reason: str) -> None:
        if not stopped.done():
            stopped.set_result(reason)

    for signum in STOPS:
        loop.add_signal_handler(signum, stop, words.STOPPED)
    stand_by = StandBy(config.stand_by_for, config.take_over_after_s) if config.stand_by_for else None
    if stand_by and not await _takes_over(config, stand_by, stopped, stop):
        return ExitCode.START_AGAIN
    listener = _listener(config)
    import_http()  # takes long: meanwhile agents may connect
    server, place = _make_server(config, listener.getsockname()[1])
    exports = Exports(config, server.service, listener.getsockname()[1])
    hung_disks.end()

    asked, asked_for_etcd = asyncio.Event(), asyncio.Event()

    def ask_to_renew() -> None:
        asked.set()
        asked_for_etcd.set()

    async def renew() -> None:
        await asyncio.gather(security.renew(server.renew), exports.renew())

    async def renew_for_etcd() -> None:
        """Apart from the other files, since it waits until etcd answers."""
        await security.renew_for_etcd(server.renew_for_store)

    async with exports, AsyncExitStack() as stack:
        await first_of(stack.enter_async_context(server), asyncio.shield(stopped))
        if stopped.done():
            log.info(words.shuts_down(stopped.result()))
            return _code_before_serving(config)
        output.begin()
        await server.listen(listener, security.tls, security.access, limits, expiries=security.expiries)
        if security.has_files or exports.has_files:
            loop.add_signal_handler(signal.SIGHUP, ask_to_renew)
        import_late()
        _collect_garbage_from_now()
        address, port = listener.getsockname()[:2]
        log.info(_listens(address, port, is_tls=security.tls is not None))
        log.info(words.state_in(place, _count_of_runs(server)))
        if manager:
            manager.ready()
            manager.watch(loop.call_later, partial(_status, server))
        _warn(config, limits, security, address)
        if config.exit_when_idle_s is not None and isinstance(server, RendezvousServer):
            from rdzv_server.service.idle_shutdown import IdleWatch

            watch = IdleWatch(server.rendezvous, config.exit_when_idle_s, stop)
        try:
            steps_back = [_steps_back(stand_by, port, stop)] if stand_by else []
            renewals = [_renews(asked, renew), _renews(asked_for_etcd, renew_for_etcd)]
            watches = [*renewals, security.watch_certificates()]
            await first_of(server.crashed(), stopped, *watches, *steps_back)
            log.info(words.shuts_down(stopped.result()))
            if manager:
                manager.stopping(STOP_S)
        except StoreBroken as error:
            log.error(words.cannot_continue(str(error)))
            return ExitCode.FAILED
        except Exception:
            log.exception(words.CANNOT_CONTINUE)
            return ExitCode.FAILED
        if stand_by:
            never_ran = all(run.membership is None for run in server.service.runs())
            if never_ran or (stand_by.is_back and not (watch and watch.has_verdict)):
                return ExitCode.START_AGAIN
        return ExitCode.SUCCEEDED if watch is None or watch.has_succeeded else ExitCode.FAILED


def _warn(config: ServerConfig, limits: Limits, security: Security, address: str) -> None:
    """Log what an operator should know about how this server was started."""
    if limits.connections < FEW_CONNECTIONS:
        most_files = _file_limit() if config.max_connections is None else None
        log.warning(words.few_connections(limits.connections, most_files))
    for level, note in security.notes(address):
        log.log(level, note)


def _code_before_serving(config: ServerConfig) -> ExitCode:
    """Return the exit code of a server that is stopped before it serves: it knows of no run that has succeeded."""
    if config.stand_by_for:
        return ExitCode.START_AGAIN
    return ExitCode.SUCCEEDED if config.exit_when_idle_s is None else ExitCode.FAILED


async def _takes_over(
    config: ServerConfig, stand_by: StandBy, stopped: asyncio.Future[str], stop: Callable[[str], None]
) -> bool:
    """Wait until this server has to serve, or is stopped, also by SIGUSR2. Return whether it has to serve."""
    earlier = [address_of(*server) for server in config.stand_by_for]
    log.info(words.stands_by(earlier))
    import_http()
    _collect_garbage_from_now()
    wake = asyncio.get_running_loop().call_soon_threadsafe
    signal.signal(signal.SIGUSR2, lambda *_: wake(stop, words.STOPPED))
    await first_of(stand_by.all_gone(lambda server: log.info(words.serves(server))), asyncio.shield(stopped))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # while it serves, and until the process has ended
    if not stopped.done():
        log.warning(words.takes_over(earlier))
    return not stopped.done()


def _collect_garbage_from_now() -> None:
    """Let Python collect garbage again, but not examine what was imported. To collect now would keep agents waiting."""
    gc.freeze()
    gc.enable()


async def _steps_back(stand_by: StandBy, port: int, stop: Callable[[str], None]) -> None:
    """Stop serving when an earlier server is back."""
    stop(words.steps_back(await stand_by.any_back(port)))


async def _renews(asked: asyncio.Event, renew: Callable[[], Awaitable[None]]) -> None:
    """Read the files again each time that SIGHUP asks for it, forever."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            await renew()
        except Exception:
            log.exception(auth_words.RENEWAL_FAILED)


def _make_server(config: ServerConfig, port: int) -> tuple[HttpServer, str]:
    """Make the server. Return it, and a phrase that says where its state is. Raises `StoreBroken`."""
    if not config.is_one_of_several:
        store, where = make_store(config.store, config.port)
        server = RendezvousServer(
            store=store, retention_s=config.retention_s, max_runs=config.max_runs, max_agents=config.max_agents,
            max_events=config.max_events, exclusion=config.exclusion,
        )  # fmt: skip
        return server, where
    place = EtcdLocation.parse(config.store or "")
    try:
        from rdzv_server.cluster.sharding import ClusterServer
    except ImportError as error:
        fail(words.needs_aetcd(str(error)))
    address = config.advertise or address_of(_own_host(config) or place.own_address(), port)
    return ClusterServer(place, address, config), words.etcd_place(place.members, place.prefix, address)


def _own_host(config: ServerConfig) -> str | None:
    """Return the host to listen on if the settings name one address, else None."""
    return None if config.listen_fd is not None or config.host in (None, "", "0.0.0.0", "::") else config.host


def _status(server: HttpServer) -> str:
    """Return the status of the server in one line, for its service manager."""
    return server.service.state().unhealthy_reason or words.status(_count_of_runs(server))


def _count_of_runs(server: HttpServer) -> int:
    """Return the number of runs that have not ended."""
    return sum(not run.stage.is_end for run in server.service.runs())


# Sockets and files.


def _activated(config: ServerConfig) -> ServerConfig:
    """Return the settings with the socket from a service manager, if there is one. Ends the process if there are
    several.

    The manager keeps the socket open, and new connections wait there, while one server ends and the next one starts.
    The socket's port identifies the server's state.
    """
    passed = passed_sockets(os.environ)
    if passed > 1:
        fail(words.too_many_sockets(passed))
    return config if passed == 0 or config.listen_fd is not None else _with_passed(config)


def _with_passed(config: ServerConfig) -> ServerConfig:
    try:
        passed = socket.socket(fileno=FIRST_PASSED)
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        fail(words.no_passed_socket(FIRST_PASSED, error.strerror))
    if passed.family not in (socket.AF_INET, socket.AF_INET6) or not is_listening:
        fail(words.PASSED_NO_LISTENER)
    return replace(config, port=passed.getsockname()[1], listen_fd=passed.detach())


def _listener(config: ServerConfig) -> socket.socket:
    try:
        return bind(config.host, config.port) if config.listen_fd is None else adopt(config.listen_fd)
    except OSError as error:
        if config.listen_fd is not None:
            fail(words.bad_listen_fd(config.listen_fd, error.strerror or str(error)))
        fail(_bind_error(config.host, config.port, error))


def _bind_error(host: str | None, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return words.port_in_use(port)
    if error.errno == errno.EACCES:
        return words.port_needs_privileges(port)
    number = error.errno or 0  # negative if the name is at fault
    return words.cannot_listen(host, port, os.strerror(number) if number > 0 else error.strerror or str(error))


def _listens(address: str, port: int, *, is_tls: bool) -> str:
    is_any = address in ("::", "0.0.0.0")
    url = f"{'https' if is_tls else 'http'}://{address_of('127.0.0.1' if is_any else address, port)}"
    return words.listens_everywhere(port, url) if is_any else words.listens_at(url)


def _limits(config: ServerConfig) -> Limits:
    """Return limits with `--max-connections`, or as many connections as the limit of open files allows.

    Ends the process with a message if that limit is too low to serve, or lower than `--max-connections`.
    """
    most, asked = _file_limit(), config.max_connections
    if most < FEWEST_FILES:
        fail(words.too_few_files(most))
    room = most - min(OTHER_FILES, most // 2)
    if asked is not None and asked > room:
        fail(words.too_few_files_for(asked, most, most - room))
    return Limits(connections=asked or min(room, MOST_CONNECTIONS), listed_runs=config.metrics_per_run)


def _file_limit() -> int:
    """Return the number of files that this process may have open, after raising its soft limit to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _probe(config: ServerConfig) -> int:
    """Probe a server for a container's HEALTHCHECK. Return 0 if it answers, even if only that it speaks TLS; else 1."""
    from http.client import HTTPConnection, HTTPException

    host = {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host) or "127.0.0.1"
    connection = HTTPConnection(host, config.port, timeout=PROBE_S)
    try:
        connection.request("GET", HEALTHZ)
        return int(connection.getresponse().status >= HTTPStatus.INTERNAL_SERVER_ERROR)
    except (OSError, HTTPException) as error:
        print(words.nothing_answers(host, config.port, str(getattr(error, "strerror", None) or error)), file=sys.stderr)  # noqa: T201
        return 1
    finally:
        connection.close()


# Flags.


OF_THE_AGENT = (
    *("--disconnect-grace", "--endpoint", "--join-timeout", "--last-call-timeout", "--lease", "--max-restarts"),
    *("--nnodes", "--node-id", "--nproc", "--nproc-per-node", "--rdzv-endpoint", "--rdzv-id", "--run-id"),
    *("--scale-up", "--standalone"),
)
"""Flags of the agent that people may give to the server."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (-[^\s=]+)", message):
            flag = unknown[1].replace("_", "-")
            if flag in OF_THE_AGENT:
                fail(words.see_help(words.flag_of_agent(flag)))
            message += flag_words.did_you_mean(flag, self._option_string_actions)
        fail(words.see_help(message))


def fail(message: str, exit_code: ExitCode = ExitCode.BAD_INPUT) -> NoReturn:
    """End the process with one line on stderr and an exit code."""
    print(complaint("rdzv-server", message, sys.argv[1:]), file=sys.stderr)  # noqa: T201
    raise SystemExit(exit_code)


_NEEDED: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "take_over_after_s": ("stand_by_for", words.needs_stand_by_for),
    "exclude_for_s": ("exclude_after", words.needs_exclude_after),
    "on_exclude": ("exclude_after", words.needs_exclude_after),
    "tls_client_ca": ("tls_cert", words.needs_certificate),
    "read_token_file": ("token_file", words.needs_token_file),
    "admin_token_file": ("token_file", words.needs_token_file),
}
"""Fields that only work with another one, and the message if it is missing."""


def parse(argv: list[str] | None = None) -> ServerConfig:
    """Parse a command line into settings. Ends the process with exit code 2 if it has a mistake."""
    given = vars(make_parser().parse_args(argv))
    is_probe = given.pop("probe", False)
    config = ServerConfig(**given)
    if is_probe:
        raise SystemExit(_probe(config))
    for field in fields(ServerConfig):
        if field.name in given and field.metadata["group"] == CLUSTER and not config.is_one_of_several:
            fail(words.only_in_cluster(flag_of(field.name)))
    if config.is_one_of_several and config.exit_when_idle_s is not None:
        fail(words.NEVER_IDLE)
    if config.is_one_of_several and config.stand_by_for:
        fail(words.NEVER_STANDS_BY)
    pairs = (("tls_cert", "tls_key"), ("etcd_cert", "etcd_key"), ("webhook", "webhook_secret_file"))
    for one, other in pairs:
        if (one in given) != (other in given):
            fail(flag_words.belong_together(flag_of(one), flag_of(other)))
    for name, (other, needs_other) in _NEEDED.items():
        if name in given and not getattr(config, other):
            fail(needs_other(flag_of(name)))
    program = (config.on_exclude or "").split(" ", 1)[0]
    if "/" in program and not os.access(program, os.X_OK):
        fail(words.not_executable(program))
    if config.otel:
        from rdzv_protocol.tracing import missing

        if what := missing():
            fail(words.no_otel(what))
    return config if config.listen_fd is None else replace(config, port=0)  # its state will not be needed again


def make_parser() -> argparse.ArgumentParser:
    """Return the parser, with a flag for each field of `ServerConfig`. Its namespace contains only given flags."""
    parser = _Parser(
        prog="rdzv-server", usage="rdzv-server [FLAG ...]", description=DESCRIPTION, epilog=EPILOG, add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS,
    )  # fmt: skip
    add_help(parser, FIRST_DAY, FIRST_DAYS_EXAMPLES)
    add_version(parser)
    parser.add_argument(
        "--probe",
        action="store_true",
        help="start no server; exit with 0 if a server answers at this port of this machine, else with 1",
    )
    add_print_completion(parser)
    groups: dict[str, argparse._ActionsContainer] = {}
    for field in fields(ServerConfig):
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(flag_of(field.name), dest=field.name, **field.metadata["flag"])
    return parser
