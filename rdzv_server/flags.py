"""Every flag of `rdzv-server`, and what its text may be."""

import argparse
import sys
from typing import NoReturn

import rdzv_protocol
from rdzv_protocol.paths import DEFAULT_PORT, STATUS

from rdzv_server.core.registry import MOST_RUNS
from rdzv_server.server import RETENTION_S
from rdzv_server.storage.etcd_address import is_address

LEADER_LEASE_S = 5
MOST_CONNECTIONS = 65_536
MOST_SHARDS = 256

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
    parser.add_argument("--version", action="version", version=f"rdzv-server {rdzv_protocol.VERSION}")
    _add_security(parser.add_argument_group("security (docs/security.md); SIGHUP has these files read again"))
    _add_failover(parser.add_argument_group("one of several servers: --store etcd://HOST,HOST,HOST/CLUSTER"))
    return parser


def _add_security(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--token-file", metavar="FILE",
        help="agents must bear a token of this file: one on each line, or TOKEN RUN_ID_PATTERN for such runs alone, as "
        "in 'r4nd0m team-a-*' (default: everybody who reaches the port may join, watch and disturb runs)",
    )  # fmt: skip
    group.add_argument("--read-token-file", metavar="FILE", help="tokens of those who only look")
    group.add_argument(
        "--admin-token-file", metavar="FILE",
        help="tokens of those who act on runs, and may do all the rest (without any token: from this machine alone)",
    )  # fmt: skip
    group.add_argument("--tls-cert", metavar="FILE", help="speak TLS alone, and show this certificate (PEM, a chain)")
    group.add_argument("--tls-key", metavar="FILE", help="its key (PEM, not encrypted)")
    group.add_argument(
        "--tls-client-ca", metavar="FILE",
        help="let in only those whose certificate one of these authorities vouches for (PEM)",
    )  # fmt: skip
    group.add_argument(
        "--allow-host", action="append", metavar="NAME",
        help="a name by which browsers may ask for the status where no tokens are set, besides this machine's, its "
        "addresses and what agents call it; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--max-connections", type=_count, metavar="N",
        help=f"beyond it, new ones are closed; an agent has two (default: as many as this process may have files open, "
        f"at most {MOST_CONNECTIONS})",
    )  # fmt: skip
    group.add_argument(
        "--max-runs", type=_count, default=MOST_RUNS, metavar="N",
        help="beyond it, no new run begins; ended ones count until they are forgotten (default: %(default)s)",
    )  # fmt: skip


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
    group.add_argument(
        "--shards", type=_shards, metavar="N",
        help="share the runs in so many parts, which the servers lead evenly; fixed for the life of a cluster "
        "(default: 1, one server leads all runs)",
    )  # fmt: skip
    group.add_argument("--etcd-ca", metavar="FILE", help="speak TLS to etcd, and trust these certificates (PEM)")
    group.add_argument("--etcd-cert", metavar="FILE", help="this server's certificate for etcd (PEM)")
    group.add_argument("--etcd-key", metavar="FILE", help="its key (PEM)")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65_535:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number from 1 to 10000000, not {text!r}")


def _address(text: str) -> str:
    if is_address(text):
        return text
    raise argparse.ArgumentTypeError(f"HOST:PORT, not {text!r}")


def _lease(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 3_600:
        return int(text)
    raise argparse.ArgumentTypeError(f"a whole number of seconds from 1 to 3600, not {text!r}")


def _shards(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_SHARDS:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number from 1 to {MOST_SHARDS}, not {text!r}")


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
