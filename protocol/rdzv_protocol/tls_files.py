"""TLS files of an agent or of `rdzvctl`, and what a failed connection with them means.

This is a module of its own, because plain HTTP does not need it.
"""

from typing import TYPE_CHECKING, NamedTuple

from rdzv_protocol import words

if TYPE_CHECKING:
    import ssl

SYSTEM = "system"
"""Value of `TlsFiles.ca` that stands for the authorities that the operating system trusts."""

# OpenSSL's X509_V_ERR_*
_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_AUTHORITY = 9, 10, (62, 64), (2, 18, 19, 20, 21)
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}


class TlsNames(NamedTuple):
    """Names by which a user sets the files, for messages: flags, or a program's settings."""

    ca: str = "--tls-ca"
    cert: str = "--tls-cert"
    key: str = "--tls-key"


class TlsFiles(NamedTuple):
    """Paths of PEM files: authorities for the server's certificate, and this node's own certificate with its key."""

    ca: str
    cert: str | None = None
    key: str | None = None
    names: TlsNames = TlsNames()

    def context(self) -> "ssl.SSLContext":
        """Return the TLS context of a new connection. Raises `rdzv_protocol.certificates.BadCertificate`."""
        import ssl  # takes five megabytes, which plain HTTP does not need

        from rdzv_protocol.certificates import load_authorities, load_own

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca == SYSTEM:
            context.load_default_certs()
        else:
            load_authorities(context, self.names.ca, self.ca)
        if self.cert and self.key:
            load_own(context, self.cert, self.key, self.names.cert, self.names.key)
        return context

    def explain(self, error: Exception, host: str) -> str | None:
        """Return why a connection to `host` failed if TLS is to blame, so that the next try fails, too; else None."""
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            return self._bad_certificate(error, host)
        if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return None
        reason = error.reason or str(error)
        if reason in _NO_TLS:
            return words.tls.no_tls(self.names.ca)
        if self.cert is None and ("CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason):
            return words.tls.asks_for_certificate(self.names.cert, self.names.key)
        _, is_alert, last = reason.rpartition("ALERT_")
        why = last.replace("_", " ").lower()
        return words.tls.refused(why, self.names.cert) if is_alert else words.tls.fails(why)

    def _bad_certificate(self, error: "ssl.SSLCertVerificationError", host: str) -> str:
        code = error.verify_code
        if code == _NOT_YET_VALID:
            return words.tls.NOT_YET_VALID
        if code == _EXPIRED:
            return words.tls.EXPIRED
        if code in _OTHER_HOST:
            return words.tls.other_host(host)
        if code in _OTHER_AUTHORITY:
            return words.tls.other_authority(self.names.ca, self.ca)
        return words.tls.bad_certificate(error.verify_message)
