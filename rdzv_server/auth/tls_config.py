"""TLS of the server: the certificate that it presents, and those that it requires."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rdzv_protocol.certificates import expires_at, load_authorities, load_own

from rdzv_server.words import auth as words

EXPIRES_SOON = timedelta(days=14)


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

    def validity(self) -> str:
        """Return the sentence about when the certificate expires."""
        return words.tls(self.cert, expires_at(self.cert))

    def warnings(self) -> Iterator[str]:
        """Yield faults of the files that do not prevent their use."""
        left = expires_at(self.cert) - datetime.now(UTC)
        if left < timedelta(0):
            yield words.certificate_expired(self.cert)
        elif left < EXPIRES_SOON:
            yield words.certificate_expires(self.cert, left.days)


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
            self._failure = error
            raise ssl.SSLWantReadError from error
