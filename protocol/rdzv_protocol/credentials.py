"""Credentials of an agent for its server: a token, and TLS files. Workers never get them."""

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


class Credentials:
    """Credentials of one agent, for all its connections. Files are read again when that may help."""

    def __init__(
        self, token_file: str | None = None, tls: TlsFiles | None = None, token_flag: str = "--token-file"
    ) -> None:
        """Read the token. Raises `ValueError`, with one line that names the file, if the file cannot be used.

        `token_flag`: name by which a user sets the token's file, for messages.
        """
        self.tls = tls
        self.token_file = token_file
        self.token_flag = token_flag
        self.token = read_token(token_file) if token_file is not None else None
        self.latest_context: ssl.SSLContext | None = None
        """What `context` has returned last."""

    def __repr__(self) -> str:
        return f"Credentials(token_file={self.token_file!r}, tls={self.tls!r})"

    def renew(self, refused: str | None) -> bool:
        """Read the token file again. Return whether it now contains another token than the `refused` one."""
        if self.token_file is not None:
            try:
                self.token = read_token(self.token_file)
            except ValueError:
                return False
        return self.token != refused

    def context(self) -> "ssl.SSLContext | None":
        """Return the TLS context of a new connection, from the current files; None without TLS. Raises `ValueError`."""
        self.latest_context = self.tls.context() if self.tls else None
        return self.latest_context


def read_token(path: str) -> str:
    """Return the token in this file, the only line that is no comment.

    Raises `ValueError`, which never quotes the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip() and not line.lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(words.flags.unreadable_token(path, getattr(error, "strerror", None) or str(error))) from None
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable() or " " in lines[0]:
        raise ValueError(words.flags.no_token(path))
    return lines[0]
