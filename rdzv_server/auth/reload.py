"""Tokens and TLS of a server, read from their files when it starts and again on SIGHUP.

A file of tokens, as the flags name them:

    # a comment
    TOKEN                   valid for every run
    TOKEN team-a-*          an agents' token for the runs whose ids match, as file names match a pattern
    TOKEN team-a-* 20       the same, for at most 20 of them at a time
"""

import asyncio
import logging
import os
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime

from rdzv_protocol.certificates import BadCertificate

from rdzv_server.auth.authorization import ANY_RUN, Access, Role, ServerNames, Token, is_loopback
from rdzv_server.auth.tls_config import Certificate, TlsFiles
from rdzv_server.config import ServerConfig
from rdzv_server.storage.base import StoreSilent, StoreUnavailable
from rdzv_server.threads import read_again
from rdzv_server.words import auth as words

log = logging.getLogger("rdzv_server")

DAY_S = 86_400.0
RETRY_S = 2.0
"""Seconds until the server tries new certificates for etcd again, if etcd did not answer."""
MARGIN_S = 1.0
"""Seconds after a certificate's end at which the server looks at it: timers and the wall clock differ a little."""

Files = tuple[Access, ssl.SSLContext | None, list[Certificate]]
"""Contents of the files that the settings name."""
Renew = Callable[[Access, ssl.SSLContext | None], None]


class BadTokenFile(ValueError):
    """Fault of a token file, in one line that names the flag and the file, and reveals nothing of its contents."""


class Security:
    """Tokens and TLS of one server, from the files that its settings name."""

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
        self._renewed = asyncio.Event()
        self._etcd_key = config.etcd_key
        of_etcd: tuple[tuple[words.CertificateFlag, str | None], ...] = (
            ("--etcd-cert", config.etcd_cert), ("--etcd-ca", config.etcd_ca)
        )  # fmt: skip
        self._etcd_files = [(flag, path) for flag, path in of_etcd if path is not None]
        self._of_etcd = self._read_of_etcd()
        self.access, self.tls, self._of_listener = self._read()

    @property
    def certificates(self) -> list[Certificate]:
        """Certificates that this server uses now."""
        return [*self._of_listener, *self._of_etcd]

    @property
    def has_files(self) -> bool:
        """Whether the settings name any files to read again."""
        return self._tls_files is not None or not self.access.is_open or bool(self._etcd_files)

    def expiries(self) -> dict[str, datetime]:
        """Return when each certificate in use expires, by flag."""
        return {certificate.flag: certificate.validity.ends_at for certificate in self.certificates}

    def notes(self, address: str) -> Iterator[tuple[int, str]]:
        """Yield the lines that a person who starts the server should read, each with its log level."""
        yield from self._notes(self._of_listener)
        yield from self._notes_of_etcd(self._of_etcd)
        if self.access.is_open and not is_loopback(address):
            yield logging.WARNING, words.OPEN

    def _notes(self, of_listener: list[Certificate]) -> Iterator[tuple[int, str]]:
        if of_listener:
            yield logging.INFO, of_listener[0].sentence
            yield from _warnings(of_listener)
        secrets = [(flag, path) for _, flag, path in self._token_files]
        secrets += [("--tls-key", self._tls_files.key)] if self._tls_files else []
        yield from ((logging.WARNING, warning) for secret in secrets if (warning := exposure(*secret)))

    def _notes_of_etcd(self, of_etcd: list[Certificate]) -> Iterator[tuple[int, str]]:
        yield from _warnings(of_etcd)
        if self._etcd_key is not None and (warning := exposure("--etcd-key", self._etcd_key)):
            yield logging.WARNING, warning

    async def renew(self, renew: Renew) -> None:
        """Read the files again, without those for etcd. If one is bad, log that and keep what was read before."""
        if self._tls_files is None and self.access.is_open:
            return
        try:
            found, notes = await read_again(self._read_with_notes, self._paths())
        except (BadTokenFile, BadCertificate) as error:
            log.error(words.not_renewed(str(error)))
            return
        self.access, self.tls, self._of_listener = found
        renew(self.access, self.tls)
        self._renewed.set()
        log.info(words.RENEWED)
        for level, note in notes:
            log.log(level, note)

    async def renew_for_etcd(self, renew: Callable[[], Awaitable[None]]) -> None:
        """Read the files for TLS to etcd again. If one is bad, log that and keep what was read before.

        If etcd does not answer, try again until it does: only then is it known whether it accepts the new files.
        `renew`: lets etcd's client read and use the files. Raises `BadCertificate` or `StoreUnavailable` if the client
        keeps the earlier ones; `StoreSilent` if etcd answers with neither.
        """
        if not self._etcd_files:
            return
        paths = [path for path in (*(path for _, path in self._etcd_files), self._etcd_key) if path]
        is_waiting = False
        while True:
            try:
                of_etcd, notes = await read_again(self._read_of_etcd_with_notes, paths)
                await renew()
                break
            except StoreSilent as error:
                if not is_waiting:
                    log.warning(words.etcd_not_renewed_yet(str(error)))
                is_waiting = True
                await asyncio.sleep(RETRY_S)
            except (BadCertificate, StoreUnavailable) as error:
                log.error(words.etcd_not_renewed(str(error)))
                return
        self._of_etcd = of_etcd
        self._renewed.set()
        log.info(words.ETCD_RENEWED)
        for level, note in notes:
            log.log(level, note)

    async def watch_certificates(self) -> None:
        """Log each day, and when a certificate in use expires, what is wrong with it; forever."""
        while True:
            self._renewed.clear()
            try:
                async with asyncio.timeout(self._next_look_s()):
                    await self._renewed.wait()
            except TimeoutError:
                for certificate in self.certificates:
                    for warning in certificate.warnings():
                        log.warning("%s", warning)

    def _next_look_s(self) -> float | None:
        """Return the seconds until a certificate may need a warning; None without one."""
        left_s = [certificate.left().total_seconds() + MARGIN_S for certificate in self.certificates]
        return min([DAY_S, *(each for each in left_s if each > 0)]) if left_s else None

    def _paths(self) -> list[str]:
        tls = self._tls_files
        of_tls = [tls.cert, tls.key, tls.client_ca] if tls else []
        return [path for path in (*(path for _, _, path in self._token_files), *of_tls) if path]

    def _read_with_notes(self) -> tuple[Files, list[tuple[int, str]]]:
        found = self._read()
        return found, list(self._notes(found[-1]))

    def _read_of_etcd_with_notes(self) -> tuple[list[Certificate], list[tuple[int, str]]]:
        found = self._read_of_etcd()
        return found, list(self._notes_of_etcd(found))

    def _read_of_etcd(self) -> list[Certificate]:
        return [Certificate.read(flag, path) for flag, path in self._etcd_files]

    def _read(self) -> Files:
        access = Access([token for file in self._token_files for token in read_tokens(*file)], self._names)
        if self._tls_files is None:
            return access, None, []
        return access, self._tls_files.context(), self._tls_files.certificates()


def _warnings(certificates: list[Certificate]) -> Iterator[tuple[int, str]]:
    for certificate in certificates:
        yield from ((logging.WARNING, warning) for warning in certificate.warnings())


def read_tokens(role: Role, flag: str, path: str) -> list[Token]:
    """Return the tokens that a file contains now. Raises `BadTokenFile`."""
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.split() for line in file if line.split() and not line.lstrip().startswith("#")]
    except UnicodeDecodeError:
        raise BadTokenFile(words.bad_token_file(flag, path, words.NOT_PRINTABLE)) from None
    except OSError as error:
        raise BadTokenFile(words.bad_token_file(flag, path, error.strerror or str(error))) from None
    if not lines:
        raise BadTokenFile(words.bad_token_file(flag, path, words.NO_TOKEN_IN_FILE))
    try:
        return [_token(role, line) for line in lines]
    except ValueError as error:
        raise BadTokenFile(words.bad_token_file(flag, path, str(error))) from None


def _token(role: Role, line: list[str]) -> Token:
    if not all(word.isprintable() for word in line):
        raise ValueError(words.NOT_PRINTABLE)
    match line:
        case [secret]:
            return Token(role, secret.encode())
        case [secret, runs] if role is Role.AGENT or runs == ANY_RUN:
            return Token(role, secret.encode(), runs)
        case [secret, runs, most] if role is Role.AGENT and most.isdigit() and int(most) > 0:
            return Token(role, secret.encode(), runs, int(most))
        case [_, _]:
            raise ValueError(words.NOT_FOR_SOME_RUNS)
    raise ValueError(words.BAD_LINE)


def exposure(flag: str, path: str) -> str:
    """Return a warning about a file with a secret that other users can read; empty if they cannot."""
    if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return words.exposed(flag, path)
    return ""
