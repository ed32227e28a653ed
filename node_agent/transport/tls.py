"""TLS to a server, and why it did not come about. Imported only where it is asked for."""

import ssl

from rdzv_protocol.certificates import load_authorities, load_own

from node_agent.transport.credentials import SYSTEM, TlsFiles

EXPIRED, NOT_YET_VALID = 10, 9
FOR_ANOTHER_NAME = {62, 64}
FROM_A_STRANGER = {2, 18, 19, 20, 21}
"""OpenSSL's X509_V_ERR_*."""

_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """What a new connection speaks. Raises `rdzv_protocol.certificates.BadCertificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca == SYSTEM:
        context.load_default_certs()
    else:
        load_authorities(context, "--tls-ca", files.ca)
    if files.cert and files.key:
        load_own(context, files.cert, files.key)
    return context


def explain(error: OSError, files: TlsFiles, host: str) -> str | None:
    """Why a connection failed, where TLS is to blame: it will fail the next time, too."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error, files, host)
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "the server there speaks no TLS: leave --tls-ca out, or start it with --tls-cert and --tls-key"
    if files.cert is None and ("CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason):
        return "the server asks for a certificate of this node: give --tls-cert and --tls-key"
    if "ALERT" in reason:
        return f"the server refuses this node's TLS ({_plain(reason.partition('ALERT_')[2])}): see --tls-cert"
    return f"TLS fails: {_plain(reason)}"


def _of_certificate(error: ssl.SSLCertVerificationError, files: TlsFiles, host: str) -> str:
    if error.verify_code == EXPIRED:
        return "the server's certificate has expired"
    if error.verify_code == NOT_YET_VALID:
        return "the server's certificate is not valid yet: compare the clocks"
    if error.verify_code in FOR_ANOTHER_NAME:
        return f"the server's certificate is not for {host}: name it in --endpoint as the certificate does"
    if error.verify_code in FROM_A_STRANGER:
        return f"the server's certificate is from no authority in --tls-ca {files.ca}"
    return f"the server's certificate is no good: {error.verify_message}"


def _plain(reason: str) -> str:
    return reason.replace("_", " ").lower()
