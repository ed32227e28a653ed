"""What the security flags ask for: tokens, TLS and limits, read when the server starts and again on SIGHUP."""

import argparse
import logging
import resource
import ssl
from collections.abc import Callable, Iterator

from rdzv_protocol.certificates import BadCertificate

from rdzv_server.auth.authorization import Access, Role, ServerNames
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.auth.token_files import BadTokenFile, TokenFiles
from rdzv_server.flags import MOST_CONNECTIONS
from rdzv_server.limits import Limits

log = logging.getLogger("rdzv_server")

OTHER_FILES = 128
"""What a server has open besides its agents' connections: the store, etcd, its own pipes; and room."""
LOOPBACK = ("127.0.0.1", "::1")

Renew = Callable[[Access, ssl.SSLContext | None], None]


class BadSecurity(Exception):
    """One line that names the flag, and the file."""


class Security:
    """The tokens and the TLS of one server, as the flags name their files."""

    access: Access
    tls: ssl.SSLContext | None

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises `BadSecurity`."""
        files = {
            Role.AGENT: args.token_file,
            Role.READ: args.read_token_file,
            Role.ADMIN: args.admin_token_file,
        }
        self._tls_files = _tls_files(args)
        self._names = ServerNames(args.allow_host or ())
        try:
            self._token_files = TokenFiles({role: path for role, path in files.items() if path is not None})
            self._read()
        except (BadTokenFile, BadCertificate) as error:
            raise BadSecurity(str(error)) from None

    @property
    def has_files(self) -> bool:
        """Whether there is anything to read again."""
        return self._tls_files is not None or not self.access.is_open

    def notes(self, address: str) -> Iterator[tuple[int, str]]:
        """What whoever starts the server should know, each with its level of logging."""
        if self._tls_files:
            yield logging.INFO, f"TLS: {self._tls_files.validity()}"
            yield from ((logging.WARNING, warning) for warning in self._tls_files.warnings())
        yield from ((logging.WARNING, warning) for warning in self._token_files.warnings())
        if self.access.is_open and address not in LOOPBACK:
            yield (
                logging.WARNING,
                "no --token-file: everybody who reaches this port can join, watch and disturb runs; operators' "
                "actions are taken from this machine alone",
            )

    def renew(self, renew: Renew) -> None:
        """Read the files again; if any is bad, say so and keep to what there is."""
        try:
            self._read()
        except (BadTokenFile, BadCertificate) as error:
            log.error("SIGHUP: %s; keeping the tokens and certificates that there are", error)
            return
        renew(self.access, self.tls)
        log.info("SIGHUP: new connections get the tokens and certificates that the files hold now")
        for level, note in self.notes(LOOPBACK[0]):
            log.log(level, note)

    def _read(self) -> None:
        access = Access(self._token_files.read(), self._names)
        self.tls = self._tls_files.context() if self._tls_files else None
        self.access = access


def make_limits(args: argparse.Namespace) -> Limits:
    """As many connections as are asked for, or as this process may have. Raises `BadSecurity`."""
    room = _raise_file_limit() - OTHER_FILES
    if args.max_connections is None:
        return Limits(connections=max(1, min(room, MOST_CONNECTIONS)))
    if args.max_connections > room:
        raise BadSecurity(
            f"--max-connections {args.max_connections}: this process may have {room + OTHER_FILES} files open, and "
            f"needs {OTHER_FILES} besides; raise its hard limit (ulimit -Hn, LimitNOFILE=)"
        )
    return Limits(connections=args.max_connections)


def _raise_file_limit() -> int:
    """How many files this process may have open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _tls_files(args: argparse.Namespace) -> TlsFiles | None:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise BadSecurity("--tls-cert and --tls-key belong together")
    if args.tls_cert is None:
        if args.tls_client_ca is not None:
            raise BadSecurity("--tls-client-ca needs --tls-cert and --tls-key, too")
        return None
    return TlsFiles(args.tls_cert, args.tls_key, args.tls_client_ca)
