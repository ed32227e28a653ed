"""Every setting of a server, once: its unit, its default, and why. Flags fill it; nothing else has a default."""

from dataclasses import dataclass, field

from rdzv_protocol.paths import DEFAULT_PORT

RETENTION_S = 3_600.0
MOST_RUNS = 10_000
MOST_CONNECTIONS = 65_536


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second in the long run, and so many at once."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a server takes from its network before it says no.

    Durations are seconds. Rates are for one peer: an IPv4 address, or an IPv6 network of 64 bits.
    """

    connections: int = 4_096
    """Of these, one peer may have half without having been let in by a request."""
    handshake_s: float = 5.0
    """From a connection's begin to its first byte, and from there to the end of TLS's handshake."""
    request_s: float = 10.0
    """From the first byte of a request, or the begin of the connection, to the last byte of its body."""
    unread_s: float = 10.0
    """How long a peer may leave an answer unread."""
    idle_s: float = 75.0
    """From an answer to the next request."""
    requests: Rate = Rate(5_000, 50_000)
    """10,000 agents behind one address poll 2,000 times a second; a round's end and the next take three requests."""
    refusals: Rate = Rate(10, 100)
    """Requests without the right token. Beyond it, the peer's requests are refused whatever token they bear, unless
    their connection has been let in with the same one: else the answer would tell which guess was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one server."""

    host: str | None = None
    """Address to listen on. None: every one, IPv4 and IPv6, since agents are elsewhere as a rule."""
    port: int = DEFAULT_PORT
    """0: one that the kernel chooses."""
    listen_fd: int | None = None
    """Descriptor of a listening socket that the parent process has made, in place of `host` and `port`."""
    store: str | None = None
    """Where runs are written down: sqlite:PATH, memory or etcd://... None: a file for this port, or memory for port 0,
    which nobody finds again after a restart."""
    retention_s: float = RETENTION_S
    """How long an ended run is remembered: long enough for a person to look, and for a late agent to be told."""
    max_runs: int = MOST_RUNS
    """Attempts, ended ones included, until they are forgotten: what a server's memory is meant for."""
    exit_when_idle_s: float | None = None
    """Exit by itself after so long without agents, and when all is over. None: serve for ever."""

    token_file: str | None = None
    read_token_file: str | None = None
    admin_token_file: str | None = None
    """Files of the tokens of agents, of those who look, of those who act; read again on SIGHUP. None: nobody is asked
    for one, and actions are taken from this machine alone."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """PEM files; read again on SIGHUP. None: no TLS."""
    tls_client_ca: str | None = None
    """PEM file of the authorities whose certificates let clients in. None: they need none."""
    allow_host: tuple[str, ...] = ()
    """Further names by which browsers may ask for the status where no tokens are set."""
    max_connections: int | None = None
    """None: as many as this process may have files open, less what it needs itself, at most `MOST_CONNECTIONS`."""
    limits: Limits = field(default_factory=Limits)

    advertise: str | None = None
    """HOST:PORT at which agents reach this one of several servers. None: `host`, or this machine's address on its way
    to etcd; and `port`."""
    leader_lease_s: int = 5
    """How long a leader that is gone is waited for. Shorter takes a slow one for gone, longer holds recovery up."""
    shards: int = 1
    """Parts in which several servers share the runs, so that each leads some; fixed for the life of a cluster."""
    rebalance_after_s: float = 60.0
    """How long this server must have been there before others leave it shards: longer than one that crashes soon lives,
    so that nothing moves for it."""
    etcd_ca: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None
    """PEM files for the way to etcd. None: no TLS to etcd."""
