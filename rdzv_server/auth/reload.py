"""Tokens and TLS of a server, read from their files when it starts and again on SIGHUP."""

import logging
import ssl
from collections.abc import Callable, Iterator

from rdzv_protocol.certificates import BadCertificate

from rdzv_server.auth.authorization import Access, Role, ServerNames
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.auth.token_files import BadTokenFile, TokenFiles
from rdzv_server.config import ServerConfig

log = logging.getLogger("rdzv_server")

LOOPBACK = ("127.0.0.1", "::1")

Renew = Callable[[Access, ssl.SSLContext | None], None]


class BadSecurity(Exception):
    """One line that names the flag, and the file."""


class Security:
    """Tokens and TLS of one server, as its settings name their files."""

    access: Access
    tls: ssl.SSLContext | None

    def __init__(self, config: ServerConfig) -> None:
        """Raises `BadSecurity`."""
        files = {
            Role.AGENT: config.token_file,
            Role.READ: config.read_token_file,
            Role.ADMIN: config.admin_token_file,
        }
        self._tls_files = _tls_files(config)
        self._names = ServerNames(config.allow_host)
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


def _tls_files(config: ServerConfig) -> TlsFiles | None:
    if (config.tls_cert is None) != (config.tls_key is None):
        raise BadSecurity("--tls-cert and --tls-key belong together")
    if config.tls_cert is None or config.tls_key is None:
        if config.tls_client_ca is not None:
            raise BadSecurity("--tls-client-ca needs --tls-cert and --tls-key, too")
        return None
    return TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
