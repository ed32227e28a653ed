"""TLS of the server: the certificate that it presents, and those that it requires."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from rdzv_protocol.certificates import Validity, load_authorities, load_own, validity, validity_of_last

from rdzv_server.words import auth as words

EXPIRES_SOON = timedelta(days=14)
AUTHORITIES: set[words.CertificateFlag] = {"--tls-client-ca", "--etcd-ca"}
"""Flags whose files contain authorities. One is enough, so an old one may expire beside its successor."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate chain, its key, and the authorities whose clients are let in."""

    cert: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of new connections. Raises `rdzv_protocol.certificates.BadCertificate`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.sslobject_class = _Explaining
        load_own(context, self.cert, self.key)
        if self.client_ca is not None:
            load_authorities(context, "--tls-client-ca", self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def certificates(self) -> "list[Certificate]":
        """Read the certificates. Raises `rdzv_protocol.certificates.BadCertificate`."""
        authorities = [Certificate.read("--tls-client-ca", self.client_ca)] if self.client_ca is not None else []
        return [Certificate.read("--tls-cert", self.cert), *authorities]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate that the server uses, or of several authorities the one that expires last.

    `path`: its file, which may have been replaced since.
    """

    flag: words.CertificateFlag
    path: str
    validity: Validity

    @classmethod
    def read(cls, flag: words.CertificateFlag, path: str) -> Self:
        """Read the file. Raises `rdzv_protocol.certificates.BadCertificate`."""
        return cls(flag, path, (validity_of_last if flag in AUTHORITIES else validity)(flag, path))

    @property
    def sentence(self) -> str:
        """Sentence about when it expires."""
        return words.tls(self.path, self.validity.ends_at)

    def left(self) -> timedelta:
        """Return the time until it expires; negative afterwards."""
        return self.validity.ends_at - datetime.now(UTC)

    def warnings(self) -> Iterator[str]:
        """Yield what is wrong with it, or will be soon."""
        if datetime.now(UTC) < self.validity.begins_at:
            yield words.certificate_not_valid_yet(self.flag, self.path, self.validity.begins_at)
        if (left := self.left()) < timedelta(0):
            yield words.certificate_expired(self.flag, self.path)
        elif left < EXPIRES_SOON:
            yield words.certificate_expires(self.flag, self.path, left.days)


class _Explaining(ssl.SSLObject):
    """TLS object that informs the peer why its handshake failed.

    If a handshake fails, asyncio drops the connection before it has sent OpenSSL's explanation. It sends that only
    while it believes that the handshake continues. Then the peer, which reads the explanation, ends the connection, or
    the time limit does.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failure = error.with_traceback(None)  # its frames keep this object, which keeps the error
            raise ssl.SSLWantReadError from error
