"""Tokens and TLS of a server, read from their files when it starts and again on SIGHUP."""

import logging
import os
import ssl
import stat
from collections.abc import Callable, Iterator

from rdzv_protocol.certificates import BadCertificate

from rdzv_server.auth.authorization import Access, Role, ServerNames
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.auth.token_files import BadTokenFile, read_tokens
from rdzv_server.config import ServerConfig

log = logging.getLogger("rdzv_server")

LOOPBACK = ("127.0.0.1", "::1")

Renew = Callable[[Access, ssl.SSLContext | None], None]


class Security:
    """Tokens and TLS of one server, as its settings name their files."""

    access: Access
    tls: ssl.SSLContext | None = None

    def __init__(self, config: ServerConfig) -> None:
        """Read the files. Raises `BadTokenFile` or `BadCertificate`."""
        token_files = (
            (Role.AGENT, "--token-file", config.token_file),
            (Role.READ, "--read-token-file", config.read_token_file),
            (Role.ADMIN, "--admin-token-file", config.admin_token_file),
        )
        self._token_files = [(role, flag, path) for role, flag, path in token_files if path is not None]
        self._tls_files: TlsFiles | None = None
        if config.tls_cert is not None and config.tls_key is not None:
            self._tls_files = TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
        self._names = ServerNames(config.allow_host)
        self._read()

    @property
    def has_files(self) -> bool:
        """Whether the settings name any files to read again."""
        return self._tls_files is not None or not self.access.is_open

    def notes(self, address: str) -> Iterator[tuple[int, str]]:
        """Lines that whoever starts the server should read, each with its level of logging."""
        if self._tls_files:
            yield logging.INFO, f"TLS: {self._tls_files.validity()}"
            yield from ((logging.WARNING, warning) for warning in self._tls_files.warnings())
        secrets = [(flag, path) for _, flag, path in self._token_files]
        secrets += [("--tls-key", self._tls_files.key)] if self._tls_files else []
        for flag, path in secrets:
            if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
                yield logging.WARNING, f"{flag} {path}: others than its owner can read it; chmod 600 ends that"
        if self.access.is_open and address not in LOOPBACK:
            yield (
                logging.WARNING,
                "no --token-file: everybody who reaches this port can join, watch and disturb runs; operators' "
                "actions are taken from this machine alone",
            )

    def renew(self, renew: Renew) -> None:
        """Read the files again; if any is bad, log that and keep what was read before."""
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
        tokens = [token for file in self._token_files for token in read_tokens(*file)]
        self.tls = self._tls_files.context() if self._tls_files else None
        self.access = Access(tokens, self._names)
