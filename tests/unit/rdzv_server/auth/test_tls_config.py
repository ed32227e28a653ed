"""The server's certificate files: the messages about bad ones."""

import errno
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rdzv_protocol.certificates import BadCertificate, validity
from rdzv_protocol.words import tls

from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.words import auth as words

MISSING = os.strerror(errno.ENOENT)


def complaint(*files: str) -> str:
    with pytest.raises(BadCertificate) as error:
        TlsFiles(*files).context()
    return str(error.value)


def test_good_files_make_a_context(authority):
    assert TlsFiles(*authority.issue("server"), authority.ca).context()


def test_files_that_are_not_there_or_are_something_else(authority, tmp_path):
    cert, key = authority.issue("server")
    (tmp_path / "note").write_bytes(b"buy milk \xff")
    note = str(tmp_path / "note")
    assert complaint("/nowhere", key) == tls.unreadable("--tls-cert", "/nowhere", MISSING)
    assert complaint(cert, "/nowhere") == tls.unreadable("--tls-key", "/nowhere", MISSING)
    assert complaint(cert, key, "/nowhere") == tls.unreadable("--tls-client-ca", "/nowhere", MISSING)
    assert complaint(note, key) == tls.bad_file("--tls-cert", note, tls.NO_CERTIFICATE)
    assert complaint(cert, cert) == tls.bad_file("--tls-key", cert, tls.NO_KEY)
    assert complaint(cert, key, key) == tls.bad_file("--tls-client-ca", key, tls.NO_CERTIFICATE)


def test_files_that_were_cut_off(authority, tmp_path):
    cert, key = authority.issue("server")
    lines = Path(cert).read_text().splitlines(keepends=True)
    Path(cert).write_text("".join([*lines[:3], *lines[5:]]))
    assert complaint(cert, key).startswith(f"--tls-cert {cert}, --tls-key {key}: ")
    assert complaint(*authority.issue("other"), cert).startswith(f"--tls-client-ca {cert}: ")


def test_a_key_of_another_certificate(authority):
    cert, key = authority.issue("server").cert, authority.issue("other").key
    assert complaint(cert, key) == tls.other_key("--tls-cert", cert, "--tls-key", key)


def test_a_key_that_is_encrypted_is_not_asked_for_on_the_terminal(authority, tmp_path):
    cert, key = authority.issue("server")
    locked = str(tmp_path / "locked.key")
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:hush", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    assert complaint(cert, locked) == tls.encrypted_key("--tls-key", locked)


@pytest.mark.parametrize("days", [-40, 3, 400, 365 * 40])
def test_when_a_certificate_expires(authority, days):
    """Dates after 2049 have another format (RFC 5280, 4.1.2.5)."""
    begins_at, ends_at = validity("--tls-cert", authority.issue("server", days=days).cert)
    assert abs(ends_at - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)
    assert abs(begins_at - datetime.now(UTC) + timedelta(days=200)) < timedelta(minutes=5)


def test_a_certificate_that_expires_soon_is_logged(authority):
    expired, soon, good = (authority.issue(f"server-{days}", days=days) for days in (-1, 5, 90))
    assert list(TlsFiles(*expired).certificates()[0].warnings()) == [
        words.certificate_expired("--tls-cert", expired.cert)
    ]
    assert list(TlsFiles(*soon).certificates()[0].warnings()) == [words.certificate_expires("--tls-cert", soon.cert, 4)]
    assert list(TlsFiles(*good).certificates()[0].warnings()) == []


def test_a_certificate_that_is_not_valid_yet_is_logged(authority):
    later = TlsFiles(*authority.issue("server", begins=1)).certificates()[0]
    begins_at = later.validity.begins_at
    assert list(later.warnings()) == [words.certificate_not_valid_yet("--tls-cert", later.path, begins_at)]
