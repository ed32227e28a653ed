"""Certificates and keys in PEM files, as both sides of a TLS connection load theirs.

The error for a bad file is one line that names the flag and the file, since OpenSSL's own messages name neither.
"""

import re
import ssl
from datetime import UTC, datetime
from typing import NamedTuple

from rdzv_protocol import words

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME = 0x30, 0x17


class BadCertificate(ValueError):
    """Fault of a PEM file, in one line that names the flag and the file."""


def load_own(
    context: ssl.SSLContext, cert: str, key: str, cert_flag: str = "--tls-cert", key_flag: str = "--tls-key"
) -> None:
    """Load the certificate for the other side, with its key. Raises `BadCertificate`."""
    _certificate(cert_flag, cert)
    if "PRIVATE KEY-----" not in _text(key_flag, key):
        raise BadCertificate(words.tls.bad_file(key_flag, key, words.tls.NO_KEY))
    try:
        context.load_cert_chain(cert, key, password=lambda: _is_encrypted(key_flag, key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(words.tls.other_key(cert_flag, cert, key_flag, key)) from None
        raise BadCertificate(words.tls.bad_pair(cert_flag, cert, key_flag, key, _reason(error))) from None


def load_authorities(context: ssl.SSLContext, flag: str, path: str) -> None:
    """Load the authorities whose certificates are trusted. Raises `BadCertificate`."""
    _certificate(flag, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise BadCertificate(words.tls.bad_file(flag, path, _reason(error))) from None


class Validity(NamedTuple):
    """Time in which a certificate is valid."""

    begins_at: datetime
    ends_at: datetime


def validity(flag: str, cert: str) -> Validity:
    """Return the time in which the first certificate in this file of `flag` is valid. Raises `BadCertificate`."""
    return _validity(_certificate(flag, cert))


def validity_of_last(flag: str, bundle: str) -> Validity:
    """Return the validity of the certificate in this file of `flag` that expires last. Raises `BadCertificate`."""
    return max(map(_validity, _certificates(flag, bundle)), key=lambda each: each.ends_at)


def _validity(pem: str) -> Validity:
    ((_, certificate),) = _elements(ssl.PEM_cert_to_DER_cert(pem))
    signed = _elements(_elements(certificate)[0][1])
    _algorithm, _issuer, times, *_ = (content for tag, content in signed if tag == _SEQUENCE)  # RFC 5280, 4.1
    begins, ends = _elements(times)
    return Validity(_time(*begins), _time(*ends))


def _time(tag: int, text: bytes) -> datetime:
    year = "%y" if tag == _UTC_TIME else "%Y"
    return datetime.strptime(text.decode(), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element of a DER sequence."""
    elements, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(der[at : at + digits], "big"), at + digits
        elements.append((tag, der[at : at + size]))
        at += size
    return elements


def _certificate(flag: str, path: str) -> str:
    """Return the first certificate in this file."""
    return _certificates(flag, path)[0]


def _certificates(flag: str, path: str) -> list[str]:
    """Return the certificates in this file."""
    if found := _CERTIFICATE.findall(_text(flag, path)):
        return found
    raise BadCertificate(words.tls.bad_file(flag, path, words.tls.NO_CERTIFICATE))


def _text(flag: str, path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError as error:
        raise BadCertificate(words.tls.unreadable(flag, path, error.strerror or str(error))) from None


def _is_encrypted(flag: str, key: str) -> str:
    raise BadCertificate(words.tls.encrypted_key(flag, key))


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
