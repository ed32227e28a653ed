"""Settings of a server. Each is defined here once: its flag, its unit, its default, and why."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rdzv_protocol.flag_values import LOG_FORMATS, Endpoint, address, endpoint, endpoints, seconds
from rdzv_protocol.paths import DEFAULT_PORT

from rdzv_server.core.node_history import MOST_OF_A_NODE
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.runs.kept_events import MOST_EVENTS
from rdzv_server.core.runs.registry import MOST_AGENTS, MOST_RUNS, RETENTION_S
from rdzv_server.token_buckets import Rate
from rdzv_server.words import startup as words

MOST_CONNECTIONS = 65_536
OTHER_FILES = 128
"""File descriptors that are reserved for all but agents' connections: the store, etcd, pipes, and some to spare."""
MOST_SHARDS = 256
LISTED_RUNS = 100
MOST_LISTED_RUNS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits beyond which a server refuses connections and requests.

    Durations are in seconds. Rates are for one peer: an IPv4 address, or an IPv6 network of 64 bits.
    """

    listed_runs: int = LISTED_RUNS
    """Most active runs that have series of their own in the metrics."""
    connections: int = 4_096
    """Most connections. One peer may have half of them until one of its requests has been let in."""
    handshake_s: float = 5.0
    """Longest time from a connection's beginning to its first byte, and from there to the end of the TLS handshake."""
    request_s: float = 10.0
    """Longest time from the first byte of a request, or the connection's beginning, to the last byte of its body."""
    unread_s: float = 10.0
    """Longest time for which a peer may leave an answer unread."""
    idle_s: float = 75.0
    """Longest time from an answer to the next request."""
    requests: Rate = Rate(5_000, 50_000)
    """Rate of all requests. 10,000 agents behind one address poll 2,000 times a second. The end of a round and the next
    round take three requests for each agent."""
    refusals: Rate = Rate(10, 100)
    """Rate of requests without a valid token. Beyond it, the server refuses all requests of the peer, with any token,
    unless their connection has been let in with the same token. Otherwise the answer would show which guess was
    right."""


# Kinds of values.

Kind = tuple[str, Callable[[str], object]]
"""Name of a flag's value in the help, and the function that reads the value."""


def _number(kind: Callable[[str], float], low: float, high: float, what: str) -> Callable[[str], float]:
    """Return a reader of numbers from `low` to `high`; `what` tells people which numbers are allowed."""

    def read(text: str) -> float:
        try:
            number = kind(text) if text.isascii() else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise ArgumentTypeError(words.other_value(what, text))
        return number

    return read


_span = _number(seconds, 1, 366 * 86_400, words.A_SPAN)


def _after(text: str) -> tuple[int, float]:
    """Read N/TIME: a number of times within a time, which is returned in seconds."""
    number, slash, window = text.partition("/")
    if not slash:
        raise ArgumentTypeError(words.no_window(text))
    if re.fullmatch(r"\d{1,2}", number) is None or not 1 <= int(number) <= MOST_OF_A_NODE:
        raise ArgumentTypeError(words.bad_window(MOST_OF_A_NODE, text))
    return int(number), _span(window)


def _address(text: str) -> str:
    try:
        return address(*endpoint(text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _servers(text: str) -> list[Endpoint]:
    try:
        return endpoints(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


ADDRESS: Kind = ("HOST:PORT", _address)
COUNT: Kind = ("N", _number(int, 1, 10_000_000, words.whole_number(1, 10_000_000)))
DESCRIPTOR: Kind = ("N", _number(int, 0, 2**31, words.A_DESCRIPTOR))
COMMAND: Kind = ("CMD", str)
FILE: Kind = ("FILE", str)
HOST: Kind = ("HOST", str)
LEASE: Kind = ("SECONDS", _number(int, 1, 3_600, words.A_LEASE))
LISTED: Kind = ("N", _number(int, 0, MOST_LISTED_RUNS, words.whole_number(0, MOST_LISTED_RUNS)))
NAME: Kind = ("NAME", str)
PORT: Kind = ("PORT", _number(int, 0, 65_535, words.A_PORT))
SPAN: Kind = ("TIME", _span)
AFTER: Kind = ("N/TIME", _after)
SECONDS: Kind = ("SECONDS", _number(float, 0, 1e9, words.A_NUMBER_OF_SECONDS))
SERVERS: Kind = ("HOST:PORT,...", _servers)
SHARDS: Kind = ("N", _number(int, 1, MOST_SHARDS, words.whole_number(1, MOST_SHARDS)))
URL: Kind = ("URL", str)
WHERE: Kind = ("WHERE", str)

LISTEN, RUNS, WATCH = "listen", "keep runs", "watch the server"
NODES = "bad nodes (docs/how-to/bad-nodes.md)"
EVENTS = "events of runs (docs/reference/events.md); on SIGHUP the server opens the file and reads the secret again"
SECURITY = "security (docs/how-to/secure-a-server.md); on SIGHUP the server reads these files again"
CLUSTER = (
    "one of several servers: --store etcd://HOST,HOST,HOST/CLUSTER; on SIGHUP the server reads the files for etcd again"
)


def _flag(default: object, kind: Kind | None, text: str, *, group: str, **more: object) -> Any:
    """Return a field of `ServerConfig` that a flag fills. `text` is its help, in which {} stands for the default.

    `kind`: None for a flag without a value.
    """
    value = {"metavar": kind[0], "type": kind[1]} if kind else {"action": "store_true"}
    return field(default=default, metadata={"group": group, "flag": {**value, "help": text.format(default), **more}})


_listen, _runs, _watch = partial(_flag, group=LISTEN), partial(_flag, group=RUNS), partial(_flag, group=WATCH)
_nodes = partial(_flag, group=NODES)
_events = partial(_flag, group=EVENTS)
_security, _cluster = partial(_flag, group=SECURITY), partial(_flag, group=CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one server. Each has a flag of the same name, without the unit."""

    host: str | None = _listen(None, HOST, "listen on this address (default: every address, IPv4 and IPv6)")
    """Address to listen on: every address by default, since agents usually run elsewhere."""
    port: int = _listen(DEFAULT_PORT, PORT, "listen on this port; 0 picks a free port (default: {})")
    listen_fd: int | None = _listen(
        None,
        DESCRIPTOR,
        "serve on this socket, which the parent process has bound and listens on, instead of --host and --port. The "
        "server finds a socket that systemd passes in LISTEN_FDS without this flag",
    )

    store: str | None = _runs(
        None,
        WHERE,
        "record runs here. sqlite:PATH: runs continue after a restart of the server. memory: runs do not outlive the "
        "server. etcd://HOST,HOST,HOST/CLUSTER: several servers share the runs; one leads, and another takes over. "
        "(default: a file for this port in the user's state folder; memory with --port 0)",
    )
    """Place of the records: memory with port 0, since a later server would not look for records at a random port."""
    retention_s: float = _runs(RETENTION_S, SECONDS, "keep an ended run for SECONDS (default: {:g})")
    exit_when_idle_s: float | None = _runs(
        None,
        SECONDS,
        "exit when all runs have ended and all agents know this, or when no agent has been connected for SECONDS. "
        "The exit code is 0 if the last attempt of every run has succeeded, else 1 (default: serve until stopped)",
    )
    stand_by_for: Sequence[Endpoint] = _runs(
        (),
        SERVERS,
        "serve only while none of these servers answers; exit with 75 when one of them is back (default: serve at "
        "once)",
    )
    """Servers that have precedence over this one. This server has none of their records."""
    take_over_after_s: float = _runs(
        10.0, SPAN, "with --stand-by-for, take over when none of those servers has answered for TIME (default: {:g} s)"
    )
    """Seconds of silence after which a server counts as gone: an agent's default lease."""

    log_format: str = _watch(
        "text",
        NAME,
        "write log lines as text, or as json for log collectors (docs/how-to/logs.md); LOGLEVEL=WARNING hides "
        "routine lines (default: {})",
        choices=LOG_FORMATS,
    )
    otel: bool = _watch(
        False,
        None,
        "export an OpenTelemetry trace of each round. OTEL_* variables configure the export (OTLP over HTTP; "
        "docs/how-to/tracing.md); needs the extra otel",
    )
    metrics_per_run: int = _watch(
        LISTED_RUNS,
        LISTED,
        "give the N oldest active runs series of their own in GET /metrics (default: {}; 0: only totals)",
    )
    """Most runs with series of their own, about thirty for each run: a load that one Prometheus handles easily."""

    exclude_after: tuple[int, float] | None = _nodes(
        None,
        AFTER,
        "exclude a node after N incidents within TIME, as in 3/24h: the node was lost, its workers failed first, or a "
        "check found a temporary condition. Exclude a node at once if its hardware failed or a check found any other "
        "condition (default: exclude no node)",
    )
    exclude_for_s: float = _nodes(86_400.0, SPAN, "exclude a node for TIME, as in 12h (default: 24h)")
    """Seconds for which a node is excluded: a day by default, so that a person can look at it the next morning."""
    on_exclude: str | None = _nodes(
        None,
        COMMAND,
        "run this shell command when the server excludes a node, to drain it in the scheduler. RDZV_NODE, RDZV_REASON "
        "and RDZV_SECONDS contain the node, the reason and the time. RDZV_CONDITION and RDZV_CLASS contain the finding "
        "of a check, such as DiskFull and temporary (samples: deploy/on-exclude)",
    )

    event_log: str | None = _events(None, FILE, "append every event of every run to this file, as a line of JSON")
    webhook: str | None = _events(
        None,
        URL,
        "send every event of every run to this URL, in order, and repeat it until the receiver accepts it; needs "
        "--webhook-secret-file",
    )
    webhook_secret_file: str | None = _events(
        None, FILE, "sign requests to --webhook with the secret in this file, so that the receiver can verify them"
    )

    token_file: str | None = _security(
        None,
        FILE,
        "require agents to authenticate with a token in this file: one on each line, or TOKEN RUN_ID_PATTERN for "
        "matching runs only, as in 'r4nd0m team-a-*' (default: everyone who reaches the port may join, watch and "
        "disrupt runs)",
    )
    read_token_file: str | None = _security(None, FILE, "accept the tokens in this file for reading only")
    admin_token_file: str | None = _security(
        None,
        FILE,
        "accept the tokens in this file for every request, also for actions (without any token: accept actions from "
        "this machine only)",
    )
    tls_cert: str | None = _security(None, FILE, "serve only TLS, with this certificate (PEM, a chain)")
    tls_key: str | None = _security(
        None, FILE, "read the private key of --tls-cert from this file (PEM, not encrypted)"
    )
    tls_client_ca: str | None = _security(
        None, FILE, "accept only clients whose certificate one of these CAs has signed (PEM)"
    )
    allow_host: Sequence[str] = _security(
        (),
        NAME,
        "without tokens, answer browsers under this host name, too, besides this machine's names and addresses and the "
        "names that agents use; may be repeated",
        action="append",
    )
    max_connections: int | None = _security(
        None,
        COUNT,
        "serve at most N connections; allow two for each agent (default: this process's limit of open files less "
        f"{OTHER_FILES} for other files, at most {MOST_CONNECTIONS})",
    )
    max_runs: int = _security(
        MOST_RUNS, COUNT, "refuse new runs beyond N; ended runs count until the server forgets them (default: {})"
    )
    max_agents: int = _security(
        MOST_AGENTS,
        COUNT,
        "refuse further agents beyond N; a run keeps the places of its last round (default: {})",
    )
    max_events: int = _security(
        MOST_EVENTS,
        COUNT,
        "keep at most N events of all runs; the server drops the oldest events first, beginning with ended runs "
        "(default: {})",
    )

    advertise: str | None = _cluster(
        None,
        ADDRESS,
        "set the address of this server that other servers give to agents (default: --host or the address from which "
        "this machine reaches etcd, with --port)",
    )
    leader_lease_s: int = _cluster(5, LEASE, "take over from a lost leader after SECONDS (default: {})")
    """Lease of a leader in seconds. A shorter one takes a slow leader for dead; a longer one delays recovery."""
    shards: int = _cluster(
        1,
        SHARDS,
        "divide the runs into N parts, which the servers share evenly; the number cannot change in a cluster (default: "
        "{}, one server leads all runs)",
    )
    rebalance_after_s: float = _cluster(
        60.0,
        SECONDS,
        "with --shards, let this server take its part from the others once it has been up for SECONDS (default: {:g})",
    )
    """Seconds after which this server gets its part of the shards. A server that crashes soon does not run this long,
    so shards do not move to it."""
    etcd_ca: str | None = _cluster(
        None, FILE, "use TLS to etcd and verify its certificate against this CA bundle (PEM)"
    )
    etcd_cert: str | None = _cluster(None, FILE, "present this certificate to etcd (PEM)")
    etcd_key: str | None = _cluster(None, FILE, "read the private key of --etcd-cert from this file (PEM)")

    @property
    def exclusion(self) -> ExclusionPolicy | None:
        """Policy by which the server excludes nodes; None if it excludes none."""
        return ExclusionPolicy(*self.exclude_after, self.exclude_for_s) if self.exclude_after else None

    @property
    def is_one_of_several(self) -> bool:
        return self.store is not None and self.store.startswith("etcd://")
